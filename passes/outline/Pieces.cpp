//===- Pieces.cpp - Where chunks are cut, as ranks exchange values within them
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

// An op is in the first piece in which all that it uses is there: its number is
// that of exchanges of its chunk that it waits for, one after the other.
//
// The host waits for counts of rows before rows are sent. What these counts do
// not need is left to the next piece, so that it can be issued behind the
// exchange of counts, and compute goes on while the host waits:
//
//   x ── router ── sort ── counts ── host_wait ── dispatch ── experts
//   │                └──── permute ───────────────┘
//   └── shared experts
//
//   F   router, sort                behind it counts
//   F1  permute, shared experts     behind it host_wait, dispatch
//   F2  experts
//
// Where there are several waits ops are taken in the order of the first wait
// that needs them, first those of the first wait. What a wait needs includes
// all that is used for it, so that what an op uses is taken before it. When an
// op is taken whose chunk has waits that do not need it, the pieces of these
// are known, and the op is in none before.

#include "passes/outline/Pieces.h"

#include "passes/support/ChunkBuilder.h"

using namespace mlir;

namespace piper {

TagAttr getChunkTag(Operation *op) {
  if (auto torch = dyn_cast<TorchOp>(op))
    return torch.getTagAttr();
  if (auto grad = dyn_cast<GradOp>(op))
    return grad.getTagAttr();
  return isExchange(op) ? op->getAttrOfType<TagAttr>("tag") : TagAttr();
}

Pieces::Pieces(StepOp step) {
  for (const auto &ops : sortByWait(step.getBlock()))
    for (Operation *op : ops)
      place(op);
}

/// The ops of a block by the first wait of the host that needs them, in last
/// place those that none needs; each list is in the order of the block.
Pieces::Buckets Pieces::sortByWait(Block &block) {
  auto waits = block.getOps<HostWaitOp>();
  size_t numWaits = std::distance(waits.begin(), waits.end());
  llvm::DenseMap<Operation *, size_t> first;
  size_t left = numWaits;
  for (Operation &op : llvm::reverse(block)) {
    size_t number = isa<HostWaitOp>(op)
                        ? first[&op] = --left
                        : first.try_emplace(&op, numWaits).first->second;
    for (Value operand : op.getOperands())
      if (Operation *maker = operand.getDefiningOp()) {
        size_t &known = first.try_emplace(maker, numWaits).first->second;
        known = std::min(known, number);
      }
  }
  Buckets buckets(numWaits + 1);
  for (Operation &op : block)
    buckets[first.lookup(&op)].push_back(&op);
  return buckets;
}

/// The first piece in which all that an op uses is there. Exchanges that go on
/// at once count as one.
size_t Pieces::findPiece(Operation *op, TagAttr tag) const {
  size_t piece = 0;
  for (Value operand : op->getOperands()) {
    Operation *maker = operand.getDefiningOp();
    if (!maker || getChunkTag(maker) != tag)
      continue;
    bool crosses = isa<HostWaitOp>(op) ||
                   (isa<CollectiveOpInterface>(maker) && !isExchange(op));
    piece = std::max(piece, pieces.lookup(maker) + crosses);
  }
  return piece;
}

void Pieces::place(Operation *op) {
  TagAttr tag = getChunkTag(op);
  if (!tag)
    return;
  size_t piece = findPiece(op, tag);
  // A view goes with what it looks at: it takes no time.
  if (auto torch = dyn_cast<TorchOp>(op); torch && !torch.isView())
    piece = std::max(piece, earliest.lookup(tag));
  if (isa<HostWaitOp>(op)) {
    size_t &known = earliest[tag];
    known = std::max(known, piece);
  }
  pieces[op] = piece;
}

} // namespace piper
