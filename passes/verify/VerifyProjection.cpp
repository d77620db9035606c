//===- VerifyProjection.cpp - Programs do what their cluster says
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

// A program is the projection of its ordered cluster to one coordinate: what
// the cluster has at this coordinate occurs once, in the cluster's order along
// each lane, on the values that stand for the cluster's. Lanes are compute, the
// messages to and from each peer, and the collectives of each group. Records,
// frees and events are the program's own.

#include "passes/support/Coordinates.h"
#include "passes/verify/Verify.h"

#include "llvm/ADT/DenseMap.h"

using namespace mlir;

namespace piper {

namespace {

enum Role : unsigned { Compute, Send, Recv, Collective };

/// Instructions of one lane keep the order of the cluster: the role, the peer
/// of messages, the axes and coordinates of collectives.
using Lane = std::tuple<unsigned, int64_t, Attribute, Attribute>;

Lane getComputeLane() { return {Compute, -1, {}, {}}; }
Lane getLane(Role role, int64_t peer) { return {role, peer, {}, {}}; }
Lane getLane(Attribute over, Attribute coordinates) {
  return {Collective, -1, over, coordinates};
}

//===----------------------------------------------------------------------===//
// What an op is
//===----------------------------------------------------------------------===//

/// Whether two ops of one kind do the same, but for where and on what.
bool haveSameAttributes(Operation *a, Operation *b) {
  return llvm::all_of(a->getName().getAttributeNames(), [&](StringAttr name) {
    return a->getAttr(name) == b->getAttr(name) || name == "at" ||
           name == "stream" || name == "operandSegmentSizes";
  });
}

/// Whether operands mean the same, given that there are as many.
bool haveSameGroups(Operation *a, Operation *b) {
  auto update = dyn_cast<UpdateOp>(a);
  if (!update)
    return true;
  auto other = cast<UpdateOp>(b);
  return bool(update.getNorm()) == bool(other.getNorm()) &&
         bool(update.getSkip()) == bool(other.getSkip());
}

SmallVector<Value> getValues(ValueRange range) {
  return llvm::filter_to_vector(
      range, [](Value value) { return !isa<EventType>(value.getType()); });
}

/// An op of the cluster as one coordinate sees it.
struct Part {
  Operation *op;
  int64_t at;

  bool sends() const { return int64_t(cast<TransferOp>(op).getFrom()) == at; }

  Lane findLane() const {
    if (auto transfer = dyn_cast<TransferOp>(op))
      return sends() ? getLane(Send, transfer.getTo())
                     : getLane(Recv, transfer.getFrom());
    if (auto collective = dyn_cast<CollectiveOpInterface>(op))
      return getLane(collective.getOver(), op->getAttr("at"));
    return getComputeLane();
  }

  SmallVector<Value> getOperands() const {
    if (isa<TransferOp>(op))
      return sends() ? getValues(op->getOperands()) : SmallVector<Value>();
    auto collective = dyn_cast<CollectiveOpInterface>(op);
    if (!collective)
      return getValues(op->getOperands());
    SmallVector<Value> operands = {collective.getInputs()[getIndex()]};
    auto sizes = op->getOperands().drop_front(collective.getInputs().size());
    llvm::append_range(operands, getValues(sizes));
    return operands;
  }

  SmallVector<Value> getResults() const {
    if (isa<TransferOp>(op))
      return sends() ? SmallVector<Value>() : getValues(op->getResults());
    if (isa<CollectiveOpInterface>(op))
      return {op->getResult(getIndex())};
    return getValues(op->getResults());
  }

  /// Whether an instruction of its lane is this op, apart from its operands.
  bool matches(Operation *instruction) const {
    SmallVector<Value> own = getResults(),
                       others = getValues(instruction->getResults());
    if (ValueRange(own).getTypes() != ValueRange(others).getTypes())
      return false;
    if (auto transfer = dyn_cast<TransferOp>(op))
      return instruction->getAttr("mb") == transfer.getMbAttr() &&
             instruction->getAttr("label") == transfer.getLabelAttr();
    return instruction->getName() == op->getName() &&
           haveSameAttributes(instruction, op);
  }

private:
  size_t getIndex() const {
    ArrayRef<int64_t> all = *cast<CollectiveOpInterface>(op).getAt();
    return llvm::find(all, at) - all.begin();
  }
};

/// The coordinates that take part in an op.
SmallVector<int64_t> getCoordinates(Operation *op) {
  if (auto transfer = dyn_cast<TransferOp>(op))
    return {int64_t(transfer.getFrom()), int64_t(transfer.getTo())};
  if (auto collective = dyn_cast<CollectiveOpInterface>(op))
    return llvm::to_vector(*collective.getAt());
  return {*getCoordinate(op)};
}

//===----------------------------------------------------------------------===//
// Programs
//===----------------------------------------------------------------------===//

/// Follows one program along the ops of its coordinate.
class Follower {
public:
  Follower(ProgramOp program, SymbolTable &symbols)
      : program(program), at(program.getAt()) {
    for (Operation &op : program.getBlock())
      if (!isa<FreeOp, RecordOp>(op))
        find(findLane(&op, symbols)).instructions.push_back(&op);
  }

  /// Takes the instructions that stand for the ops of this coordinate.
  LogicalResult run(ArrayRef<Operation *> ops) {
    for (Operation *op : ops)
      if (failed(take(op)))
        return failure();
    return finish();
  }

private:
  struct Progress {
    std::vector<Operation *> instructions;
    size_t next = 0;
  };

