//===- Pieces.h - Where chunks are cut, as ranks exchange values within them
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef PIPER_PASSES_OUTLINE_PIECES_H
#define PIPER_PASSES_OUTLINE_PIECES_H

#include "dialect/Piper.h"
#include "llvm/ADT/DenseMap.h"

namespace piper {

/// The tag of an op of a captured step: of which chunk it is. Null for what
/// belongs to none.
TagAttr getChunkTag(mlir::Operation *op);

/// The numbers of the pieces of a captured step's chunks.
class Pieces {
public:
  explicit Pieces(StepOp step);

  /// The piece that an op is in, or behind which it is exchanged. For a wait of
  /// the host it is the piece that is issued right before it.
  size_t lookup(mlir::Operation *op) const { return pieces.lookup(op); }

private:
  using Buckets = std::vector<llvm::SmallVector<mlir::Operation *>>;

  static Buckets sortByWait(mlir::Block &block);
  size_t findPiece(mlir::Operation *op, TagAttr tag) const;
  void place(mlir::Operation *op);

  llvm::DenseMap<mlir::Operation *, size_t> pieces;
  llvm::DenseMap<mlir::Attribute, size_t> earliest; // by tag
};

} // namespace piper

#endif // PIPER_PASSES_OUTLINE_PIECES_H
