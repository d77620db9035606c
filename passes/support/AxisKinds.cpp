//===- AxisKinds.cpp - Check what ranks along one axis hold of values
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

// Ranks along an auto axis have one batch, so inputs are replicated; along a
// manual one that shares out the sequence they are parts of it. From there
// kinds follow from what states hold, from kernels and from exchanges:
//
//   all_reduce        partial into replicated
//   reduce_scatter    partial into a shard
//   all_gather        a shard into replicated
//   gradient          as its state is, or its dual along a manual axis
//   report, count     replicated, or partial along a manual axis
//
// Chunks pass on what is known, so that where kinds are lost is found in the
// chunk that loses them.

#include "passes/support/AxisKinds.h"

#include "passes/support/Facts.h"

#include "dialect/Layouts.h"

using namespace mlir;

namespace piper {

/// The op of a kernel that makes a value of a step or chunk; or null.
static TorchOp findMaker(Value value, SymbolTable &symbols) {
  while (auto result = dyn_cast<OpResult>(value)) {
    Operation *op = result.getOwner();
    Operation *called = nullptr;
    if (auto run = dyn_cast<RunOp>(op))
      called = symbols.lookup(run.getChunk());
    else if (auto launch = dyn_cast<LaunchOp>(op))
      called = symbols.lookup(launch.getKernel());
    else if (isa<RelabelOp>(op))
      value = op->getOperand(0);
    else
      return dyn_cast<TorchOp>(op);
    if (called)
      value = called->getRegion(0).front().back().getOperand(
          result.getResultNumber());
  }
  return {};
}

AxisKind AxisKinds::getStateKind(FlatSymbolRefAttr name) {
  auto state = symbols.lookup<StateOp>(name.getValue());
  LayoutAttr layout = state ? state.getLayoutAttr() : LayoutAttr();
  return layout ? getAxisKind(withLayout(state.getTensorType(), layout), axis)
                : AxisKind();
}

//===----------------------------------------------------------------------===//
// Errors
//===----------------------------------------------------------------------===//

/// `what` of `op` is not of the kind that it has to be: an error at the op that
/// lost it, if one did.
LogicalResult AxisKinds::report(Operation *op, Value value, const Twine &what,
                                AxisKind wanted, const Twine &why) {
  AxisKind got = get(value);
  if (const Unknown *unknown = got.unknown) {
    TorchOp loser = unknown->op;
    InFlightDiagnostic error = loser.emitError(loser.getOpName());
    error << " expected operands on axis '" << axis.getValue() << "' that ";
    if (StringAttr rule = loser.getFacts().getRule())
      error << "go together by its rule " << rule;
    else
      error << "are replicated, as it has no rule";
    error << ", got " << unknown->operands;
    error.attachNote(op->getLoc())
        << "so it is not known what ranks hold of " << what << " here";
    return failure();
  }
  InFlightDiagnostic error = op->emitOpError("expected ")
                             << what << " that is " << toString(wanted)
                             << " on axis '" << axis.getValue() << "'" << why
                             << ", got " << toString(got);
  if (TorchOp maker = findMaker(value, symbols))
    error.attachNote(maker.getLoc()) << maker.getOpName() << " makes it here";
  return failure();
}

//===----------------------------------------------------------------------===//
// In a chunk
//===----------------------------------------------------------------------===//

LogicalResult AxisKinds::checkGradient(Operation *op, FlatSymbolRefAttr state,
                                       Value gradient) {
  AxisKind wanted = getStateKind(state);
  wanted.kind = dual(wanted.kind, role);
  if (get(gradient) == wanted)
    return success();
  return report(op, gradient, "a gradient of @" + state.getValue(), wanted,
                role == AxisRole::Auto ? ", as the state is"
                                       : ", the dual of the state's kind");
}

/// A bucket of parts, which lie one behind the other, is no part of anything.
AxisKind AxisKinds::getContributionKind(PackOp op) {
  auto bucket = symbols.lookup<BucketOp>(op.getBucket());
  auto member = cast<FlatSymbolRefAttr>(bucket.getMembers()[0]);
  bool isWhole = getStateKind(member) == AxisKind();
  return isWhole ? AxisKind() : AxisKind{Kind::Varying};
}

LogicalResult AxisKinds::visit(ReturnOp op) {
  for (auto [index, value] : llvm::enumerate(op.getValues()))
    if (get(value).kind == Kind::Varying && !value.getDefiningOp<PackOp>())
      return report(op, value, "result " + Twine(index) + " of the chunk", {});
  return success();
}

LogicalResult AxisKinds::visitInChunk(Operation *op) {
  if (auto read = dyn_cast<ReadOp>(op)) {
    set(read.getResult(), getStateKind(read.getSymbolAttr()));
  } else if (auto unpack = dyn_cast<UnpackOp>(op)) {
    auto bucket = symbols.lookup<BucketOp>(unpack.getBucket());
    for (auto [member, state] :
         llvm::zip(unpack.getMembers(),
                   bucket.getMembers().getAsRange<FlatSymbolRefAttr>()))
      set(member, getStateKind(state));
  } else if (auto launch = dyn_cast<LaunchOp>(op)) {
    auto operands = llvm::map_to_vector(
        launch.getInputs(), [&](Value value) { return get(value); });
    auto kernel = symbols.lookup<KernelOp>(launch.getKernel());
    for (auto [result, kind] :
         llvm::zip(launch.getResults(), kernels.infer(kernel, operands)))
      set(result, kind);
  } else if (auto grad = dyn_cast<GradOp>(op)) {
    return checkGradient(op, grad.getStateAttr(), grad.getValue());
  } else if (auto pack = dyn_cast<PackOp>(op)) {
    auto bucket = symbols.lookup<BucketOp>(pack.getBucket());
    for (auto [member, state] :
         llvm::zip(pack.getMembers(),
                   bucket.getMembers().getAsRange<FlatSymbolRefAttr>()))
      if (failed(checkGradient(op, state, member)))
        return failure();
    set(pack.getResult(), getContributionKind(pack));
  } else if (isa<RelabelOp, ConvertOp>(op)) {
    set(op->getResult(0), get(op->getOperand(0)));
  } else if (auto slice = dyn_cast<SliceOp>(op)) {
    bool cuts = slice.getAxisAttr() == axis;
    set(slice.getResult(), cuts ? AxisKind{Kind::Shard, int64_t(slice.getDim())}
                                : get(slice.getValue()));
  } else if (auto index = dyn_cast<AxisIndexOp>(op)) {
    if (index.getAxisAttr() == axis)
      set(index.getResult(), {Kind::Varying});
  } else if (auto exchange = dyn_cast<CollectiveOpInterface>(op)) {
    return visit(exchange);
  } else if (auto returned = dyn_cast<ReturnOp>(op)) {
    return visit(returned);
  }
  return success();
}

LogicalResult AxisKinds::visit(ChunkOp chunk) {
  for (Operation &op : chunk.getBody().front())
    if (failed(visitInChunk(&op)))
      return failure();
  return success();
}

//===----------------------------------------------------------------------===//
// In a step
//===----------------------------------------------------------------------===//

namespace {

/// The kinds that an exchange turns into each other.
struct Turn {
  AxisKind from, to;
};

} // namespace

static Turn getTurn(CollectiveOpInterface op) {
  if (auto gather = dyn_cast<AllGatherOp>(op.getOperation()))
    return {{Kind::Shard, int64_t(gather.getDim())}, {}};
  if (auto scatter = dyn_cast<ReduceScatterOp>(op.getOperation()))
    return {{Kind::Partial}, {Kind::Shard, int64_t(scatter.getDim())}};
  if (isa<AllReduceOp>(op))
    return {{Kind::Partial}, {}};
  if (isa<BroadcastOp>(op))
    return {{Kind::Varying}, {}};
  return {{Kind::Varying}, {Kind::Varying}}; // who has what is not known
}

LogicalResult AxisKinds::visit(CollectiveOpInterface op) {
  bool isAlong = llvm::is_contained(op.getOver(), Attribute(axis));
  Turn turn = getTurn(op);
  for (auto [input, result] : llvm::zip(op.getInputs(), op.getTensors())) {
    if (isAlong && !(get(input) == turn.from))
      return report(op, input, "an operand", turn.from);
    set(result, isAlong ? turn.to : get(input));
  }
  return success();
}

LogicalResult AxisKinds::visit(RunOp run) {
  auto chunk = symbols.lookup<ChunkOp>(run.getChunk());
  Block &block = chunk.getBody().front();
  for (auto [argument, operand] :
       llvm::zip(block.getArguments(), run.getInputs()))
    set(argument, get(operand));
  if (failed(visit(chunk)))
    return failure();
  for (auto [result, value] :
       llvm::zip(run.getResults(), block.back().getOperands()))
    set(result, get(value));
  return success();
}

/// Along a manual axis reports and counts are sums over ranks, too.
LogicalResult AxisKinds::checkReported(Operation *op, Value value) {
  if (!value || get(value) == AxisKind())
    return success();
  bool isSum = role == AxisRole::Manual;
  if (isSum && get(value).kind == Kind::Partial)
    return success();
  return report(op, value, "a value",
                {isSum ? Kind::Partial : Kind::Replicated});
}

LogicalResult AxisKinds::visit(StepOp step, DoSequenceOp sequence) {
  if (sequence)
    for (auto [name, argument] :
         llvm::zip(step.getInputs().getAsRange<StringAttr>(),
                   step.getBody().getArguments()))
      if (auto dim = sequence.getDims().getAs<IntegerAttr>(name.getValue()))
        set(argument, {Kind::Shard, dim.getInt()});
  for (Operation &op : step.getBlock()) {
    LogicalResult result = success();
    if (auto run = dyn_cast<RunOp>(op))
      result = visit(run);
    else if (auto exchange = dyn_cast<CollectiveOpInterface>(op))
      result = visit(exchange);
    else if (auto tangent = dyn_cast<TangentOp>(op))
      result = checkReported(&op, tangent.getCount());
    else if (auto output = dyn_cast<OutputOp>(op))
      result = checkReported(&op, output.getValue());
    if (failed(result))
      return failure();
  }
  return success();
}

LogicalResult checkSteps(ModuleOp module, SymbolTable &symbols) {
  MeshOp mesh = findMesh(module);
  if (!mesh)
    return success();
  KernelKinds kernels, ofPositions(/*ofPositions=*/true);
  SmallVector<std::pair<AxisAttr, DoSequenceOp>> axes;
  for (AxisAttr axis : getSharedAxes(mesh))
    axes.push_back({axis, {}});
  for (auto sequence : findDirectives<DoSequenceOp>(module))
    if (AxisAttr axis = mesh.lookupAxis(sequence.getAxis());
        axis && axis.getRole() == AxisRole::Manual && axis.getSize() > 1)
      axes.push_back({axis, sequence});
  for (auto [axis, sequence] : axes)
    for (auto step : module.getOps<StepOp>())
      if (step.getPhase() == Phase::Outlined &&
          failed(AxisKinds(axis, symbols, sequence ? ofPositions : kernels)
                     .visit(step, sequence)))
        return failure();
  return success();
}

} // namespace piper
