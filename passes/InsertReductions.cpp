//===- InsertReductions.cpp - Finish partial sums, and update states
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

// What is partial on an axis is summed over it before it is used: counts before
// tangents, losses before they are reported, gradients before updates. A state
// that several coordinates hold is summed across them in the same call.

#include "passes/Coordinates.h"
#include "passes/Facts.h"
#include "passes/Passes.h"
#include "passes/Streams.h"

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
      reduce(entry.second, mesh.getManualLayout(Kind::Partial));
    for (auto &entry : losses)
      reduce(entry.second, mesh.getManualLayout(Kind::Partial));
    llvm::MapVector<BucketOp, SmallVector<Value>> reduced;
    for (auto &[name, sums] : gradients) {
      auto bucket =
          symbols.lookup<BucketOp>(cast<FlatSymbolRefAttr>(name).getValue());
      if (failed(checkHolders(bucket, sums)))
        return failure();
      reduced[bucket] = reduce(sums, mesh.getManualLayout(Kind::Partial));
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

  /// Sums over all manual axes, and across coordinates if there are several.
  /// Users of the sums see the result.
  SmallVector<Value> reduce(ArrayRef<SumOp> sums, LayoutAttr partial) {
    SmallVector<Value> values;
    SmallVector<int64_t> at;
    for (SumOp sum : sums) {
      values.push_back(sum.getResult());
      at.push_back(*sum.getAt());
    }
    if (!partial && sums.size() == 1)
      return values;
    SmallVector<Attribute> axes;
    for (AxisAttr axis : mesh.getAxesWithRole(AxisRole::Manual))
      axes.push_back(axis.getName());
    SumOp last = sums.back();
    Location loc = withDirective(last.getLoc(), replicate);
    builder.setInsertionPointAfter(last);
    return reduceValues(loc, values, at, builder.getArrayAttr(axes));
  }

  SmallVector<Value> reduceValues(Location loc, ArrayRef<Value> values,
                                  ArrayRef<int64_t> at, ArrayAttr axes) {
    SmallVector<Type> types;
    for (Value value : values)
      types.push_back(
          withLayout(value.getType(), mesh.getManualLayout(Kind::Replicated)));
    StringAttr across;
    if (values.size() > 1)
      across = mesh.getUnrolledAxis().getName();
    StringAttr stream = axes.empty() ? across : cast<StringAttr>(axes[0]);
    auto op = AllReduceOp::create(builder, loc, types, values,
                                  builder.getDenseI64ArrayAttr(at), axes,
                                  across, StringAttr(), IntegerAttr(),
                                  declareStream(symbols, stream), ValueRange());
    for (auto [given, result] : llvm::zip(values, op.getResults()))
      Value(given).replaceUsesWithIf(
          result, [&](OpOperand &use) { return use.getOwner() != op; });
    return llvm::to_vector_of<Value>(op.getResults());
  }

  OptimizationAttr getOptimization(BucketOp bucket) {
    auto member = cast<FlatSymbolRefAttr>(bucket.getMembers()[0]);
    return symbols.lookup<StateOp>(member.getValue()).getOptimizationAttr();
  }

  void makeUpdates(llvm::MapVector<BucketOp, SmallVector<Value>> &reduced) {
    builder.setInsertionPointToEnd(&cluster.getBlock());
    bool clips = llvm::any_of(reduced, [&](auto &entry) {
      OptimizationAttr fact = getOptimization(entry.first);
      return fact && fact.getClip();
    });
    llvm::MapVector<int64_t, Value> norms;
    if (clips)
      norms = makeNorms(reduced);
    for (auto &[bucket, gradients] : reduced) {
      OptimizationAttr fact = getOptimization(bucket);
      if (!fact)
        continue;
      for (Value gradient : gradients) {
        int64_t at = getCoordinate(gradient);
        UpdateOp::create(builder, withDirective(bucket.getLoc(), update),
                         bucket.getValue(),
                         FlatSymbolRefAttr::get(bucket.getSymNameAttr()),
                         gradient, fact.getClip() ? norms[at] : Value(),
                         Value(), builder.getI64IntegerAttr(at),
                         fact.getOptimizer(), fact.getClip(), ValueRange());
      }
    }
  }

  /// The sum of squares of all gradients, at every coordinate. A bucket counts
  /// at its first holder only.
  llvm::MapVector<int64_t, Value>
  makeNorms(llvm::MapVector<BucketOp, SmallVector<Value>> &reduced) {
    Location loc = withDirective(cluster.getLoc(), update);
    SmallVector<SmallVector<Value>> counted(mesh.getNumCoordinates());
    Type dtype = builder.getF32Type();
    for (auto &[bucket, gradients] : reduced) {
      Value first = gradients.front();
      counted[getCoordinate(first)].push_back(first);
      Type element = cast<RankedTensorType>(first.getType()).getElementType();
      if (element.isF64())
        dtype = element;
    }
    auto type = RankedTensorType::get({}, dtype,
                                      mesh.getManualLayout(Kind::Replicated));
    SmallVector<Value> squares;
    SmallVector<int64_t> at;
    for (auto [coordinate, gradients] : llvm::enumerate(counted)) {
      squares.push_back(SumsqOp::create(builder, loc, type, gradients,
                                        builder.getI64IntegerAttr(coordinate),
                                        ValueRange()));
      at.push_back(coordinate);
    }
    if (squares.size() > 1)
      squares = reduceValues(loc, squares, at, builder.getArrayAttr({}));
    llvm::MapVector<int64_t, Value> norms;
    for (auto [coordinate, value] : llvm::enumerate(squares))
      norms[coordinate] = value;
    OutputOp::create(builder, loc, builder.getStringAttr("grad_norm"), norms[0],
                     Value(), builder.getI64IntegerAttr(0), ValueRange());
    return norms;
  }

  ClusterOp cluster;
  ModuleOp module;
  SymbolTable &symbols;
  MeshOp mesh;
  OpBuilder builder;
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
