//===- OrderedBlock.cpp - The block of a cluster in issue order
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "passes/materialize/OrderedBlock.h"

#include "mlir/IR/Builders.h"

using namespace mlir;

namespace piper {

bool isContribution(Operation *op) {
  auto sum = dyn_cast<SumOp>(op);
  return sum && sum.getBucketAttr();
}

namespace {

class BlockBuilder {
public:
  BlockBuilder(ClusterOp cluster, const OpGraph &graph, const IssueOrder &order)
      : cluster(cluster), graph(graph), order(order) {}

  void build() {
    Block *old = &cluster.getBlock();
    auto *block = new Block;
    cluster.getBody().push_back(block);
    OpBuilder builder = OpBuilder::atBlockEnd(block);
    made.resize(graph.size());
    findInputs();
    for (auto [index, op] : llvm::enumerate(order.sequence)) {
      if (index + OpGraph::ahead < order.sequence.size())
        prefetch(order.sequence[index + OpGraph::ahead], made);
      if (order.contributes[op])
        continue;
      for (unsigned maker : graph.makers(op))
        if (order.contributes[maker])
          settle(builder,
                 [&](const Pending &entry) { return entry.sum == maker; });
      made[op] = copy(op);
      block->push_back(made[op]);
      for (unsigned user : graph.users(op))
        if (order.contributes[user])
          contribute(builder, op, user);
      if (order.cellOf[op] != IssueOrder::noCell && isa<RunOp>(graph.ops[op]))
        settle(builder, [&](const Pending &entry) {
          return entry.coordinate == order.homes[order.cellOf[op]] &&
                 entry.run != op;
        });
    }
    settle(builder, [](const Pending &) { return true; });
    eraseOps();
    old->erase();
  }

private:
  /// Fetches an op, and what its copy is linked to or it is unlinked from.
  void prefetch(unsigned op, ArrayRef<Operation *> makers) {
    graph.prefetch(op);
    for (unsigned maker : graph.makers(op))
      if (makers[maker])
        OpGraph::prefetchResults(makers[maker]);
  }

  /// Users before makers, so that nothing has uses when it goes.
  void eraseOps() {
    for (size_t number = graph.size(); number-- > 0;) {
      if (number >= OpGraph::ahead)
        prefetch(number - OpGraph::ahead, graph.ops);
      graph.ops[number]->erase();
    }
  }

  Operation *copy(unsigned number) {
    Operation *op = graph.ops[number];
    SmallVector<Value> operands;
    for (auto [maker, result] :
         llvm::zip(graph.operands(number), graph.results(number)))
      operands.push_back(getNew(maker, result));
    return Operation::create(op->getLoc(), op->getName(), op->getResultTypes(),
                             operands, op->getDiscardableAttrDictionary(),
                             op->getPropertiesStorage(), BlockRange(),
                             /*numRegions=*/0);
  }

  /// What stands for a result of an op in the ordered block.
  Value getNew(unsigned maker, unsigned result) {
    auto found = order.shared.find(maker);
    Operation *op = made[found == order.shared.end() ? maker : found->second];
    return op->getResult(result);
  }

  /// What an op contributes to a sum, to be added behind another cell.
  struct Pending {
    unsigned op, sum;
    int64_t coordinate;
    unsigned run; // that it is a contribution of
  };

  /// Adds what a run contributes at once, and what ranks reduce of it later.
  void contribute(OpBuilder &builder, unsigned op, unsigned sum) {
    if (!isa<CollectiveOpInterface>(graph.ops[op]))
      return accumulate(builder, op, sum);
    unsigned run = op;
    while (order.cellOf[run] == IssueOrder::noCell)
      run = graph.makers(run).front();
    pending.push_back({op, sum, order.homes[order.cellOf[run]], run});
  }

  /// Adds the pending contributions that a predicate holds for.
  void settle(OpBuilder &builder,
              llvm::function_ref<bool(const Pending &)> holds) {
    for (const Pending &entry : pending)
      if (holds(entry))
        accumulate(builder, entry.op, entry.sum);
    llvm::erase_if(pending, holds);
  }

  /// Adds what an op contributes to a sum.
  void accumulate(OpBuilder &builder, unsigned op, unsigned number) {
    auto sum = cast<SumOp>(graph.ops[number]);
    for (unsigned at = firstInput[op]; at != none; at = inputs[at].next) {
      if (inputs[at].sum != number)
        continue;
      Value onto = made[number] ? made[number]->getResult(0) : Value();
      made[number] = AccumulateOp::create(
          builder, graph.ops[op]->getLoc(), sum.getResult().getType(),
          sum.getBucketAttr(), getNew(op, inputs[at].result), onto,
          sum.getAtAttr(), ValueRange());
    }
  }

  /// An input of a sum, in a list of those that one op makes.
  struct Input {
    unsigned sum, result, next;
  };
  static constexpr unsigned none = ~0u;

  /// Notes the inputs of sums by the ops that make them. A sum has an input per
  /// microbatch, so they are not looked for among its operands.
  void findInputs() {
    firstInput.assign(graph.size(), none);
    for (unsigned sum = graph.size(); sum-- > 0;) {
      if (!order.contributes[sum])
        continue;
      for (auto [maker, result] :
           llvm::reverse(llvm::zip(graph.operands(sum), graph.results(sum)))) {
        inputs.push_back({sum, result, firstInput[maker]});
        firstInput[maker] = inputs.size() - 1;
      }
    }
  }

  ClusterOp cluster;
  const OpGraph &graph;
  const IssueOrder &order;
  std::vector<Operation *> made; // by op, in the ordered block
  std::vector<Input> inputs;
  std::vector<unsigned> firstInput; // by op
  SmallVector<Pending> pending;
};

} // namespace

void buildOrderedBlock(ClusterOp cluster, const OpGraph &graph,
                       const IssueOrder &order) {
  BlockBuilder(cluster, graph, order).build();
}

} // namespace piper
