//===- VerifyPrograms.cpp - Streams wait for each other where they must
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

// Each stream has a clock: how far it knows every stream to have come. Starting
// an instruction joins the clocks of the events that it lists; an event carries
// the clock of its stream. What an instruction touches must lie before its
// clock.

#include "passes/lower/Frees.h"
#include "passes/verify/Verify.h"

#include "llvm/ADT/DenseMap.h"
#include "llvm/ADT/DenseSet.h"

using namespace mlir;

namespace piper {

FlatSymbolRefAttr getCommunicator(Operation *op) {
  return isa<SendOp, RecvOp, CollectiveOpInterface>(op)
             ? op->getAttrOfType<FlatSymbolRefAttr>("stream")
             : FlatSymbolRefAttr();
}

namespace {

using Clock = SmallVector<size_t, 8>; // by stream, in finished instructions

void join(Clock &clock, const Clock &other) {
  for (auto [mine, theirs] : llvm::zip(clock, other))
    mine = std::max(mine, theirs);
}

/// Where an instruction lies: the how-manieth of which stream.
struct Place {
  size_t stream, number;
};

/// The accumulation into a bucket's gradient that a value is, perhaps reduced
/// in place; null for another value.
AccumulateOp getAccumulation(Value value) {
  while (auto reduction = value.getDefiningOp<AllReduceOp>())
    value = reduction.getInputs().front();
  return value.getDefiningOp<AccumulateOp>();
}

/// Whether an instruction reduces a bucket's gradient where it lies.
bool isInPlace(Operation *op) {
  auto reduction = dyn_cast<AllReduceOp>(op);
  return reduction && getAccumulation(reduction.getInputs().front());
}

/// Whether communication takes a new buffer for its result.
bool takesBuffer(Operation *op) {
  return isa<RecvOp, CollectiveOpInterface>(op) && !isInPlace(op);
}

class ProgramVerifier {
public:
  explicit ProgramVerifier(ProgramOp program) : program(program) {
    for (Operation &op : program.getBlock())
      streams.try_emplace(getStream(&op), streams.size());
    clocks.assign(streams.size(), Clock(streams.size(), 0));
  }

  LogicalResult run() {
    for (Operation &op : program.getBlock())
      if (failed(check(&op)))
        return failure();
    return success();
  }

private:
  /// Null for compute, a unit for the host.
  static Attribute getStream(Operation *op) {
    return isa<HostWaitOp>(op) ? UnitAttr::get(op->getContext())
                               : Attribute(getCommunicator(op));
  }

  LogicalResult check(Operation *op) {
    size_t stream = streams.lookup(getStream(op));
    Clock &clock = clocks[stream];
    join(clock, known); // the host issues an instruction once it got here
    for (Value operand : op->getOperands())
      if (isa<EventType>(operand.getType()))
        join(clock, events.find(operand)->second);
    for (OpOperand &operand : op->getOpOperands())
      if (failed(checkOperand(operand, clock)))
        return failure();
    if (takesBuffer(op) && failed(checkBuffer(op, clock)))
      return failure();
    if (auto accumulate = dyn_cast<AccumulateOp>(op);
        accumulate && failed(checkSum(accumulate)))
      return failure();
    places[op] = {stream, ++clock[stream]};
    for (Value value : takeReleased(op))
      if (failed(release(value, op, clock)))
        return failure();
    for (Value result : op->getResults())
      if (isa<EventType>(result.getType()))
        events[result] = clock;
    noteStep(op, clock);
    return success();
  }

  /// What an instruction ends the life of: it frees or overwrites its storage.
  SmallVector<Value> takeReleased(Operation *op) {
    if (auto free = dyn_cast<FreeOp>(op))
      return llvm::to_vector(free.getValues());
    SmallVector<Value> overwritten;
    Value result = op->getNumResults() ? op->getResult(0) : Value();
    auto accumulate =
        isInPlace(op) ? getAccumulation(result) : dyn_cast<AccumulateOp>(op);
    if (accumulate) {
      Value &sum = sums[accumulate.getBucketAttr()];
      if (sum)
        overwritten.push_back(sum);
      sum = result;
    } else if (auto read = dyn_cast<ReadOp>(op)) {
      values[read.getSymbolAttr()].push_back(result);
    } else if (auto update = dyn_cast<UpdateOp>(op)) {
      overwritten = std::exchange(values[update.getBucketAttr()], {});
      llvm::erase_if(overwritten,
                     [&](Value value) { return released.contains(value); });
    }
    return overwritten;
  }

