//===- RowSkips.h - Rows that go beside those which experts multiplied
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef PIPER_PASSES_VERIFY_ROWSKIPS_H
#define PIPER_PASSES_VERIFY_ROWSKIPS_H

#include "dialect/Piper.h"

#include "llvm/ADT/DenseSet.h"

namespace piper {

/// Rows on one way, as that back to the ranks that sent them: those that are
/// done, as experts have multiplied them, and those that skip this.
class RowSkips {
public:
  struct Use {
    mlir::Operation *op = nullptr;
    unsigned counts = 0, rows = 0; // by number
    bool isGradient = false, isInBackward = false;
  };

  void add(const Use &use, bool isDone) {
    if (isDone && !use.isInBackward)
      done.insert(use.counts);
    if (isDone)
      return;
    skips.push_back(use);
    if (!use.isInBackward) {
      skipped.insert(use.counts);
      rows.insert(use.rows);
    }
  }

  llvm::ArrayRef<Use> get() const { return skips; }

  /// Whether a forward pass takes rows that are done, too: then a model means
  /// those beside them. A backward pass may do so with the same rows, which it
  /// has computed again, and with gradients of any.
  bool isBesideOthers(const Use &use) const {
    if (!done.contains(use.counts))
      return false;
    if (!use.isInBackward)
      return true;
    return use.isGradient ? skipped.contains(use.counts)
                          : rows.contains(use.rows);
  }

private:
  llvm::SmallVector<Use> skips;
  llvm::DenseSet<unsigned> done, skipped; // counts, of forward passes
  llvm::DenseSet<unsigned> rows;          // that skip in forward passes
};

} // namespace piper

#endif // PIPER_PASSES_VERIFY_ROWSKIPS_H
