//===- Coordinates.h - Where the ops of a cluster run
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef PIPER_PASSES_SUPPORT_COORDINATES_H
#define PIPER_PASSES_SUPPORT_COORDINATES_H

#include "dialect/Piper.h"

namespace piper {

/// The coordinate at which an op of a cluster runs; nothing for an op of
/// several coordinates (a transfer, a collective).
std::optional<int64_t> getCoordinate(mlir::Operation *op);

/// The coordinate at which a value of a cluster arises.
int64_t getCoordinate(mlir::Value value);

} // namespace piper

#endif // PIPER_PASSES_SUPPORT_COORDINATES_H
