//===- Recompute.cpp - What a backward pass computes again
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

// The choice is a minimum cut between what exists after pass F and what pass B
// uses. A value is an edge, and cutting it is keeping it, which costs the bytes
// of its storage. The other edges cannot be cut: they lead from the source to
// what cannot be computed again, from the operands of an op to its results if
// it can, and from what pass B uses to the sink.
//
//   x = mm(...)     heavy: cannot      source ──► x ┄4┄ x ─────────────► sink
//   y = gelu(x)     can                                  └──► y ┄4┄ y ──► sink
//   pass B uses both                   cut x alone: keep x, compute y again
//
// States, inputs, preambles and tangents are there anyway and have no edges.
// The approach is that of He and Yu, "Transcending runtime-memory tradeoffs in
// checkpointing by being fusion aware" (MLSys 2023). Of several minimum cuts
// the one nearest to pass B is taken: it is unique, and computes the least
// again.

#include "passes/outline/Recompute.h"

#include "dialect/Layouts.h"
#include "passes/outline/MinCut.h"
#include "passes/support/ChunkBuilder.h"

using namespace mlir;

namespace piper {

bool RematPolicy::allows(TorchOp op) const {
  if (name == "save" || (name == "min_cut" && op.getFacts().getHeavy()))
    return false;
  return !ops || llvm::any_of(*ops, [&](const llvm::GlobPattern &glob) {
    return glob.match(op.getOpName());
  });
}

/// The tag of a torch op or of a gradient.
static TagAttr getTag(Operation &op) {
  if (auto torch = dyn_cast<TorchOp>(op))
    return torch.getTagAttr();
  auto grad = dyn_cast<GradOp>(op);
  return grad ? grad.getTagAttr() : TagAttr();
}

void findPairs(StepOp step, SmallVectorImpl<ChunkPair> &pairs) {
  llvm::MapVector<StringAttr, ChunkPair> chunks;
  for (Operation &op : step.getBlock()) {
    TagAttr tag = getTag(op);
    if (!tag)
      continue;
    ChunkPair &pair = chunks[tag.getChunk()];
    pair.name = tag.getChunk();
    if (auto torch = dyn_cast<TorchOp>(op); torch && tag.getPass() == Pass::F)
      pair.forward.push_back(torch);
    else if (tag.getPass() == Pass::B)
      pair.backward.push_back(&op);
  }
  for (auto &[name, pair] : chunks)
    if (!pair.forward.empty() && !pair.backward.empty())
      pairs.push_back(std::move(pair));
}

void findWritten(StepOp step, llvm::DenseSet<Value> &written) {
  for (auto op : step.getBlock().getOps<TorchOp>())
    if (op.getFacts().getEffect() == Effect::Mutating)
      for (Value input : op.getInputs())
        written.insert(getRoot(input));
}

namespace {

/// Whether pass B computes the results of an op again.
enum class Again { No, Maybe, Yes };

/// The op of pass F, of any chunk, that makes a value; or null.
TorchOp getForwardOp(Value root) {
  auto op = root.getDefiningOp<TorchOp>();
  bool isForward = op && op.getTag() && op.getTag()->getPass() == Pass::F;
  return isForward ? op : TorchOp();
}

/// Says of each op of pass F that is no view if it is computed again.
class Classifier {
public:
  Classifier(const RematPolicy &policy, const llvm::DenseSet<Value> &written)
      : policy(policy), written(written) {}

  llvm::DenseMap<Operation *, Again> run(ArrayRef<TorchOp> forward) {
    for (TorchOp op : forward) // operands before users
      if (!op.isView())
        again[op] = classify(op);
    return std::move(again);
  }

private:
  Again classify(TorchOp op) {
    // What draws random numbers or writes does something else the second time.
    if (op.getFacts().getEffect() != Effect::Pure || touchesWritten(op))
      return Again::No;
    if (op.getRecompute())
      return Again::Yes;
    if (!policy.allows(op))
      return Again::No;
    if (policy.name == "full")
      return Again::Yes;
    return llvm::all_of(op.getInputs(), [&](Value v) { return isExact(v); })
               ? Again::Maybe
               : Again::No;
  }

