//===- UnrollMicrobatches.cpp - From one microbatch of one rank to the cluster
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

// Every chunk of pass F or B runs once per microbatch, at the home of its
// stage; in place of B its halves do if the schedule has cells of pass I and W.
// What ranks exchange for a run, or of what it made, is unrolled with it.
// What is cheap and made from inputs (pass P) is made again wherever it is
// used. Counts are summed before the first backward can need them.

#include "passes/Passes.h"
#include "passes/materialize/Sharding.h"
#include "passes/support/ChunkBuilder.h"
#include "passes/support/Coordinates.h"
#include "passes/support/Facts.h"

#include "dialect/Cells.h"
#include "dialect/Layouts.h"
#include "mlir/IR/Builders.h"
#include "mlir/IR/IRMapping.h"

#include "llvm/ADT/DenseSet.h"
#include "llvm/ADT/MapVector.h"
#include <map>

using namespace mlir;

namespace piper {

#define GEN_PASS_DEF_UNROLLMICROBATCHESPASS
#include "passes/Passes.h.inc"

namespace {

using Key =
    std::tuple<Value, int64_t, int64_t>; // value, microbatch, coordinate
using Sums = std::map<int64_t, SmallVector<Value>>; // by coordinate

/// The stages and microbatches whose backward a schedule runs in halves.
llvm::DenseSet<std::pair<int64_t, int64_t>>
findHalvedCells(ScheduleOp schedule) {
  llvm::DenseSet<std::pair<int64_t, int64_t>> halved;
  for (const Cell &cell : readCells(schedule))
    if (cell.pass == Pass::I || cell.pass == Pass::W)
      halved.insert({cell.stage, cell.microbatch});
  return halved;
}

class Unroller {
public:
  Unroller(StepOp step, SymbolTable &symbols)
      : step(step), symbols(symbols), builder(step.getContext()),
        order(findDirective<DoOrderOp>(step->getParentOfType<ModuleOp>())) {
    if (step.getOrder())
      halved = findHalvedCells(symbols.lookup<ScheduleOp>(*step.getOrder()));
  }

  LogicalResult run() {
    if (failed(checkFacts()) || failed(checkMakers()))
      return failure();
    builder.setInsertionPointAfter(step);
    auto cluster = ClusterOp::create(
        builder, step.getLoc(), getClusterName(),
        FlatSymbolRefAttr::get(step.getSymNameAttr()),
        PhaseAttr::get(builder.getContext(), Phase::Unrolled),
        step.getMeshAttr(), step.getOrderAttr(), step.getMicrobatchesAttr());
    builder.setInsertionPointToStart(&cluster.getBody().emplaceBlock());
    for (auto tangent : step.getBlock().getOps<TangentOp>())
      makeTangents(tangent);
    for (int64_t mb = 0; mb < numMicrobatches(); ++mb)
      for (Operation &op : step.getBlock())
        if (auto run = dyn_cast<RunOp>(op)) {
          if (getChunk(run).getPass() != Pass::P)
            unrollRun(run, mb);
        } else if (isExchange(&op)) {
          unrollExchange(&op, mb);
        }
    for (auto sum : step.getBlock().getOps<SumOp>())
      collect(sum.getInputs().front(), gradients[sum.getBucketAttr()]);
    for (auto sum : step.getBlock().getOps<SumOp>())
      makeSum(sum);
    for (auto output : step.getBlock().getOps<OutputOp>())
      makeOutput(output);
    recordHolders();
    return success();
  }

private:
  StringAttr getClusterName() {
    return builder.getStringAttr(step.getSymName() + "$cluster");
  }

  /// A step that nobody unrolled has microbatches, and homes of its chunks.
  LogicalResult checkFacts() {
    if (symbols.lookup(getClusterName()))
      return step.emitOpError("is unrolled already");
    if (!step.getMicrobatches())
      return step.emitOpError(
          "expected a number of microbatches, which piper-split records");
    for (auto run : step.getBlock().getOps<RunOp>()) {
      ChunkOp chunk = getChunk(run);
      if (int64_t stage = chunk.getStage().value_or(0); !step.hasHome(stage))
        return chunk.emitOpError("expected a stage that has a home in '")
               << step.getSymName() << "', got " << stage;
    }
    return success();
  }

