//===- Frees.cpp - Release values after their last use
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "passes/lower/Frees.h"

#include "mlir/IR/Builders.h"
#include "llvm/ADT/DenseMap.h"
#include "llvm/ADT/MapVector.h"

using namespace mlir;

namespace piper {

namespace {

/// What is freed at one place.
struct Batch {
  SmallVector<Value> values, events;
};

bool isCommunication(Operation *op) {
  return isa<SendOp, RecvOp, CollectiveOpInterface>(op);
}

/// The peer of a message, or none.
std::optional<int64_t> getPeer(Operation *op) {
  if (auto send = dyn_cast<SendOp>(op))
    return send.getPeer();
  if (auto recv = dyn_cast<RecvOp>(op))
    return recv.getPeer();
  return std::nullopt;
}

/// Finds where each value of a program is freed.
class Placement {
public:
  explicit Placement(ProgramOp program) : program(program) {
    for (auto [index, op] : llvm::enumerate(program.getBlock())) {
      ops.push_back(&op);
      positions[&op] = index;
    }
    for (Operation *op : ops)
      if (!isCommunication(op))
        for (Value operand : op->getOperands())
          if (isa<EventType>(operand.getType()))
            waits[key(operand.getDefiningOp())].push_back(positions[op]);
  }

  /// What is freed behind each op, by its position.
  std::vector<Batch> run() {
    batches.resize(ops.size());
    for (Operation *op : ops)
      for (Value value : op->getResults())
        if (ownsStorage(value))
          place(value);
    return std::move(batches);
  }

private:
  /// Messages with one peer are one key; a collective is its own.
  using Key = std::pair<Operation *, int64_t>;
  Key key(Operation *op) {
    std::optional<int64_t> peer = getPeer(op);
    return peer ? Key(nullptr, *peer) : Key(op, -1);
  }

  void place(Value value) {
    Operation *maker = value.getDefiningOp();
    size_t last = positions[maker];
    SmallVector<Value> events;
    if (value.use_empty() && isCommunication(maker)) // nobody waits for it
      events.push_back(maker->getResults().back());
    for (Operation *user : value.getUsers()) {
      last = std::max(last, positions[user]);
      if (isCommunication(user))
        events.push_back(user->getResults().back());
    }
    size_t where = last;
    for (Value event : events)
      where = std::max(where, nextWait(key(event.getDefiningOp()), last));
    Batch &batch = batches[where];
    batch.values.push_back(value);
    for (Value event : events)
      if (!llvm::is_contained(batch.events, event))
        batch.events.push_back(event);
  }

  /// The first place behind `position` at which compute waits for the key.
  size_t nextWait(Key key, size_t position) {
    ArrayRef<size_t> places = waits[key];
    auto next = llvm::upper_bound(places, position);
    return next == places.end() ? ops.size() - 1 : *next;
  }

  ProgramOp program;
  std::vector<Operation *> ops;
  llvm::DenseMap<Operation *, size_t> positions;
  llvm::DenseMap<Key, SmallVector<size_t>> waits; // ascending
  std::vector<Batch> batches;
};

} // namespace

bool ownsStorage(Value value) {
  if (!isa<RankedTensorType>(value.getType()) ||
      isa<ReadOp, UpdateOp>(value.getDefiningOp()))
    return false;
  while (auto reduction = value.getDefiningOp<AllReduceOp>())
    value = reduction.getInputs().front();
  return !value.getDefiningOp<AccumulateOp>();
}

void FreeInserter::insert() {
  std::vector<Operation *> ops;
  for (Operation &op : program.getBlock())
    ops.push_back(&op);
  OpBuilder builder(program.getContext());
  for (auto [position, batch] : llvm::enumerate(Placement(program).run())) {
    if (batch.values.empty())
      continue;
    builder.setInsertionPointAfter(ops[position]);
    FreeOp::create(builder, ops[position]->getLoc(), batch.values,
                   batch.events);
  }
}

} // namespace piper