  void noteStep(Operation *op, const Clock &clock) {
    if (isa<HostWaitOp>(op))
      known = clock;
    if (isa<FreeOp>(op))
      lastFree = op;
  }

  bool isKnown(Operation *op, const Clock &clock) {
    const Place &place = places.find(op)->second;
    return clock[place.stream] >= place.number;
  }

  /// An operand is still there, and finished.
  LogicalResult checkOperand(OpOperand &operand, Clock &clock) {
    Operation *op = operand.getOwner();
    Operation *maker = operand.get().getDefiningOp();
    if (Operation *end = released.lookup(operand.get())) {
      InFlightDiagnostic error =
          op->emitOpError("expected a value that is still there, got operand ")
          << operand.getOperandNumber() << ", which was released";
      error.attachNote(end->getLoc()) << "it is released here";
      return failure();
    }
    if (isa<HostWaitOp>(op)) { // waits for what it is given
      const Place &place = places.find(maker)->second;
      clock[place.stream] = std::max(clock[place.stream], place.number);
    }
    if (isKnown(maker, clock))
      return success();
    InFlightDiagnostic error =
        op->emitOpError("expected to wait for what makes operand ")
        << operand.getOperandNumber() << " on another stream";
    error.attachNote(maker->getLoc()) << "it is made here";
    return failure();
  }

  /// A buffer comes from compute: whoever used its memory before has finished.
  LogicalResult checkBuffer(Operation *op, const Clock &clock) {
    if (!lastFree || isKnown(lastFree, clock))
      return success();
    InFlightDiagnostic error =
        op->emitOpError("expected to wait for the point of compute at which "
                        "its buffer is taken");
    error.attachNote(lastFree->getLoc()) << "compute releases memory here";
    return failure();
  }

  /// An accumulation continues what its own bucket holds.
  LogicalResult checkSum(AccumulateOp op) {
    Value sum = sums.lookup(op.getBucketAttr());
    if (!op.getOnto() || op.getOnto() == sum)
      return success();
    InFlightDiagnostic error =
        op.emitOpError("expected to continue the sum of ")
        << op.getBucketAttr() << " so far, got another `onto`";
    if (sum)
      error.attachNote(sum.getLoc()) << "the last addition is here";
    return failure();
  }

  /// Whoever was given the value has finished, and nobody is given it again.
  LogicalResult release(Value value, Operation *op, const Clock &clock) {
    Operation *&end = released[value];
    if (end) // listed twice
      return op->emitOpError("expected to release each value once");
    end = op;
    for (Operation *user : value.getUsers()) {
      if (!places.contains(user) || isKnown(user, clock))
        continue;
      InFlightDiagnostic error = op->emitOpError(
          "expected to wait for a stream that reads what it releases");
      error.attachNote(user->getLoc()) << "it is read here";
      return failure();
    }
    return success();
  }

  ProgramOp program;
  llvm::DenseMap<Attribute, size_t> streams;
  std::vector<Clock> clocks;
  Clock known; // to the host
  Operation *lastFree = nullptr;
  llvm::DenseMap<Operation *, Place> places;
  llvm::DenseMap<Value, Clock> events;
  llvm::DenseMap<Value, Operation *> released;
  llvm::DenseMap<Attribute, Value> sums; // what buckets' gradients hold
  llvm::DenseMap<Attribute, SmallVector<Value>> values; // read, by bucket
};

} // namespace

LogicalResult verifyProgram(ProgramOp program) {
  return ProgramVerifier(program).run();
}

LogicalResult verifyFrees(ProgramOp program) {
  llvm::DenseSet<Value> freed;
  for (auto free : program.getBlock().getOps<FreeOp>())
    freed.insert_range(free.getValues());
  for (Operation &op : program.getBlock())
    for (Value value : op.getResults())
      if (ownsStorage(value) && !freed.contains(value))
        return op.emitOpError("expected ")
               << describe(value) << " to be freed, got no free of it";
  return success();
}

} // namespace piper