  /// What is summed over microbatches is made in each of them, and so is what
  /// is exchanged within a chunk.
  LogicalResult checkMakers() {
    for (Operation &op : step.getBlock()) {
      bool isTotal = isa<SumOp, OutputOp>(op);
      if ((isTotal || isExchange(&op)) && !findRun(op.getOperand(0)))
        return op.emitOpError(isTotal ? "expected the sum of what"
                                      : "expected what")
               << " a run makes in every microbatch, got another value";
    }
    return success();
  }

  int64_t numMicrobatches() { return *step.getMicrobatches(); }

  ChunkOp getChunk(RunOp run) {
    return symbols.lookup<ChunkOp>(run.getChunk());
  }

  int64_t getHome(RunOp run, int64_t mb) {
    return step.getHome(getChunk(run).getStage().value_or(0), mb);
  }

  IntegerAttr index(int64_t value) { return builder.getI64IntegerAttr(value); }

  /// The value of the step for one microbatch, as seen from a coordinate.
  Value get(Value value, int64_t mb, int64_t at) {
    Operation *op = value.getDefiningOp();
    if (auto tangent = dyn_cast_or_null<TangentOp>(op)) {
      auto &byCoordinate = tangents[tangent];
      auto here = byCoordinate.find(at);
      return here != byCoordinate.end() ? here->second
                                        : byCoordinate.front().second;
    }
    auto run = dyn_cast_or_null<RunOp>(op);
    if ((run && getChunk(run).getPass() != Pass::P) || (op && isExchange(op)))
      return made.lookup(Key(value, mb, -1));
    if (isa_and_nonnull<ReadOp>(op) || isGatheredOnce(op))
      mb = -1; // the same for all microbatches
    if (Value known = made.lookup(Key(value, mb, at)))
      return known;
    if (isa_and_nonnull<CollectiveOpInterface, ConvertOp>(op))
      return exchange(value, mb, at);
    if (run) {
      runAt(run, mb, at, at);
    } else if (auto read = dyn_cast_or_null<ReadOp>(op)) {
      made[Key(value, mb, at)] =
          ReadOp::create(builder, read.getLoc(), value.getType(),
                         read.getSymbolAttr(), read.getSlotAttr(), index(at));
      holders[symbols.lookup<BucketOp>(read.getSymbol())].insert(at);
    } else {
      auto argument = cast<BlockArgument>(value);
      auto name = cast<StringAttr>(step.getInputs()[argument.getArgNumber()]);
      made[Key(value, mb, at)] =
          InputOp::create(builder, argument.getLoc(), value.getType(), name,
                          index(mb), index(at));
    }
    return made.lookup(Key(value, mb, at));
  }

  /// Whether an op gathers states that are kept whole for the step.
  bool isGatheredOnce(Operation *op) {
    auto gather = dyn_cast_or_null<AllGatherOp>(op);
    auto read =
        gather ? gather.getInputs().front().getDefiningOp<ReadOp>() : ReadOp();
    if (!read)
      return false;
    auto bucket = symbols.lookup<BucketOp>(read.getSymbol());
    return getReplication(bucket, symbols).getGather() == "step";
  }

  /// Unrolls what ranks exchange of one value. Gathered states are gathered for
  /// each use again, unless they are kept for the step.
  Value exchange(Value value, int64_t mb, int64_t at) {
    Operation *op = value.getDefiningOp();
    IRMapping mapping;
    mapping.map(op->getOperand(0), get(op->getOperand(0), mb, at));
    Operation *placed = builder.clone(*op, mapping);
    if (isa<CollectiveOpInterface>(op)) {
      placed->setAttr("at", builder.getDenseI64ArrayAttr(at));
      if (mb >= 0)
        placed->setAttr("mb", index(mb));
    } else {
      placed->setAttr("at", index(at));
    }
    if (isGatheredOnce(op))
      made[Key(value, mb, at)] = placed->getResult(0);
    return placed->getResult(0);
  }

