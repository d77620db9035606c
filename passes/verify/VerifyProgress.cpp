//===- VerifyProgress.cpp - Every instruction finishes
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

// An instruction waits for the one before it on its stream, for the events it
// lists, for what makes its operands and for the last wait of the host. Both
// ends of a message, and all members of a collective, are one node: none
// finishes without the others. The programs finish if and only if this graph
// has no cycle.
//
// On a device that runs one message or collective at a time, all communication
// of a program is one stream.

#include "passes/verify/Verify.h"

#include "llvm/ADT/DenseMap.h"

#include <deque>

using namespace mlir;

namespace piper {

namespace {

enum class Reason { Stream, Queue, Event, Value, Host };

/// Instruction `to` waits for instruction `from` of the same program.
struct Wait {
  unsigned from, to;
  Reason reason;
};

/// Waits sorted by one of their nodes.
class Index {
public:
  template <typename Key>
  Index(ArrayRef<Wait> waits, size_t numNodes, Key key)
      : starts(numNodes + 1), order(waits.size()) {
    for (const Wait &wait : waits)
      ++starts[key(wait) + 1];
    for (size_t node = 0; node < numNodes; ++node)
      starts[node + 1] += starts[node];
    std::vector<size_t> next(starts.begin(), starts.end() - 1);
    for (auto [index, wait] : llvm::enumerate(waits))
      order[next[key(wait)]++] = index;
  }

  ArrayRef<size_t> operator[](size_t node) const {
    return ArrayRef(order).slice(starts[node], starts[node + 1] - starts[node]);
  }

private:
  std::vector<size_t> starts, order;
};

class WaitGraph {
public:
  WaitGraph(ArrayRef<ProgramOp> programs, bool singleQueue)
      : singleQueue(singleQueue) {
    for (ProgramOp program : programs)
      addProgram(program);
    mergeEnds();
  }

  /// Waits that form a cycle, each for the next; empty if all can finish.
  std::vector<Wait> findCycle() const {
    std::vector<bool> stuck = findStuck();
    Index incoming(waits, numNodes,
                   [&](const Wait &w) { return nodeOf[w.to]; });
    auto start = llvm::find(stuck, true);
    if (start == stuck.end())
      return {};
    // Whoever is stuck waits for somebody stuck: walking back gets into a
    // cycle.
    std::vector<bool> visited(numNodes);
    unsigned node = start - stuck.begin();
    while (!visited[node]) {
      visited[node] = true;
      for (size_t index : incoming[node])
        if (stuck[nodeOf[waits[index].from]]) {
          node = nodeOf[waits[index].from];
          break;
        }
    }
    return shortestCycle(node, stuck, incoming);
  }

  Operation *getOp(unsigned id) const { return ops[id]; }

  /// The place of an instruction in its program.
  unsigned getNumber(unsigned id) const { return numbers[id]; }

private:
  void addProgram(ProgramOp program) {
    llvm::DenseMap<Attribute, unsigned> last; // by stream
    llvm::DenseMap<Operation *, unsigned> ids;
    std::optional<unsigned> lastHostWait;
    for (auto [number, op] : llvm::enumerate(program.getBlock())) {
      unsigned id = ops.size();
      ids[&op] = id;
      ops.push_back(&op);
      numbers.push_back(number);
      for (Value operand : op.getOperands())
        waits.push_back({ids[operand.getDefiningOp()], id,
                         isa<EventType>(operand.getType()) ? Reason::Event
                                                           : Reason::Value});
      if (lastHostWait)
        waits.push_back({*lastHostWait, id, Reason::Host});
      if (isa<HostWaitOp>(op)) {
        lastHostWait = id;
        continue;
      }
      if (auto update = dyn_cast<UpdateOp>(op); update && update.getSkip())
        lastHostWait = id; // the host reads what it says
      Attribute stream = getCommunicator(&op);
      if (stream)
        queues[stream][program.getAt()].push_back(id);
      bool shares = singleQueue && stream;
      if (shares)
        stream = UnitAttr::get(op.getContext());
      auto [before, fresh] = last.try_emplace(stream, id);
      if (!fresh)
        waits.push_back(
            {before->second, id, shares ? Reason::Queue : Reason::Stream});
      before->second = id;
    }
  }

  /// Gives the same node to the ends of what has one number on a communicator.
  void mergeEnds() {
    constexpr unsigned unset = ~0u;
    std::vector<unsigned> firstEnd(ops.size(), unset);
    for (auto &[comm, ends] : queues)
      for (auto &[at, queue] : ends)
        for (auto [end, other] : llvm::zip(ends.begin()->second, queue))
          firstEnd[other] = end;
    nodeOf.assign(ops.size(), unset);
    for (size_t id = 0; id < ops.size(); ++id) {
      size_t end = firstEnd[id] == unset ? id : firstEnd[id];
      if (nodeOf[end] == unset)
        nodeOf[end] = numNodes++;
      nodeOf[id] = nodeOf[end];
    }
  }

