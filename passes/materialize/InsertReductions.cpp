//===- InsertReductions.cpp - Finish partial sums, and update states
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

// What is partial on an axis is summed over it before it is used: counts before
// tangents, losses before they are reported, gradients before updates. A state
// that several coordinates hold is summed across them in the same call, or, of
// a sharded one, shard by shard. Slots that are derived from an updated value
// are written once all values are updated.

#include "passes/Passes.h"
#include "passes/materialize/Sharding.h"
#include "passes/support/Coordinates.h"
#include "passes/support/Facts.h"
#include "passes/support/Streams.h"

#include "dialect/Layouts.h"
#include "mlir/IR/Builders.h"
#include "llvm/ADT/MapVector.h"

using namespace mlir;

namespace piper {

#define GEN_PASS_DEF_INSERTREDUCTIONSPASS
#include "passes/Passes.h.inc"

namespace {

class Reducer {
public:
  Reducer(ClusterOp cluster, SymbolTable &symbols)
      : cluster(cluster), module(cluster->getParentOfType<ModuleOp>()),
        symbols(symbols), mesh(findMesh(module)), builder(cluster.getContext()),
        exchange(builder, mesh, symbols),
        replicate(findDirective<DoReplicateOp>(module)),
        update(findDirective<DoUpdateOp>(module)) {}

  LogicalResult run() {
    llvm::MapVector<Attribute, SmallVector<SumOp>> counts, losses, gradients;
    for (auto sum : cluster.getBlock().getOps<SumOp>()) {
      if (sum.getBucketAttr()) {
        gradients[sum.getBucketAttr()].push_back(sum);
        continue;
      }
      for (Operation *user : sum.getResult().getUsers()) {
        if (auto tangent = dyn_cast<TangentOp>(user))
          counts[tangent.getLossAttr()].push_back(sum);
        if (auto output = dyn_cast<OutputOp>(user))
          losses[output.getNameAttr()].push_back(sum);
      }
    }
    for (auto &entry : counts)
      reduce(entry.second);
    for (auto &entry : losses)
      reduce(entry.second);
    llvm::MapVector<BucketOp, SmallVector<Value>> reduced;
    for (auto &[name, sums] : gradients) {
      auto bucket =
          symbols.lookup<BucketOp>(cast<FlatSymbolRefAttr>(name).getValue());
      if (failed(checkHolders(bucket, sums)))
        return failure();
      reduced[bucket] = finish(bucket, sums);
    }
    makeUpdates(reduced);
    cluster.setPhase(Phase::Reduced);
    return success();
  }

private:
  /// Every coordinate that holds a trained state contributes to its gradient.
  LogicalResult checkHolders(BucketOp bucket, ArrayRef<SumOp> sums) {
    auto member = cast<FlatSymbolRefAttr>(bucket.getMembers()[0]);
    auto state = symbols.lookup<StateOp>(member.getValue());
    for (int64_t holder : state.getHolders().value_or(ArrayRef<int64_t>()))
      if (llvm::none_of(sums, [&](SumOp sum) {
            return getCoordinate(sum.getOperation()) == holder;
          }))
        return state.emitOpError("is used at coordinate ")
               << holder << " but gets no gradient there";
    return success();
  }

  /// Sums over the axes on which values are partial, and across coordinates if
  /// there are several. Users of the sums see the result.
  void reduce(ArrayRef<SumOp> sums) {
    builder.setInsertionPointAfter(sums.back());
    SmallVector<Value> values = getResults(sums);
    for (auto [given, result] :
         llvm::zip(values, join(getLocation(sums), values)))
      Value(given).replaceUsesWithIf(result, [&](OpOperand &use) {
        return use.getOwner() != result.getDefiningOp();
      });
  }

  /// Brings the gradient of a bucket to what an update takes: the whole of it,
  /// or the shard that this rank updates. Without an update it stays whole,
  /// where it was accumulated.
  SmallVector<Value> finish(BucketOp bucket, ArrayRef<SumOp> sums) {
    builder.setInsertionPointAfter(sums.back());
    Location loc = getLocation(sums);
    RankedTensorType value = bucket.getSlotType(Slot::Value);
    SmallVector<Value> values = getResults(sums);
    if (!getOptimization(bucket))
      return join(loc, values);
    bool isPartial = !findAxes(values.front().getType(), Kind::Partial).empty();
    if (isPartial && !findAxes(value, Kind::Shard).empty())
      for (Value &sum : values)
        sum = exchange.scatter(
            loc, sum, value, builder.getDenseI64ArrayAttr(getCoordinate(sum)));
    values = join(loc, values);
    for (Value &sum : values)
      sum = slice(loc, sum, value);
    return values;
  }