  /// Creates a run; its results are known under (result, mb, `key`).
  void runAt(RunOp run, int64_t mb, int64_t at, int64_t key) {
    SmallVector<Value> inputs;
    for (Value input : run.getInputs())
      inputs.push_back(get(input, mb, at));
    auto placed = RunOp::create(builder, withDirective(run.getLoc(), order),
                                run.getResultTypes(), run.getChunkAttr(),
                                inputs, index(mb), index(at), ValueRange());
    for (auto [result, value] :
         llvm::zip(run.getResults(), placed.getResults()))
      made[Key(result, mb, key)] = value;
  }

  /// Exchanges what pieces of a chunk made, where these run.
  void unrollExchange(Operation *op, int64_t mb) {
    int64_t at = getHome(findRun(op->getOperand(0)), mb);
    IRMapping mapping;
    for (Value operand : op->getOperands())
      mapping.map(operand, get(operand, mb, at));
    Operation *placed = builder.clone(*op, mapping);
    placed->setLoc(withDirective(op->getLoc(), order));
    placed->setAttr("mb", index(mb));
    placed->setAttr("at", isa<CollectiveOpInterface>(op)
                              ? Attribute(builder.getDenseI64ArrayAttr(at))
                              : index(at));
    for (auto [result, value] :
         llvm::zip(op->getResults(), placed->getResults()))
      made[Key(result, mb, -1)] = value;
  }

  void unrollRun(RunOp run, int64_t mb) {
    ChunkOp chunk = getChunk(run);
    bool hasHalves = chunk.getInputAttr() || chunk.getWeightAttr();
    if (hasHalves && halved.contains({chunk.getStage().value_or(0), mb}))
      runHalves(run, chunk, mb);
    else
      runAt(run, mb, getHome(run, mb), -1);
  }

  /// Runs the halves of a backward chunk in its place.
  void runHalves(RunOp run, ChunkOp chunk, int64_t mb) {
    int64_t at = getHome(run, mb);
    SmallVector<Value> passed;
    for (HalfAttr attr : {chunk.getInputAttr(), chunk.getWeightAttr()}) {
      if (!attr)
        continue;
      auto half = symbols.lookup<ChunkOp>(attr.getChunk().getValue());
      SmallVector<Value> inputs;
      for (int64_t operand : attr.getOperands())
        inputs.push_back(get(run.getInputs()[operand], mb, at));
      llvm::append_range(inputs, passed);
      auto placed = RunOp::create(
          builder, withDirective(run.getLoc(), order),
          cast<FunctionType>(half.getFunctionType()).getResults(),
          attr.getChunk(), inputs, index(mb), index(at), ValueRange());
      for (auto [position, result] : llvm::enumerate(attr.getResults()))
        made[Key(run.getResult(result), mb, -1)] = placed.getResult(position);
      passed = llvm::to_vector_of<Value>(
          placed.getResults().drop_front(attr.getResults().size()));
    }
  }

  /// The coordinate at which a tangent is first needed for a microbatch.
  int64_t getTangentHome(TangentOp tangent, int64_t mb) {
    for (Operation *user : tangent.getResult().getUsers())
      if (auto run = dyn_cast<RunOp>(user))
        return getHome(run, mb);
    for (Operation *user : tangent.getResult().getUsers())
      if (auto output = dyn_cast<OutputOp>(user))
        if (auto run = output.getValue().getDefiningOp<RunOp>())
          return getHome(run, mb);
    return 0;
  }

  /// One tangent per coordinate that needs one; its count is summed over the
  /// microbatches there, and later over coordinates and ranks.
  void makeTangents(TangentOp tangent) {
    Sums counts;
    for (int64_t mb = 0; mb < numMicrobatches(); ++mb) {
      int64_t at = getTangentHome(tangent, mb);
      SmallVector<Value> &values = counts[at];
      if (tangent.getCount())
        values.push_back(get(tangent.getCount(), mb, at));
    }
    llvm::MapVector<int64_t, Value> sums = sumUp(counts, tangent.getLoc());
    for (auto &[at, count] : sums)
      tangents[tangent].insert(
          {at, TangentOp::create(
                   builder, tangent.getLoc(), tangent.getResult().getType(),
                   tangent.getLossAttr(), count, getCoefficient(tangent),
                   IntegerAttr(), index(at), ValueRange())});
  }

