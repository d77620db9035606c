//===- Overlap.h - In which order the pieces of two cells are issued
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef PIPER_PASSES_MATERIALIZE_OVERLAP_H
#define PIPER_PASSES_MATERIALIZE_OVERLAP_H

#include "dialect/Piper.h"

namespace piper {

/// Interleaves the ops of a forward and of a backward cell that may overlap, so
/// that what one of them exchanges goes on beside what the other computes.
class Overlap {
public:
  using Ops = llvm::SmallVector<mlir::Operation *>;

  explicit Overlap(mlir::ModuleOp module);

  /// The ops of both cells, runs and exchanges, each given in data order, in
  /// issue order: by the template of a directive that selects chunks of both,
  /// else by the default policy. Gradients of weights come behind what they use
  /// and behind the other half of their chunk.
  mlir::FailureOr<Ops> merge(const Ops &forward, const Ops &backward,
                             const Ops &weights);

  /// Reports a directive that had no effect.
  mlir::LogicalResult checkUsed();

private:
  llvm::SmallVector<std::pair<DoOverlapOp, bool>> directives;   // and if used
  llvm::DenseMap<mlir::Attribute, mlir::Attribute> inputHalves; // by that of W
};

} // namespace piper

#endif // PIPER_PASSES_MATERIALIZE_OVERLAP_H
