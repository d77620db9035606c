//===- AssignKinds.cpp - Say what ranks along manual axes hold of each value
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

// Inputs differ along the data axes and states do not, unless ranks share them
// out; a launch mixes what it is given. A rank's loss and count are its share
// of the total, hence partial.

#include "passes/Passes.h"

#include "dialect/Layouts.h"
#include "mlir/IR/Builders.h"

using namespace mlir;

namespace piper {

#define GEN_PASS_DEF_ASSIGNKINDSPASS
#include "passes/Passes.h.inc"

namespace {

void setKinds(Value value, LayoutAttr layout) {
  value.setType(withKinds(value.getType(), layout));
}

/// Assigns kinds within one step and the chunks that it runs.
class KindAssigner {
public:
  KindAssigner(StepOp step, SymbolTable &symbols, MeshOp mesh)
      : step(step), symbols(symbols),
        replicated(mesh.getRankLayout(Kind::Replicated)),
        partial(mesh.getRankLayout(Kind::Partial)) {}

  void run() {
    for (auto [argument, dim] :
         llvm::zip(step.getBody().getArguments(), step.getDims()))
      setKinds(argument, dim >= 0 ? getSplit() : replicated);
    for (Operation &op : step.getBlock()) {
      if (auto tangent = dyn_cast<TangentOp>(op))
        setKinds(tangent.getResult(), replicated);
      else if (auto run = dyn_cast<RunOp>(op))
        assignRun(run);
      else if (auto exchange = dyn_cast<CollectiveOpInterface>(op))
        assignExchange(exchange);
    }
  }

private:
  /// Varying on the data axes.
  LayoutAttr getSplit() {
    LayoutAttr layout = replicated;
    for (auto axis : step.getAxes()
                         .value_or(ArrayAttr::get(step.getContext(), {}))
                         .getAsRange<StringAttr>())
      layout = layout.withKind(axis, Kind::Varying);
    return layout;
  }

  /// What is exchanged is what the exchange takes: an unfinished sum, or a part
  /// of a dim. A launch makes no such kinds, so the chunk says it.
  void assignExchange(CollectiveOpInterface op) {
    Value input = op.getInputs().front(), result = op.getTensors().front();
    LayoutAttr given = getLayout(input.getType()), made = given;
    for (auto axis : op.getOver().getAsRange<StringAttr>()) {
      if (auto gather = dyn_cast<AllGatherOp>(op.getOperation()))
        given = given.withKind(axis, Kind::Shard, gather.getDim());
      else if (isa<AllReduceOp, ReduceScatterOp>(op))
        given = given.withKind(axis, Kind::Partial);
      if (auto scatter = dyn_cast<ReduceScatterOp>(op.getOperation()))
        made = made.withKind(axis, Kind::Shard, scatter.getDim());
      else if (!isa<AllToAllOp>(op))
        made = made.withKind(axis, Kind::Replicated);
    }
    if (given != getLayout(input.getType()))
      relabelResult(input, given);
    setKinds(result, made);
  }

  /// Lets the chunk that makes a value give it another kind.
  void relabelResult(Value value, LayoutAttr layout) {
    auto run = value.getDefiningOp<RunOp>();
    auto chunk = symbols.lookup<ChunkOp>(run.getChunk());
    auto returned = cast<ReturnOp>(chunk.getBody().front().back());
    relabel(returned, cast<OpResult>(value).getResultNumber(), layout);
    finish(run, chunk, returned);
  }

  /// What ranks hold of a state.
  LayoutAttr getHeld(ReadOp read) {
    LayoutAttr own = symbols.lookup<StateOp>(read.getSymbol()).getLayoutAttr();
    return own ? own : replicated;
  }

  void assignRun(RunOp run) {
    auto chunk = symbols.lookup<ChunkOp>(run.getChunk());
    Block &block = chunk.getBody().front();
    for (auto [argument, operand] :
         llvm::zip(block.getArguments(), run.getInputs()))
      argument.setType(operand.getType());
    for (Operation &op : block) {
      if (auto read = dyn_cast<ReadOp>(op))
        setKinds(read.getResult(), getHeld(read));
      else if (auto launch = dyn_cast<LaunchOp>(op))
        for (Value result : launch.getResults())
          setKinds(result, mixKinds(launch.getInputs(), replicated));
    }
    auto returned = cast<ReturnOp>(block.back());
    for (auto [index, result] : llvm::enumerate(run.getResults()))
      if (isShareOfTotal(result))
        relabel(returned, index, partial);
    finish(run, chunk, returned);
  }

  /// Makes the types of a chunk and of its run those of what it returns.
  static void finish(RunOp run, ChunkOp chunk, ReturnOp returned) {
    for (auto [result, value] :
         llvm::zip(run.getResults(), returned.getValues()))
      result.setType(value.getType());
    chunk.setFunctionType(FunctionType::get(
        chunk.getContext(), chunk.getBody().front().getArgumentTypes(),
        returned.getValues().getTypes()));
  }

  /// Whether a value is a loss or a count.
  static bool isShareOfTotal(Value value) {
    return llvm::any_of(value.getUses(), [](OpOperand &use) {
      auto output = dyn_cast<OutputOp>(use.getOwner());
      return isa<TangentOp>(use.getOwner()) ||
             (output && output.getValue() == use.get());
    });
  }

  static void relabel(ReturnOp returned, size_t index, LayoutAttr layout) {
    OpBuilder builder(returned);
    Value value = returned.getOperand(index);
    auto renamed = RelabelOp::create(builder, value.getLoc(),
                                     withKinds(value.getType(), layout), value);
    returned.setOperand(index, renamed);
  }

  StepOp step;
  SymbolTable &symbols;
  LayoutAttr replicated, partial;
};

class AssignKindsPass : public impl::AssignKindsPassBase<AssignKindsPass> {
  void runOnOperation() override {
    MeshOp mesh = findMesh(getOperation());
    if (!mesh || mesh.getRankAxes().empty())
      return;
    SymbolTable symbols(getOperation());
    for (auto step : getOperation().getOps<StepOp>())
      if (step.getPhase() == Phase::Outlined)
        KindAssigner(step, symbols, mesh).run();
  }
};

} // namespace
} // namespace piper
