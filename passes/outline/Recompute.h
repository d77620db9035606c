//===- Recompute.h - What a backward pass computes again
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef PIPER_PASSES_OUTLINE_RECOMPUTE_H
#define PIPER_PASSES_OUTLINE_RECOMPUTE_H

#include "dialect/Piper.h"
#include "llvm/ADT/DenseSet.h"
#include "llvm/Support/GlobPattern.h"

namespace piper {

/// What a remat directive says of a chunk; without one, the default.
struct RematPolicy {
  llvm::StringRef name = "min_cut";
  /// Which ops may be computed again, if not all.
  std::optional<llvm::SmallVector<llvm::GlobPattern>> ops;

  /// Whether the policy lets a pure op be computed again that the model does
  /// not mark.
  bool allows(TorchOp op) const;
};

/// The ops of one chunk in pass F and in pass B, each in the order of the step.
struct ChunkPair {
  mlir::StringAttr name; // such as "layer.0"
  llvm::SmallVector<TorchOp> forward;
  llvm::SmallVector<mlir::Operation *> backward; // torch ops and gradients
};

/// Adds the chunks of a captured step that have a backward pass, the first
/// captured first.
void findPairs(StepOp step, llvm::SmallVectorImpl<ChunkPair> &pairs);

/// Adds the values that ops of a step change in place.
void findWritten(StepOp step, llvm::DenseSet<mlir::Value> &written);

/// The values that pass F of a chunk makes and pass B shall compute again:
/// results of ops that are no views. What else pass B needs is kept.
///
/// Which ops may or must be computed again follows from what they are and from
/// the policy. Of the values for which there is a choice, the fewest bytes are
/// kept; of equal choices, the one that computes the least again.
llvm::DenseSet<mlir::Value>
chooseRecomputed(const ChunkPair &pair, const RematPolicy &policy,
                 const llvm::DenseSet<mlir::Value> &written);

} // namespace piper

#endif // PIPER_PASSES_OUTLINE_RECOMPUTE_H