  static SmallVector<Value> getResults(ArrayRef<SumOp> sums) {
    return llvm::map_to_vector(
        sums, [](SumOp sum) -> Value { return sum.getResult(); });
  }

  Location getLocation(ArrayRef<SumOp> sums) {
    return withDirective(SumOp(sums.back()).getLoc(), replicate);
  }

  /// One all_reduce over the axes on which values are partial and across their
  /// coordinates; none if there is nothing to sum.
  SmallVector<Value> join(Location loc, ArrayRef<Value> values) {
    Type type = values.front().getType();
    SmallVector<Attribute> axes = findAxes(type, Kind::Partial);
    if (axes.empty() && values.size() == 1)
      return llvm::to_vector(values);
    LayoutAttr layout = getLayout(type);
    for (Attribute axis : axes)
      layout = layout.withKind(cast<StringAttr>(axis), Kind::Replicated);
    SmallVector<Type> types(values.size(), withLayout(type, layout));
    SmallVector<int64_t> at = llvm::map_to_vector(
        values, [](Value value) { return getCoordinate(value); });
    StringAttr across;
    if (values.size() > 1)
      across = mesh.getUnrolledAxis().getName();
    StringAttr stream = axes.empty() ? across : cast<StringAttr>(axes[0]);
    auto op = AllReduceOp::create(
        builder, loc, types, values, builder.getDenseI64ArrayAttr(at),
        builder.getArrayAttr(axes), across, StringAttr(), IntegerAttr(),
        declareStream(symbols, stream), ValueRange());
    return llvm::to_vector_of<Value>(op.getResults());
  }

  /// This rank's part of a whole value, where a slot is sharded.
  Value slice(Location loc, Value value, RankedTensorType slot) {
    for (Attribute attribute : findAxes(slot, Kind::Shard)) {
      auto axis = cast<StringAttr>(attribute);
      auto type = cast<RankedTensorType>(value.getType());
      if (getKind(type, axis) != Kind::Replicated)
        continue;
      auto part = RankedTensorType::get(
          type.getDimSize(0) / mesh.lookupAxis(axis).getSize(),
          type.getElementType(), getLayout(type).withKind(axis, Kind::Shard));
      value = SliceOp::create(
          builder, loc, part, value, builder.getI64IntegerAttr(0), axis,
          builder.getI64IntegerAttr(getCoordinate(value)), ValueRange());
    }
    return value;
  }

  OptimizationAttr getOptimization(BucketOp bucket) {
    auto member = cast<FlatSymbolRefAttr>(bucket.getMembers()[0]);
    return symbols.lookup<StateOp>(member.getValue()).getOptimizationAttr();
  }

  void makeUpdates(llvm::MapVector<BucketOp, SmallVector<Value>> &reduced) {
    builder.setInsertionPointToEnd(&cluster.getBlock());
    auto any = [&](llvm::function_ref<bool(OptimizationAttr)> asks) {
      return llvm::any_of(reduced, [&](auto &entry) {
        OptimizationAttr fact = getOptimization(entry.first);
        return fact && asks(fact);
      });
    };
    auto clips = [](OptimizationAttr fact) { return bool(fact.getClip()); };
    auto skips = [](OptimizationAttr fact) {
      return bool(fact.getSkipNonfinite());
    };
    SmallVector<Value> norms, skip;
    if (any(clips) || any(skips))
      norms = makeNorms(reduced);
    if (any(skips))
      skip = makeSkips(norms);
    // Slots derived from a value are written behind the next update, so that
    // compute waits little, and little is gathered at once.
    llvm::MapVector<int64_t, std::pair<BucketOp, Value>> pending;
    for (auto &[bucket, gradients] : reduced) {
      OptimizationAttr fact = getOptimization(bucket);
      if (!fact)
        continue;
      for (Value gradient : gradients) {
        int64_t at = getCoordinate(gradient);
        auto op = UpdateOp::create(
            builder, withDirective(bucket.getLoc(), update), bucket.getValue(),
            FlatSymbolRefAttr::get(bucket.getSymNameAttr()), gradient,
            fact.getClip() ? norms[at] : Value(),
            fact.getSkipNonfinite() ? skip[at] : Value(),
            builder.getI64IntegerAttr(at), fact.getOptimizer(), fact.getClip(),
            ValueRange());
        std::pair<BucketOp, Value> next = {bucket, derive(bucket, op, at)};
        std::swap(next, pending[at]);
        write(next, at);
      }
    }
    for (auto &[at, last] : pending)
      write(last, at);
  }

