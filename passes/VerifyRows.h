//===- VerifyRows.h - Rows travel by the counts that ranks exchanged
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef PIPER_PASSES_VERIFYROWS_H
#define PIPER_PASSES_VERIFYROWS_H

#include "dialect/Piper.h"
#include "mlir/IR/SymbolTable.h"

namespace piper {

/// In outlined steps rows that ranks exchange have the sizes of counts that
/// they exchanged over the same axes, on the way back swapped, and ops on rows
/// take the counts by which these came.
mlir::LogicalResult verifyRows(mlir::ModuleOp module,
                               mlir::SymbolTable &symbols);

} // namespace piper

#endif // PIPER_PASSES_VERIFYROWS_H
