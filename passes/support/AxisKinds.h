//===- AxisKinds.h - Check what ranks along one axis hold of values
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef PIPER_PASSES_SUPPORT_AXISKINDS_H
#define PIPER_PASSES_SUPPORT_AXISKINDS_H

#include "passes/support/KernelKinds.h"

namespace piper {

/// Follows kinds along one axis through chunks and steps, and checks that
/// exchanges, gradients and reports get what they need.
class AxisKinds {
public:
  AxisKinds(AxisAttr axis, mlir::SymbolTable &symbols, KernelKinds &kernels)
      : axis(axis.getName()), role(axis.getRole()), symbols(symbols),
        kernels(kernels) {}

  AxisKind get(mlir::Value value) const { return held.lookup(value); }
  void set(mlir::Value value, AxisKind kind) { held[value] = kind; }

  /// Follows an outlined step and the chunks that it runs, whatever their types
  /// say. Ranks have parts of the inputs that `sequence`, which may be null,
  /// names.
  mlir::LogicalResult visit(StepOp step, DoSequenceOp sequence);

  /// Follows a chunk, whose arguments are set.
  mlir::LogicalResult visit(ChunkOp chunk);

private:
  mlir::LogicalResult visit(RunOp run);
  mlir::LogicalResult visit(CollectiveOpInterface op);
  mlir::LogicalResult visitInChunk(mlir::Operation *op);
  mlir::LogicalResult visit(ReturnOp op);
  mlir::LogicalResult checkGradient(mlir::Operation *op,
                                    mlir::FlatSymbolRefAttr state,
                                    mlir::Value gradient);
  mlir::LogicalResult checkReported(mlir::Operation *op, mlir::Value value);
  AxisKind getStateKind(mlir::FlatSymbolRefAttr state);
  AxisKind getContributionKind(PackOp op);
  mlir::LogicalResult report(mlir::Operation *op, mlir::Value value,
                             const llvm::Twine &what, AxisKind wanted,
                             const llvm::Twine &why = "");

  mlir::StringAttr axis;
  AxisRole role;
  mlir::SymbolTable &symbols;
  KernelKinds &kernels;
  llvm::DenseMap<mlir::Value, AxisKind> held; // replicated if not in it
};

/// Checks all outlined steps: along auto axes, and along manual ones whose
/// ranks have parts of the sequence.
mlir::LogicalResult checkSteps(mlir::ModuleOp module,
                               mlir::SymbolTable &symbols);

} // namespace piper

#endif // PIPER_PASSES_SUPPORT_AXISKINDS_H
