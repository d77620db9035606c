//===- Partition.cpp - Compute with the parts of states that a rank holds
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "passes/outline/Partition.h"

#include "passes/Passes.h"
#include "passes/support/Facts.h"

#include "dialect/Layouts.h"
#include "mlir/IR/Builders.h"
#include "llvm/ADT/DenseSet.h"
#include "llvm/ADT/MapVector.h"

using namespace mlir;

namespace piper {

#define GEN_PASS_DEF_PARTITIONPASS
#include "passes/Passes.h.inc"

InFlightDiagnostic emitPartError(TorchOp op, AxisAttr axis, Operation *shard) {
  InFlightDiagnostic error = op.emitError(op.getOpName())
                             << " computes with what ranks along axis '"
                             << axis.getName().getValue()
                             << "' hold parts of, ";
  error.attachNote(shard->getLoc()) << "states are shared out here";
  return error;
}

Value readRankIndex(StepOp step, AxisAttr axis, SymbolTable &symbols) {
  OpBuilder builder(step);
  auto name = builder.getStringAttr(axis.getName().getValue() + "$index");
  for (auto read : step.getBlock().getOps<ReadOp>())
    if (read.getSymbol() == name.getValue())
      return read.getResult();
  auto getType = [&](int64_t size) {
    return RankedTensorType::get(size, builder.getI64Type());
  };
  if (!symbols.lookup(name)) {
    LayoutAttr layout = findMesh(step)
                            .getRankLayout(Kind::Replicated)
                            .withKind(axis.getName(), Kind::Shard);
    auto state = StateOp::create(
        builder, step.getLoc(), name,
        StateKindAttr::get(step.getContext(), StateKind::Constant),
        TypeAttr::get(getType(axis.getSize())), UnitAttr(), layout, ArrayAttr(),
        DenseI64ArrayAttr(), ReplicationAttr(), OptimizationAttr());
    symbols.insert(state);
  }
  builder.setInsertionPointToStart(&step.getBlock());
  return ReadOp::create(builder, step.getLoc(), getType(1),
                        FlatSymbolRefAttr::get(name), SlotAttr(),
                        IntegerAttr());
}

namespace {

class PartitionPass : public impl::PartitionPassBase<PartitionPass> {
  void runOnOperation() override {
    MeshOp mesh = findMesh(getOperation());
    SymbolTable symbols(getOperation());
    llvm::SmallMapVector<StringAttr, DoShardOp, 2> byAxis;
    for (auto shard : findDirectives<DoShardOp>(getOperation()))
      if (failed(record(shard, byAxis)))
        return signalPassFailure();
    llvm::SmallDenseSet<StringAttr>
        sequences; // axes, of which one may be said twice
    for (auto sequence : findDirectives<DoSequenceOp>(getOperation()))
      if (sequences.insert(sequence.getAxisAttr()).second &&
          failed(partition(sequence, mesh, symbols)))
        return signalPassFailure();
    for (auto &[name, shard] : byAxis)
      for (auto step : getOperation().getOps<StepOp>())
        if (step.getPhase() == Phase::Captured &&
            failed(partition(step, mesh.lookupAxis(name), shard, symbols)))
          return signalPassFailure();
    for (auto step : getOperation().getOps<StepOp>())
      if (step.getPhase() == Phase::Captured)
        tagExchanges(step);
  }

  /// Along a manual axis the directive is all that is needed; along an auto
  /// axis it goes with sharded states.
  LogicalResult partition(DoSequenceOp sequence, MeshOp mesh,
                          SymbolTable &symbols) {
    AxisAttr axis = mesh.lookupAxis(sequence.getAxis());
    if (!axis || axis.getRole() == AxisRole::Unrolled)
      return sequence.emitOpError("expected a manual or auto axis of the mesh, "
                                  "got '")
             << sequence.getAxis() << "'";
    if (axis.getRole() == AxisRole::Auto)
      return success();
    for (auto step : getOperation().getOps<StepOp>())
      if (step.getPhase() == Phase::Captured && axis.getSize() > 1 &&
          failed(partitionSequence(step, axis, sequence, symbols)))
        return failure();
    return success();
  }

  LogicalResult partition(StepOp step, AxisAttr axis, DoShardOp shard,
                          SymbolTable &symbols) {
    if (axis.getSize() == 1)
      return success();
    DoSequenceOp sequence;
    for (auto directive : findDirectives<DoSequenceOp>(getOperation()))
      if (directive.getAxisAttr() == axis.getName())
        sequence = directive;
    return axis.getRole() == AxisRole::Auto
               ? partitionTensors(step, axis, shard, sequence, symbols)
               : partitionExperts(step, axis, shard, symbols);
  }

  /// One capacity per axis: rows of all experts arrive together.
  LogicalResult record(DoShardOp shard,
                       llvm::SmallMapVector<StringAttr, DoShardOp, 2> &byAxis) {
    auto [entry, fresh] = byAxis.insert({shard.getAxisAttr(), shard});
    if (fresh || entry->second.getCapacityAttr() == shard.getCapacityAttr())
      return success();
    InFlightDiagnostic error =
        shard.emitOpError("expected the capacity that another directive sets "
                          "for axis '")
        << shard.getAxis() << "', got " << shard.getCapacityAttr();
    error.attachNote(entry->second.getLoc()) << "the other directive is here";
    return failure();
  }
};

} // namespace
} // namespace piper
