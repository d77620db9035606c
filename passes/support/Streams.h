//===- Streams.h - Streams, declared where first used
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef PIPER_PASSES_SUPPORT_STREAMS_H
#define PIPER_PASSES_SUPPORT_STREAMS_H

#include "dialect/Piper.h"

namespace piper {

/// The stream of this name, which is declared at the top of the module if no
/// strategy did.
mlir::FlatSymbolRefAttr declareStream(mlir::SymbolTable &symbols,
                                      mlir::StringAttr name);

} // namespace piper

#endif // PIPER_PASSES_SUPPORT_STREAMS_H