  /// The nodes that are left when whoever waits for nobody has finished.
  std::vector<bool> findStuck() const {
    Index outgoing(waits, numNodes,
                   [&](const Wait &wait) { return nodeOf[wait.from]; });
    std::vector<unsigned> pending(numNodes), ready;
    for (const Wait &wait : waits)
      ++pending[nodeOf[wait.to]];
    for (size_t node = 0; node < numNodes; ++node)
      if (pending[node] == 0)
        ready.push_back(node);
    std::vector<bool> stuck(numNodes, true);
    while (!ready.empty()) {
      unsigned node = ready.back();
      ready.pop_back();
      stuck[node] = false;
      for (size_t index : outgoing[node])
        if (--pending[nodeOf[waits[index].to]] == 0)
          ready.push_back(nodeOf[waits[index].to]);
    }
    return stuck;
  }

  /// A shortest cycle through `start`, searched breadth first.
  std::vector<Wait> shortestCycle(unsigned start,
                                  const std::vector<bool> &stuck,
                                  const Index &incoming) const {
    llvm::DenseMap<unsigned, size_t> via; // the wait that led to a node
    std::deque<unsigned> queue = {start};
    while (!via.contains(start)) {
      unsigned node = queue.front();
      queue.pop_front();
      for (size_t index : incoming[node]) {
        unsigned from = nodeOf[waits[index].from];
        if (stuck[from] && via.try_emplace(from, index).second)
          queue.push_back(from);
      }
    }
    std::vector<Wait> cycle;
    unsigned node = start;
    do {
      cycle.push_back(waits[via[node]]);
      node = nodeOf[cycle.back().to];
    } while (node != start);
    std::reverse(cycle.begin(), cycle.end());
    return cycle;
  }

  bool singleQueue;
  std::vector<Operation *> ops;  // of all programs
  std::vector<unsigned> numbers; // of ops in their programs
  std::vector<Wait> waits;
  /// The instructions of each communicator, by coordinate, in issue order.
  llvm::MapVector<Attribute, std::map<int64_t, std::vector<unsigned>>> queues;
  std::vector<unsigned> nodeOf; // by instruction
  size_t numNodes = 0;
};

/// Joins waits along one stream: the links between say nothing.
std::vector<Wait> skipAlongStreams(ArrayRef<Wait> cycle) {
  std::vector<Wait> links;
  for (const Wait &wait : cycle) {
    bool follows =
        !links.empty() && links.back().reason == wait.reason &&
        (wait.reason == Reason::Stream || wait.reason == Reason::Queue) &&
        links.back().from == wait.to;
    if (follows)
      links.back().from = wait.from;
    else
      links.push_back(wait);
  }
  return links;
}

StringRef explain(Reason reason) {
  switch (reason) {
  case Reason::Stream:
    return "which comes before it on its stream";
  case Reason::Queue:
    return "which comes before it in the queue of all communication";
  case Reason::Event:
    return "whose event it lists";
  case Reason::Value:
    return "which makes its operand";
  case Reason::Host:
    return "which blocks the host";
  }
  llvm_unreachable("unknown reason");
}

} // namespace

InFlightDiagnostic emitContainerError(Operation *op) {
  return emitError(op->getLoc()) << "'" << op->getName() << "' op ";
}

std::string describe(Operation *op) {
  std::string text;
  llvm::raw_string_ostream os(text);
  os << "'" << op->getName() << "'";
  for (StringRef name :
       {"chunk", "bucket", "symbol", "input", "name", "loss", "label"})
    if (Attribute which = op->getAttr(name)) {
      os << " of " << which;
      break;
    }
  if (auto mb = op->getAttrOfType<IntegerAttr>("mb"))
    os << " for microbatch " << mb.getInt();
  if (Attribute comm = getCommunicator(op))
    os << " on " << comm;
  return text;
}

std::string describe(Value value) {
  auto result = cast<OpResult>(value);
  return "result " + std::to_string(result.getResultNumber()) + " of " +
         describe(result.getOwner());
}

LogicalResult verifyProgress(ArrayRef<ProgramOp> programs, bool singleQueue) {
  WaitGraph graph(programs, singleQueue);
  std::vector<Wait> cycle = skipAlongStreams(graph.findCycle());
  if (cycle.empty())
    return success();
  ProgramOp program = programs.front();
  InFlightDiagnostic error = emitContainerError(program);
  error << "expected all programs of " << program.getOfAttr() << " to finish";
  if (singleQueue)
    error << " where all communication of a rank shares one queue";
  error << ", got instructions that wait for each other";
  unsigned last = cycle.back().from;
  for (const Wait &wait : cycle) {
    Operation *op = graph.getOp(wait.to);
    error.attachNote(op->getLoc())
        << "coordinate " << cast<ProgramOp>(op->getParentOp()).getAt()
        << ", number " << graph.getNumber(wait.to) << ": " << describe(op)
        << (wait.to == last ? "" : ", the other end,") << " waits for number "
        << graph.getNumber(wait.from) << ", "
        << describe(graph.getOp(wait.from)) << ", " << explain(wait.reason);
    last = wait.from;
  }
  return failure();
}

} // namespace piper
