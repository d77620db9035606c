//===- InsertTransfers.cpp - Move values to the coordinates that use them
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "passes/Coordinates.h"
#include "passes/Facts.h"
#include "passes/Passes.h"

#include "dialect/Layouts.h"
#include "mlir/IR/Builders.h"

using namespace mlir;

namespace piper {

#define GEN_PASS_DEF_INSERTTRANSFERSPASS
#include "passes/Passes.h.inc"

namespace {

class InsertTransfersPass
    : public impl::InsertTransfersPassBase<InsertTransfersPass> {
  void runOnOperation() override {
    MeshOp mesh = findMesh(getOperation());
    for (auto cluster : getOperation().getOps<ClusterOp>()) {
      if (cluster.getPhase() != Phase::Unrolled)
        continue;
      connect(cluster, mesh);
      cluster.setPhase(Phase::Connected);
    }
  }

  void connect(ClusterOp cluster, MeshOp mesh) {
    // One transfer per value and destination, shared by all users there.
    llvm::DenseMap<std::pair<Value, int64_t>, Value> moved;
    OpBuilder builder(cluster.getContext());
    for (Operation &op : llvm::make_early_inc_range(cluster.getBlock())) {
      std::optional<int64_t> at = getCoordinate(&op);
      if (!at)
        continue;
      for (OpOperand &operand : op.getOpOperands()) {
        int64_t from = getCoordinate(operand.get());
        if (from == *at)
          continue;
        Value &there = moved[{operand.get(), *at}];
        if (!there)
          there = move(operand.get(), from, *at, mesh, builder);
        operand.set(there);
      }
    }
  }

  Value move(Value value, int64_t from, int64_t to, MeshOp mesh,
             OpBuilder &builder) {
    Operation *maker = value.getDefiningOp();
    auto run = dyn_cast<RunOp>(maker);
    auto places = findDirectives<DoPlaceOp>(getOperation());
    Operation *place = places.empty() ? nullptr : places.front().getOperation();
    builder.setInsertionPointAfter(maker);
    return TransferOp::create(
        builder, withDirective(sourceOf(maker), place), value.getType(), value,
        from, to, run ? run.getMb().value_or(0) : 0,
        getStream(mesh.getUnrolledAxis().getName(), builder));
  }

  /// The location of an op without the directive that was added to it.
  static Location sourceOf(Operation *op) {
    if (auto fused = dyn_cast<FusedLoc>(op->getLoc()))
      return fused.getLocations().front();
    return op->getLoc();
  }

  FlatSymbolRefAttr getStream(StringAttr name, OpBuilder &builder) {
    if (!getOperation().lookupSymbol(name)) {
      OpBuilder::InsertionGuard guard(builder);
      builder.setInsertionPointToStart(getOperation().getBody());
      StreamOp::create(builder, getOperation().getLoc(), name, IntegerAttr(),
                       IntegerAttr());
    }
    return FlatSymbolRefAttr::get(name);
  }
};

} // namespace
} // namespace piper