  /// What slot `compute` is after an update; null without that slot.
  Value derive(BucketOp bucket, UpdateOp op, int64_t at) {
    RankedTensorType slot = bucket.getSlotType(Slot::Compute);
    if (!slot)
      return Value();
    Location loc = withDirective(bucket.getLoc(), replicate);
    Value value = exchange.convert(loc, op.getResult(), slot,
                                   builder.getI64IntegerAttr(at));
    return findAxes(slot, Kind::Shard).empty()
               ? exchange.gather(loc, value, builder.getDenseI64ArrayAttr(at))
               : value;
  }

  void write(std::pair<BucketOp, Value> derived, int64_t at) {
    auto [bucket, value] = derived;
    if (value)
      WriteOp::create(builder, withDirective(bucket.getLoc(), replicate),
                      FlatSymbolRefAttr::get(bucket.getSymNameAttr()),
                      SlotAttr::get(builder.getContext(), Slot::Compute), value,
                      builder.getI64IntegerAttr(at), ValueRange());
  }

  /// The sum of squares of all gradients, by coordinate. A bucket counts at its
  /// first holder only.
  SmallVector<Value>
  makeNorms(llvm::MapVector<BucketOp, SmallVector<Value>> &reduced) {
    // Sharded and whole gradients are summed up apart.
    llvm::MapVector<Attribute, SmallVector<SmallVector<Value>>> counted;
    Type dtype = builder.getF32Type();
    for (auto &[bucket, gradients] : reduced) {
      Value first = gradients.front();
      auto type = cast<RankedTensorType>(first.getType());
      auto &values = counted[type.getEncoding()];
      values.resize(mesh.getNumCoordinates());
      values[getCoordinate(first)].push_back(first);
      if (type.getElementType().isF64())
        dtype = type.getElementType();
    }
    Location loc = withDirective(cluster.getLoc(), update);
    SmallVector<SmallVector<Value>> parts(mesh.getNumCoordinates());
    for (auto &entry : counted)
      for (auto [at, value] :
           llvm::enumerate(sumSquares(loc, entry.second, dtype)))
        parts[at].push_back(value);
    SmallVector<Value> norms;
    for (auto [at, values] : llvm::enumerate(parts))
      norms.push_back(
          values.size() == 1
              ? values.front()
              : SumOp::create(builder, loc, values.front().getType(),
                              FlatSymbolRefAttr(), values,
                              builder.getI64IntegerAttr(at), ValueRange()));
    OutputOp::create(builder, loc, builder.getStringAttr("grad_norm"), norms[0],
                     Value(), builder.getI64IntegerAttr(0), ValueRange());
    return norms;
  }

  /// Whether the norm is not finite, by coordinate: it is the same everywhere,
  /// so all ranks skip a step or none does.
  SmallVector<Value> makeSkips(ArrayRef<Value> norms) {
    Location loc = withDirective(cluster.getLoc(), update);
    return llvm::map_to_vector(norms, [&](Value norm) -> Value {
      auto type = RankedTensorType::get({}, builder.getI1Type(),
                                        getLayout(norm.getType()));
      return NonfiniteOp::create(builder, loc, type, norm,
                                 builder.getI64IntegerAttr(getCoordinate(norm)),
                                 ValueRange());
    });
  }

  /// The sum of squares of gradients of one layout, each given at a coordinate;
  /// the result is at all of them.
  SmallVector<Value>
  sumSquares(Location loc, ArrayRef<SmallVector<Value>> gradients, Type dtype) {
    LayoutAttr layout = mesh.getRankLayout(Kind::Replicated);
    for (ArrayRef<Value> values : gradients)
      if (!values.empty())
        for (Kind kind : {Kind::Shard, Kind::Varying})
          for (Attribute axis : findAxes(values.front().getType(), kind))
            layout = layout.withKind(cast<StringAttr>(axis), Kind::Partial);
    auto type = RankedTensorType::get({}, dtype, layout);
    SmallVector<Value> squares;
    for (auto [at, values] : llvm::enumerate(gradients))
      squares.push_back(SumsqOp::create(builder, loc, type, values,
                                        builder.getI64IntegerAttr(at),
                                        ValueRange()));
    return join(loc, squares);
  }

  ClusterOp cluster;
  ModuleOp module;
  SymbolTable &symbols;
  MeshOp mesh;
  OpBuilder builder;
  Exchange exchange;
  Operation *replicate, *update;
};

class InsertReductionsPass
    : public impl::InsertReductionsPassBase<InsertReductionsPass> {
  void runOnOperation() override {
    SymbolTable symbols(getOperation());
    for (auto cluster : llvm::to_vector(getOperation().getOps<ClusterOp>()))
      if (cluster.getPhase() == Phase::Connected &&
          failed(Reducer(cluster, symbols).run()))
        return signalPassFailure();
  }
};

} // namespace
} // namespace piper
