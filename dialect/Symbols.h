//===- Symbols.h - Checks of the symbols that ops name
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef PIPER_DIALECT_SYMBOLS_H
#define PIPER_DIALECT_SYMBOLS_H

#include "dialect/Layouts.h"

// For verifySymbolUses: every function looks up names in tables that are built
// once per module, and reports on `op` what is missing.

namespace piper {

/// The module's mesh.
mlir::FailureOr<MeshOp> lookupMesh(mlir::Operation *op);

/// A manual or auto axis of the mesh: one that ranks of a program lie on.
mlir::FailureOr<AxisAttr> lookupRankAxis(mlir::Operation *op, MeshOp mesh,
                                         mlir::StringAttr name);

/// A bucket of this name.
mlir::FailureOr<BucketOp> lookupBucket(mlir::Operation *op,
                                       mlir::FlatSymbolRefAttr name,
                                       mlir::SymbolTableCollection &symbols);

/// The type of a slot that the bucket of this name must have.
mlir::FailureOr<mlir::RankedTensorType>
lookupSlot(mlir::Operation *op, mlir::FlatSymbolRefAttr name, Slot slot,
           mlir::SymbolTableCollection &symbols);

/// Checks that a value has the type of a bucket's slot.
mlir::LogicalResult verifySlot(mlir::Operation *op,
                               mlir::FlatSymbolRefAttr name, Slot slot,
                               mlir::Type type,
                               mlir::SymbolTableCollection &symbols);

/// Checks that a container's mesh exists, and its schedule if it names one.
mlir::LogicalResult verifyPlan(mlir::Operation *op,
                               mlir::FlatSymbolRefAttr mesh,
                               mlir::FlatSymbolRefAttr order,
                               mlir::SymbolTableCollection &symbols);

/// Checks that a stream or a communicator has this name, if any is given.
mlir::LogicalResult verifyStream(mlir::Operation *op,
                                 mlir::FlatSymbolRefAttr name,
                                 mlir::SymbolTableCollection &symbols);

} // namespace piper

#endif // PIPER_DIALECT_SYMBOLS_H