  Progress &find(const Lane &lane) {
    return lane == getComputeLane() ? compute : lanes[lane];
  }

  static Lane findLane(Operation *op, SymbolTable &symbols) {
    if (auto send = dyn_cast<SendOp>(op))
      return getLane(Send, send.getPeer());
    if (auto recv = dyn_cast<RecvOp>(op))
      return getLane(Recv, recv.getPeer());
    if (!isa<CollectiveOpInterface>(op))
      return getComputeLane();
    auto comm = symbols.lookup<CommOp>(getCommunicator(op).getValue());
    return getLane(comm.getAxesAttr(), comm.getCoordinatesAttr());
  }

  LogicalResult take(Operation *op) {
    Part part = {op, at};
    Progress &lane = find(part.findLane());
    if (lane.next == lane.instructions.size())
      return reportMissing(part);
    Operation *instruction = lane.instructions[lane.next];
    if (!part.matches(instruction))
      return reportOther(part, lane);
    ++lane.next;
    for (auto [value, found] :
         llvm::zip(part.getResults(), getValues(instruction->getResults())))
      mapping[value] = found;
    return checkOperands(part, instruction);
  }

  LogicalResult finish() {
    if (compute.next < compute.instructions.size())
      return reportExtra(compute);
    for (auto &[key, lane] : lanes)
      if (lane.next < lane.instructions.size())
        return reportExtra(lane);
    return success();
  }

  LogicalResult checkOperands(const Part &part, Operation *instruction) {
    SmallVector<Value> wanted = part.getOperands(),
                       got = getValues(instruction->getOperands());
    if (wanted.size() != got.size() || !haveSameGroups(part.op, instruction)) {
      InFlightDiagnostic error =
          instruction->emitOpError("expected the operands that ")
          << program.getOfAttr() << " gives it, got more, fewer or others";
      return note(error, part);
    }
    for (auto [index, pair] : llvm::enumerate(llvm::zip(wanted, got))) {
      auto [from, operand] = pair;
      if (mapping.lookup(from) == operand)
        continue;
      InFlightDiagnostic error = instruction->emitOpError("expected operand ");
      error << index << " to be " << describe(mapping.lookup(from))
            << ", as in " << program.getOfAttr() << ", got "
            << describe(operand);
      return note(error, part);
    }
    return success();
  }

  LogicalResult note(InFlightDiagnostic &error, const Part &part) {
    error.attachNote(part.op->getLoc())
        << program.getOfAttr() << " has it here";
    return failure();
  }

  LogicalResult reportMissing(const Part &part) {
    InFlightDiagnostic error = emitContainerError(program);
    error << "expected " << describe(part.op) << ", which "
          << program.getOfAttr() << " has at coordinate " << at << ", got none";
    return note(error, part);
  }

  /// The next instruction of a lane is not the next op: something is missing,
  /// is there twice, or comes too early.
  LogicalResult reportOther(const Part &part, Progress &lane) {
    ArrayRef<Operation *> rest =
        ArrayRef(lane.instructions).drop_front(lane.next);
    if (!occurs(rest.front(), part))
      return reportExtra(lane);
    if (llvm::none_of(rest,
                      [&](Operation *other) { return part.matches(other); }))
      return reportMissing(part);
    InFlightDiagnostic error =
        rest.front()->emitOpError("expected to come behind ")
        << describe(part.op) << ", as in " << program.getOfAttr();
    return note(error, part);
  }

  /// Whether an instruction stands for an op that comes later in the cluster.
  bool occurs(Operation *instruction, const Part &part) {
    for (Operation *op = part.op->getNextNode(); op; op = op->getNextNode()) {
      Part later = {op, at};
      if (llvm::is_contained(getCoordinates(op), at) &&
          later.findLane() == part.findLane() && later.matches(instruction))
        return true;
    }
    return false;
  }

  LogicalResult reportExtra(Progress &lane) {
    Operation *extra = lane.instructions[lane.next];
    ArrayRef<Operation *> taken =
        ArrayRef(lane.instructions).take_front(lane.next);
    for (Operation *other : taken)
      if (other->getName() == extra->getName() &&
          haveSameAttributes(other, extra) &&
          other->getResultTypes() == extra->getResultTypes()) {
        InFlightDiagnostic error = extra->emitOpError("expected once, as in ")
                                   << program.getOfAttr()
                                   << ", got a second time";
        error.attachNote(other->getLoc()) << "the first time is here";
        return failure();
      }
    return extra->emitOpError("expected an instruction that ")
           << program.getOfAttr() << " has at coordinate " << at << ", got "
           << describe(extra);
  }

  ProgramOp program;
  int64_t at;
  Progress compute;
  llvm::MapVector<Lane, Progress> lanes; // the others
  llvm::DenseMap<Value, Value> mapping;  // of the cluster to the program
};

} // namespace

LogicalResult verifyProjection(ClusterOp cluster, ArrayRef<ProgramOp> programs,
                               SymbolTable &symbols) {
  if (cluster.getPhase() < Phase::Ordered)
    return emitContainerError(cluster) << "expected phase ordered or lowered, "
                                          "since there are programs of it";
  // One program at a time, so that what it maps stays small.
  std::map<int64_t, std::vector<Operation *>> parts; // by coordinate
  for (Operation &op : cluster.getBlock())
    for (int64_t at : getCoordinates(&op))
      parts[at].push_back(&op);
  for (ProgramOp program : programs)
    if (failed(Follower(program, symbols).run(parts[program.getAt()])))
      return failure();
  return success();
}

} // namespace piper
