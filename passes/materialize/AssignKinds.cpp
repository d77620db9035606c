//===- AssignKinds.cpp - Say what ranks along manual axes hold of each value
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

// Inputs differ along the data axes and states do not, unless ranks share them
// out; a launch mixes what it is given. A rank's loss and count are its share
// of the total, hence partial. What a backward chunk returns as a gradient is
// the dual of its primal, which the launch does not know:
//
//   pos: R  ──► add ──► x: V        each rank has a term of pos's gradient, as
//   tok: V  ──►                     of a state's: P. In its backward chunk the
//                                   term is a rank's own value again: V
//
// Along auto axes nothing is relabelled: what ranks hold there follows from the
// rules of ops, and has to be what exchanges take.

#include "passes/Passes.h"
#include "passes/support/AxisKinds.h"

#include "dialect/Layouts.h"
#include "mlir/IR/Builders.h"
#include "llvm/ADT/SetVector.h"

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
  KindAssigner(StepOp step, SymbolTable &symbols, MeshOp mesh,
               KernelKinds &kernels)
      : step(step), symbols(symbols), mesh(mesh), kernels(kernels),
        replicated(mesh.getRankLayout(Kind::Replicated)) {}

  LogicalResult run() {
    for (auto [argument, dim] :
         llvm::zip(step.getBody().getArguments(), step.getDims()))
      setKinds(argument, dim >= 0 ? getSplit() : replicated);
    findPrimals();
    for (Operation &op : step.getBlock()) {
      if (auto tangent = dyn_cast<TangentOp>(op))
        setKinds(tangent.getResult(), replicated);
      else if (auto run = dyn_cast<RunOp>(op))
        assignRun(run);
      else if (auto exchange = dyn_cast<CollectiveOpInterface>(op);
               exchange && failed(assignExchange(exchange)))
        return failure();
    }
    return success();
  }

