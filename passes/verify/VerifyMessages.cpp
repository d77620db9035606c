//===- VerifyMessages.cpp - Both ends of every communicator agree
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

// All ranks of a coordinate run one program, so that along manual axes ends
// agree by construction. What is left is that the programs of the coordinates
// that a communicator joins issue the same instructions on it.

#include "passes/verify/Verify.h"

#include "dialect/Layouts.h"

#include <set>

using namespace mlir;

namespace piper {

namespace {

void addQueues(ProgramOp program, Queues &queues) {
  for (Operation &op : program.getBlock())
    if (Attribute comm = getCommunicator(&op))
      queues[comm][program.getAt()].push_back(&op);
}

} // namespace

Queues collectQueues(ArrayRef<ProgramOp> programs) {
  Queues queues;
  for (ProgramOp program : programs)
    addQueues(program, queues);
  return queues;
}

namespace {

int64_t getAt(Operation *op) {
  return cast<ProgramOp>(op->getParentOp()).getAt();
}

LogicalResult verifyCoordinates(ArrayRef<ProgramOp> programs) {
  ProgramOp any = programs.front();
  MeshOp mesh = findMesh(any);
  int64_t count = mesh ? mesh.getNumCoordinates() : 1;
  std::map<int64_t, ProgramOp> known;
  for (ProgramOp program : programs) {
    int64_t at = program.getAt();
    if (at >= count)
      return emitContainerError(program)
             << "expected a coordinate below " << count << ", got " << at;
    auto [entry, fresh] = known.try_emplace(at, program);
    if (fresh)
      continue;
    InFlightDiagnostic error = emitContainerError(program);
    error << "expected one program at coordinate " << at << ", got a second";
    error.attachNote(entry->second.getLoc()) << "the other program is here";
    return failure();
  }
  int64_t next = 0; // all below have a program
  while (known.count(next))
    ++next;
  if (next < count)
    return emitContainerError(any) << "expected a program at each of " << count
                                   << " coordinates, got none at " << next;
  return success();
}

/// What only clusters have is not in programs.
LogicalResult verifyForm(Operation *op) {
  if (isa<TransferOp>(op) || op->hasAttr("at"))
    return op->emitOpError("expected an instruction of this coordinate alone, "
                           "got what only clusters have");
  auto collective = dyn_cast<CollectiveOpInterface>(op);
  if (collective &&
      (collective.getInputs().size() != 1 || !collective.getEvent()))
    return op->emitOpError(
        "expected one operand and an event, as in a program");
  if (isa<SendOp, RecvOp, CollectiveOpInterface>(op) && !getCommunicator(op))
    return op->emitOpError("expected to name a communicator");
  return success();
}

/// A message goes from the first coordinate of its communicator to the second.
LogicalResult verifyMessage(Operation *op, CommOp comm) {
  int64_t at = getAt(op);
  SmallVector<int64_t> ends;
  if (auto send = dyn_cast<SendOp>(op))
    ends = {at, int64_t(send.getPeer())};
  else
    ends = {int64_t(cast<RecvOp>(op).getPeer()), at};
  if (comm.getCoordinates() == ArrayRef<int64_t>(ends) &&
      comm.getAxes().empty())
    return success();
  InFlightDiagnostic error =
      op->emitOpError("expected a communicator of messages from ")
      << ends[0] << " to " << ends[1];
  error.attachNote(comm.getLoc()) << "the communicator is here";
  return failure();
}

/// A collective takes place among the ranks of its communicator.
LogicalResult verifyCollective(CollectiveOpInterface op, CommOp comm) {
  bool joins = comm.getCoordinates().size() > 1;
  if (comm.getAxes() == op.getOver() && joins == op->hasAttr("across") &&
      llvm::is_contained(comm.getCoordinates(), getAt(op)))
    return success();
  InFlightDiagnostic error =
      op.emitOpError("expected a communicator over ")
      << op.getOver() << " that "
      << (op->hasAttr("across") ? "joins other coordinates with "
                                : "stays at coordinate ")
      << getAt(op);
  error.attachNote(comm.getLoc()) << "the communicator is here";
  return failure();
}

/// The members of a communicator are distinct.
LogicalResult verifyMembership(CommOp comm) {
  std::set<int64_t> members;
  for (int64_t at : comm.getCoordinates())
    if (!members.insert(at).second)
      return comm.emitOpError("expected distinct coordinates, got ")
             << at << " twice";
  return success();
}

/// What has to be equal at all members of a collective, besides its types.
SmallVector<NamedAttribute> getMeaning(Operation *op) {
  return llvm::filter_to_vector(op->getAttrDictionary(), [](auto attribute) {
    return attribute.getName() != "operandSegmentSizes";
  });
}

InFlightDiagnostic reportMismatch(Operation *op, size_t number,
                                  Operation *other) {
  InFlightDiagnostic error = op->emitOpError("expected number ");
  error << number << " on " << getCommunicator(op)
        << " to agree with coordinate " << getAt(other) << ", which has ";
  error.attachNote(other->getLoc()) << "the other end is here";
  return error;
}

LogicalResult verifyPair(SendOp send, RecvOp recv, size_t number) {
  if (send.getMb() != recv.getMb())
    return reportMismatch(recv, number, send)
           << "microbatch " << send.getMb() << ", got " << recv.getMb();
  if (send.getLabelAttr() != recv.getLabelAttr())
    return reportMismatch(recv, number, send)
           << "value " << send.getLabelAttr() << ", got "
           << recv.getLabelAttr();
  Type sent = send.getValue().getType(), received = recv.getResult().getType();
  if (sent != received)
    return reportMismatch(recv, number, send)
           << "type " << sent << ", got " << received;
  return success();
}

LogicalResult verifyMembers(Operation *first, Operation *op, size_t number) {
  if (isa<SendOp>(first) && isa<RecvOp>(op))
    return verifyPair(cast<SendOp>(first), cast<RecvOp>(op), number);
  if (first->getName() != op->getName() || isa<SendOp, RecvOp>(op))
    return reportMismatch(op, number, first) << "'" << first->getName() << "'";
  auto types = [](Operation *op) {
    return cast<CollectiveOpInterface>(op).getInputs().getTypes();
  };
  if (types(first) != types(op) ||
      first->getResultTypes() != op->getResultTypes())
    return reportMismatch(op, number, first)
           << "type " << types(first) << ", got " << types(op);
  if (getMeaning(first) != getMeaning(op))
    return reportMismatch(op, number, first)
           << "attributes " << first->getAttrDictionary();
  return success();
}

/// Compares the queues of all members with that of the first.
LogicalResult
verifyQueues(CommOp comm,
             const std::map<int64_t, std::vector<Operation *>> &queues) {
  static const std::vector<Operation *> none;
  auto get = [&](int64_t at) -> const std::vector<Operation *> & {
    auto found = queues.find(at);
    return found == queues.end() ? none : found->second;
  };
  const std::vector<Operation *> &first = get(comm.getCoordinates().front());
  for (int64_t at : comm.getCoordinates().drop_front()) {
    const std::vector<Operation *> &queue = get(at);
    for (auto [number, pair] : llvm::enumerate(llvm::zip(first, queue)))
      if (failed(verifyMembers(std::get<0>(pair), std::get<1>(pair), number)))
        return failure();
    if (first.size() == queue.size())
      continue;
    bool here = first.size() > queue.size();
    size_t number = std::min(first.size(), queue.size());
    return (here ? first : queue)[number]->emitOpError("expected number ")
           << number << " on @" << comm.getSymName() << " at coordinate "
           << (here ? at : comm.getCoordinates().front()) << ", too, got only "
           << number << " there";
  }
  return success();
}

} // namespace

LogicalResult verifyMessages(ArrayRef<ProgramOp> programs,
                             SymbolTable &symbols) {
  if (failed(verifyCoordinates(programs)))
    return failure();
  Queues all;
  for (ProgramOp program : programs) {
    for (Operation &op : program.getBlock())
      if (failed(verifyForm(&op)))
        return failure();
    addQueues(program, all);
  }
  for (auto &[name, queues] : all) {
    Operation *any = queues.begin()->second.front();
    auto comm =
        symbols.lookup<CommOp>(cast<FlatSymbolRefAttr>(name).getValue());
    if (!comm)
      return any->emitOpError("expected a communicator, got ") << name;
    if (failed(verifyMembership(comm)))
      return failure();
    for (auto &[at, queue] : queues)
      for (Operation *op : queue) {
        auto collective = dyn_cast<CollectiveOpInterface>(op);
        if (failed(collective ? verifyCollective(collective, comm)
                              : verifyMessage(op, comm)))
          return failure();
      }
    if (failed(verifyQueues(comm, queues)))
      return failure();
  }
  return success();
}

} // namespace piper
