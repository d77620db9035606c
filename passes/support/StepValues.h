//===- StepValues.h - Which value of a step one of its cluster is
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef PIPER_PASSES_STEP_VALUES_H
#define PIPER_PASSES_STEP_VALUES_H

#include "dialect/Piper.h"
#include "llvm/ADT/DenseMap.h"

namespace piper {

/// What a value was before it was moved to where it is.
mlir::Value skipTransfers(mlir::Value value);

/// Compares values of a cluster with those of its step.
class StepValues {
public:
  /// What a chunk does for a run of the step.
  struct Chunk {
    RunOp whole;
    HalfAttr half;   // null if it is the whole
    HalfAttr before; // the half that passes something on to it, or null
  };

  StepValues(StepOp step, mlir::SymbolTable &symbols);

  StepOp getStep() const { return step; }

  /// What a chunk that the step runs does, as a whole or as a half.
  Chunk getChunk(RunOp run) const { return chunks.lookup(run.getChunkAttr()); }

  /// Whether a value of the cluster is one of the step for a microbatch.
  bool standsFor(mlir::Value value, mlir::Value wanted, int64_t mb) const;

  /// Whether an exchange of the cluster is one of the step for a microbatch.
  bool isSameExchange(mlir::Operation *op, mlir::Operation *wanted,
                      int64_t mb) const;

  /// A value of the step in words.
  std::string describe(mlir::Value value) const;

private:
  void addChunks(RunOp run, mlir::SymbolTable &symbols);
  bool isResult(RunOp run, size_t index, mlir::OpResult wanted) const;

  StepOp step;
  llvm::DenseMap<mlir::Attribute, Chunk> chunks; // by name
};

} // namespace piper

#endif // PIPER_PASSES_STEP_VALUES_H