  /// One sum per coordinate, null where there is nothing to sum. They stand
  /// before what uses any of them, so that all may become one reduction.
  llvm::MapVector<int64_t, Value> sumUp(Sums &values, Location loc) {
    llvm::MapVector<int64_t, Value> sums;
    for (auto &[at, inputs] : values)
      sums[at] = inputs.empty()
                     ? Value()
                     : SumOp::create(builder, loc, inputs.front().getType(),
                                     FlatSymbolRefAttr(), inputs, index(at),
                                     ValueRange());
    return sums;
  }

  /// A count that is known now becomes part of the coefficient.
  FloatAttr getCoefficient(TangentOp tangent) {
    double coefficient = tangent.getCoeff().convertToDouble();
    if (std::optional<uint64_t> examples = tangent.getExamples()) {
      MeshOp mesh = findMesh(step);
      coefficient /= double(*examples) * numMicrobatches() *
                     product(mesh, step.getAxesAttr());
    }
    return builder.getF64FloatAttr(coefficient);
  }

  /// Adds the value of every microbatch to the sums of its coordinate.
  void collect(Value value, Sums &sums) {
    RunOp run = findRun(value);
    for (int64_t mb = 0; mb < numMicrobatches(); ++mb)
      sums[getHome(run, mb)].push_back(get(value, mb, getHome(run, mb)));
  }

  /// The first sum of a bucket stands for all contributions to it.
  void makeSum(SumOp sum) {
    auto found = gradients.find(sum.getBucketAttr());
    if (found == gradients.end())
      return;
    for (auto &[at, values] : found->second)
      SumOp::create(builder, sum.getLoc(), sum.getResult().getType(),
                    sum.getBucketAttr(), values, index(at), ValueRange());
    gradients.erase(found);
  }

  void makeOutput(OutputOp output) {
    Sums values;
    collect(output.getValue(), values);
    llvm::MapVector<int64_t, Value> sums = sumUp(values, output.getLoc());
    for (auto &[at, sum] : sums) {
      Value scale = output.getScale();
      OutputOp::create(builder, output.getLoc(), output.getNameAttr(), sum,
                       scale ? get(scale, 0, at) : Value(), index(at),
                       ValueRange());
    }
  }

  /// Writes on every state where it is used.
  void recordHolders() {
    for (auto &[bucket, coordinates] : holders) {
      SmallVector<int64_t> sorted = llvm::to_vector(coordinates);
      llvm::sort(sorted);
      for (auto member : bucket.getMembers().getAsRange<FlatSymbolRefAttr>()) {
        auto state = symbols.lookup<StateOp>(member.getValue());
        llvm::SmallSetVector<int64_t, 4> all(sorted.begin(), sorted.end());
        if (state.getHolders())
          all.insert_range(*state.getHolders());
        SmallVector<int64_t> merged = llvm::to_vector(all);
        llvm::sort(merged);
        state.setHolders(merged);
      }
    }
  }

  StepOp step;
  SymbolTable &symbols;
  OpBuilder builder;
  Operation *order;
  llvm::DenseSet<std::pair<int64_t, int64_t>> halved; // stage, microbatch
  llvm::DenseMap<Key, Value> made;
  llvm::DenseMap<Operation *, llvm::MapVector<int64_t, Value>> tangents;
  llvm::MapVector<Attribute, Sums> gradients;
  llvm::MapVector<BucketOp, llvm::SmallSetVector<int64_t, 4>> holders;
};

class UnrollMicrobatchesPass
    : public impl::UnrollMicrobatchesPassBase<UnrollMicrobatchesPass> {
  void runOnOperation() override {
    SymbolTable symbols(getOperation());
    for (auto step : llvm::to_vector(getOperation().getOps<StepOp>()))
      if (step.getPhase() == Phase::Bucketed &&
          failed(Unroller(step, symbols).run()))
        return signalPassFailure();
  }
};

} // namespace
} // namespace piper