private:
  /// Finds what the gradients that runs take and return are gradients of.
  void findPrimals() {
    llvm::DenseMap<Attribute, RunOp> runs; // by chunk
    for (auto run : step.getBlock().getOps<RunOp>()) {
      runs[run.getChunkAttr()] = run;
      auto chunk = symbols.lookup<ChunkOp>(run.getChunk());
      RunOp forward = runs.lookup(chunk.getOfAttr());
      if (!forward)
        continue;
      auto note = [&](std::optional<ArrayRef<int64_t>> duals,
                      ValueRange gradients, ValueRange primals) {
        for (auto [dual, gradient] :
             llvm::zip(duals.value_or(ArrayRef<int64_t>()), gradients))
          if (dual != ChunkOp::noDual)
            primalsOf[skipExchanges(gradient)].insert(primals[dual]);
      };
      note(chunk.getDualResults(), run.getInputs(), forward.getResults());
      note(chunk.getDualOperands(), run.getResults(), forward.getInputs());
    }
  }

  /// What was exchanged along axes that are not manual: kinds on these stay.
  static Value skipExchanges(Value value) {
    while (auto op = value.getDefiningOp<CollectiveOpInterface>())
      value = op.getInputs().front();
    return value;
  }

  /// The kinds of a gradient of a type: on manual axes the duals of its
  /// primal's. Null if it is none, or that of values of different kinds.
  LayoutAttr getDual(Value gradient, Type type) {
    LayoutAttr found;
    for (Value primal : primalsOf.lookup(skipExchanges(gradient))) {
      LayoutAttr kinds = getDual(primal.getType(), type);
      if (!kinds || (found && found != kinds))
        return {};
      found = kinds;
    }
    return found;
  }

  /// Null if a view lies between a primal and its gradient and the primal is a
  /// part of a dim, which the gradient may not have.
  LayoutAttr getDual(Type primal, Type gradient) {
    LayoutAttr kinds = getLayout(gradient),
               duals = dual(getLayout(primal), mesh);
    if (!kinds || !duals)
      return {};
    for (AxisKindAttr axis : duals.getAxes()) {
      if (!isManual(axis.getAxis()))
        continue;
      if (axis.getKind() == Kind::Shard && !haveSameShape(primal, gradient))
        return {};
      kinds = kinds.withKind(axis.getAxis(), axis.getKind(), axis.getDim());
    }
    return kinds;
  }

  static bool haveSameShape(Type a, Type b) {
    return cast<ShapedType>(a).getShape() == cast<ShapedType>(b).getShape();
  }

  /// Varying on the data axes.
  LayoutAttr getSplit() {
    LayoutAttr layout = replicated;
    for (auto axis : step.getAxes()
                         .value_or(ArrayAttr::get(step.getContext(), {}))
                         .getAsRange<StringAttr>())
      layout = layout.withKind(axis, Kind::Varying);
    return layout;
  }

  bool isManual(StringAttr axis) {
    return mesh.lookupAxis(axis).getRole() == AxisRole::Manual;
  }

  /// What is exchanged along a manual axis is what the exchange takes: an
  /// unfinished sum, or a part of a dim. A launch makes no such kinds, so the
  /// chunk says it.
  LogicalResult assignExchange(CollectiveOpInterface op) {
    Value input = op.getInputs().front(), result = op.getTensors().front();
    LayoutAttr own = getLayout(input.getType()), given = own, made = own;
    for (auto axis : op.getOver().getAsRange<StringAttr>()) {
      if (auto gather = dyn_cast<AllGatherOp>(op.getOperation()))
        given = given.withKind(axis, Kind::Shard, gather.getDim());
      else if (isa<AllReduceOp, ReduceScatterOp>(op))
        given = given.withKind(axis, Kind::Partial);
      if (auto scatter = dyn_cast<ReduceScatterOp>(op.getOperation()))
        made = made.withKind(axis, Kind::Shard, scatter.getDim());
      else if (!isa<AllToAllOp>(op))
        made = made.withKind(axis, Kind::Replicated);
      if (isManual(axis) && own.getKind(axis) != Kind::Varying &&
          own.getKind(axis) != given.getKind(axis))
        return op.emitOpError("expected an operand that is varying on axis '")
               << axis.getValue() << "', got "
               << stringifyKind(own.getKind(axis));
    }
    if (given != own && failed(relabelResult(op, input, given)))
      return failure();
    setKinds(result, made);
    return success();
  }

  /// Lets the chunk that makes a value give it another kind.
  LogicalResult relabelResult(Operation *op, Value value, LayoutAttr layout) {
    auto run = value.getDefiningOp<RunOp>();
    if (!run)
      return op->emitOpError("expected to exchange what a chunk makes");
    auto chunk = symbols.lookup<ChunkOp>(run.getChunk());
    auto returned = cast<ReturnOp>(chunk.getBody().front().back());
    relabel(returned, cast<OpResult>(value).getResultNumber(), layout);
    finish(run, chunk, returned);
    return success();
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
    takeTerms(run, block);
    for (Operation &op : block) {
      if (auto read = dyn_cast<ReadOp>(op))
        setKinds(read.getResult(), getHeld(read));
      else if (auto launch = dyn_cast<LaunchOp>(op))
        assignLaunch(launch);
    }
    auto returned = cast<ReturnOp>(block.back());
    for (auto [index, result] : llvm::enumerate(run.getResults()))
      if (isShareOfTotal(result))
        relabel(returned, index, getShare(returned.getOperand(index)));
      else if (Type own = returned.getOperand(index).getType();
               LayoutAttr duals = getDual(result, own))
        if (duals != getLayout(own))
          relabel(returned, index, duals);
    finish(run, chunk, returned);
    if (chunk.getOf())
      forgetShared(run, chunk);
  }

  void assignLaunch(LaunchOp launch) {
    auto kernel = symbols.lookup<KernelOp>(launch.getKernel());
    for (auto [result, kinds] :
         llvm::zip(launch.getResults(),
                   kernels.getLayouts(kernel, mesh, launch.getInputs())))
      setKinds(result, kinds);
  }

  /// Partial on manual axes.
  LayoutAttr getShare(Value value) {
    LayoutAttr kinds = getLayout(value.getType());
    for (AxisKindAttr axis : kinds.getAxes())
      if (isManual(axis.getAxis()))
        kinds = kinds.withKind(axis.getAxis(), Kind::Partial);
    return kinds;
  }

  /// A term of a gradient, to a backward chunk, is a value of a rank's own: it
  /// is linear in it.
  void takeTerms(RunOp run, Block &block) {
    auto builder = OpBuilder::atBlockBegin(&block);
    for (auto [argument, operand] :
         llvm::zip(block.getArguments(), run.getInputs())) {
      LayoutAttr own = getLayout(argument.getType()), kinds = own;
      if (!own || !primalsOf.contains(skipExchanges(operand)))
        continue;
      for (AxisKindAttr axis : own.getAxes())
        if (axis.getKind() == Kind::Partial && isManual(axis.getAxis()))
          kinds = kinds.withKind(axis.getAxis(), Kind::Varying);
      if (kinds == own)
        continue;
      auto term =
          RelabelOp::create(builder, argument.getLoc(),
                            withKinds(argument.getType(), kinds), argument);
      argument.replaceAllUsesExcept(term, term);
    }
  }

  /// A value that is the gradient of values of different kinds has the kind of
  /// none of them; nor has a tangent, the same on all ranks, where it is that
  /// of a varying value.
  void forgetShared(RunOp run, ChunkOp chunk) {
    auto hasKind = [&](Value value) {
      LayoutAttr duals = getDual(value, value.getType());
      return duals && (!value.getDefiningOp<TangentOp>() ||
                       duals == getLayout(value.getType()));
    };
    auto keep = [&](std::optional<ArrayRef<int64_t>> duals, ValueRange values) {
      SmallVector<int64_t> kept(duals.value_or(ArrayRef<int64_t>()));
      for (auto [dual, value] : llvm::zip(kept, values))
        if (dual != ChunkOp::noDual && !hasKind(value))
          dual = ChunkOp::noDual;
      return kept;
    };
    chunk.setDuals(keep(chunk.getDualResults(), run.getInputs()),
                   keep(chunk.getDualOperands(), run.getResults()));
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
  MeshOp mesh;
  KernelKinds &kernels;
  LayoutAttr replicated;
  // What a value of the step is the cotangent of, or a term of it.
  llvm::DenseMap<Value, llvm::SetVector<Value>> primalsOf;
};

class AssignKindsPass : public impl::AssignKindsPassBase<AssignKindsPass> {
  void runOnOperation() override {
    MeshOp mesh = findMesh(getOperation());
    if (!mesh || mesh.getRankAxes().empty())
      return;
    SymbolTable symbols(getOperation());
    if (failed(checkSteps(getOperation(), symbols)))
      return signalPassFailure();
    KernelKinds kernels;
    for (auto step : getOperation().getOps<StepOp>())
      if (step.getPhase() == Phase::Outlined &&
          failed(KindAssigner(step, symbols, mesh, kernels).run()))
        return signalPassFailure();
  }
};

} // namespace
} // namespace piper
