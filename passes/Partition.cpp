//===- Partition.cpp - Compute with the parts of states that a rank holds
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "passes/Partition.h"

#include "passes/Facts.h"
#include "passes/Passes.h"

#include "dialect/Layouts.h"
#include "llvm/ADT/MapVector.h"

using namespace mlir;

namespace piper {

#define GEN_PASS_DEF_PARTITIONPASS
#include "passes/Passes.h.inc"

namespace {

class PartitionPass : public impl::PartitionPassBase<PartitionPass> {
  void runOnOperation() override {
    MeshOp mesh = findMesh(getOperation());
    SymbolTable symbols(getOperation());
    llvm::SmallMapVector<StringAttr, DoShardOp, 2> byAxis;
    for (auto shard : findDirectives<DoShardOp>(getOperation()))
      if (failed(record(shard, byAxis)))
        return signalPassFailure();
    for (auto &[name, shard] : byAxis)
      for (auto step : getOperation().getOps<StepOp>())
        if (step.getPhase() == Phase::Captured &&
            failed(partition(step, mesh.lookupAxis(name), shard, symbols)))
          return signalPassFailure();
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