  bool touchesWritten(TorchOp op) {
    auto isWritten = [&](Value value) {
      return written.contains(getRoot(value));
    };
    return llvm::any_of(op->getOperands(), isWritten) ||
           llvm::any_of(op->getResults(), isWritten);
  }

  /// Whether what pass B has of an operand is good enough to compute with. What
  /// the model marks ends at the first op that it does not mark, so that no
  /// more is computed again than it asks for. A strided value is kept as a
  /// contiguous copy, and what is computed from a copy may be rounded
  /// otherwise.
  bool isExact(Value input) {
    TorchOp maker = getForwardOp(getRoot(input));
    auto found = again.find(maker);
    if (!maker || found == again.end())
      return true;
    return !maker.getRecompute() &&
           !(maker.getFacts().getStrided() && found->second == Again::No);
  }

  const RematPolicy &policy;
  const llvm::DenseSet<Value> &written;
  llvm::DenseMap<Operation *, Again> again;
};

/// The graph of the values that pass B of a chunk needs, and of what they are
/// made from.
class ValueGraph {
public:
  explicit ValueGraph(llvm::DenseMap<Operation *, Again> again)
      : again(std::move(again)), source(graph.addNode()),
        sink(graph.addNode()) {}

  /// Pass B uses `root`.
  void addUse(Value root) {
    if (getForwardOp(root) && used.insert(root).second)
      graph.addEdge(add(root) + 1, sink, FlowGraph::unlimited);
  }

  /// The values that are not kept.
  llvm::DenseSet<Value> cut() {
    for (size_t i = 0; i < values.size(); ++i) // grows meanwhile
      addMaker(values[i]);
    llvm::BitVector late = graph.cutNearSink(source, sink);
    llvm::DenseSet<Value> chosen;
    for (Value value : values)
      if (late.test(numbers.lookup(value)))
        chosen.insert(value);
    return chosen;
  }

private:
  Again getAgain(TorchOp op) {
    auto found = again.find(op);
    return found == again.end() ? Again::No : found->second;
  }

  /// Adds a value unless it is known; returns its first node, behind which the
  /// second one stands.
  unsigned add(Value root) {
    auto [entry, fresh] = numbers.try_emplace(root, 0);
    if (!fresh)
      return entry->second;
    values.push_back(root);
    unsigned node = entry->second = graph.addNode();
    bool canKeep = getAgain(getForwardOp(root)) != Again::Yes;
    graph.addEdge(node, graph.addNode(),
                  canKeep ? getNumBytes(root.getType()) : FlowGraph::unlimited);
    return node;
  }

  /// Adds what the op that makes a value needs. A strided value can only be
  /// kept as a copy, so what is computed from it needs the value itself.
  void addMaker(Value value) {
    TorchOp op = getForwardOp(value);
    unsigned node = numbers.lookup(value);
    if (getAgain(op) == Again::No) {
      graph.addEdge(source, node, FlowGraph::unlimited);
      return;
    }
    for (Value input : op.getInputs()) {
      Value root = getRoot(input);
      TorchOp maker = getForwardOp(root);
      if (!maker)
        continue;
      bool keepsCopy =
          maker.getFacts().getStrided() && getAgain(maker) != Again::No;
      unsigned from = add(root);
      graph.addEdge(keepsCopy ? from : from + 1, node, FlowGraph::unlimited);
    }
  }

  llvm::DenseMap<Operation *, Again> again;
  FlowGraph graph;
  unsigned source, sink;
  std::vector<Value> values;
  llvm::DenseMap<Value, unsigned> numbers; // the first node of each
  llvm::DenseSet<Value> used;
};

} // namespace

llvm::DenseSet<Value> chooseRecomputed(const ChunkPair &pair,
                                       const RematPolicy &policy,
                                       const llvm::DenseSet<Value> &written) {
  ValueGraph graph(Classifier(policy, written).run(pair.forward));
  for (Operation *op : pair.backward)
    if (auto torch = dyn_cast<TorchOp>(op); !torch || !torch.isView())
      for (Value operand : op->getOperands())
        graph.addUse(getRoot(operand));
  return graph.cut();
}

} // namespace piper
