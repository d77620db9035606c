//===- Cotangents.h - Which values of a captured step are cotangents of which
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef PIPER_PASSES_OUTLINE_COTANGENTS_H
#define PIPER_PASSES_OUTLINE_COTANGENTS_H

#include "passes/support/ChunkBuilder.h"

namespace piper {

/// The cotangents of a captured step, as its ops and outputs say. All values
/// are roots of views.
class Cotangents {
public:
  explicit Cotangents(StepOp step);

  /// Writes on a backward chunk which operands and results are duals of results
  /// and operands of its forward chunk. Both are built, and the step not yet.
  void writeDuals(const Outlined &backward, const Outlined &forward) const;

private:
  /// Finds for each gradient its primal's place in `primals`, or `noDual`.
  llvm::SmallVector<int64_t>
  findPlaces(llvm::ArrayRef<mlir::Value> gradients,
             llvm::ArrayRef<mlir::Value> primals) const;

  /// What ranks along auto axes made a value of by exchanging: there a sum and
  /// its terms have one cotangent.
  mlir::Value skipExchanges(mlir::Value value) const;

  MeshOp mesh;
  llvm::DenseMap<mlir::Value, llvm::SetVector<mlir::Value>> primalsOf;
};

} // namespace piper

#endif // PIPER_PASSES_OUTLINE_COTANGENTS_H
