//===- InsertTransfers.cpp - Move values to the coordinates that use them
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "passes/Passes.h"
#include "passes/support/ChunkBuilder.h"
#include "passes/support/Coordinates.h"
#include "passes/support/Facts.h"
#include "passes/support/Streams.h"

#include "dialect/Layouts.h"
#include "mlir/IR/Builders.h"

using namespace mlir;

namespace piper {

#define GEN_PASS_DEF_INSERTTRANSFERSPASS
#include "passes/Passes.h.inc"

namespace {

/// The location of an op without the directive that was added to it.
Location sourceOf(Operation *op) {
  if (auto fused = dyn_cast<FusedLoc>(op->getLoc()))
    return fused.getLocations().front();
  return op->getLoc();
}

/// Connects the coordinates of one cluster.
class Connector {
public:
  Connector(ClusterOp cluster, Operation *place, FlatSymbolRefAttr stream)
      : cluster(cluster), place(place), stream(stream),
        builder(cluster.getContext()) {}

  LogicalResult run() {
    for (Operation &op : llvm::make_early_inc_range(cluster.getBlock())) {
      std::optional<int64_t> at = getCoordinate(&op);
      if (!at)
        continue;
      for (OpOperand &operand : op.getOpOperands()) {
        if (getCoordinate(operand.get()) == *at)
          continue;
        if (failed(checkMoved(operand, *at)))
          return failure();
        operand.set(getMoved(operand.get(), *at));
      }
    }
    cluster.setPhase(Phase::Connected);
    return success();
  }

private:
  /// Who receives a value has made room for it.
  LogicalResult checkMoved(OpOperand &operand, int64_t to) {
    Value value = operand.get();
    auto type = dyn_cast<RankedTensorType>(value.getType());
    if (!type || type.hasStaticShape())
      return success();
    InFlightDiagnostic error =
        operand.getOwner()->emitOpError("expected operand ")
        << operand.getOperandNumber()
        << ", of which only the run knows the size, to arise at its coordinate "
        << to << ", got one of coordinate " << getCoordinate(value)
        << "; annotate what sends rows to experts and what takes them as one "
           "chunk, or place both on one stage";
    if (Operation *maker = value.getDefiningOp())
      error.attachNote(maker->getLoc()) << "it is made here";
    return error;
  }

  /// One transfer per value and destination, shared by all users there.
  Value getMoved(Value value, int64_t to) {
    Value &there = moved[{value, to}];
    if (there)
      return there;
    Operation *maker = value.getDefiningOp();
    RunOp run = findRun(value);
    builder.setInsertionPointAfter(maker);
    there = TransferOp::create(
        builder, withDirective(sourceOf(maker), place), value.getType(), value,
        getCoordinate(value), to, run ? run.getMb().value_or(0) : 0,
        builder.getStringAttr(getLabel(cast<OpResult>(value))), stream);
    return there;
  }

  /// What a value is: `layer.0$F#1` is result 1 of that chunk, and
  /// `layer.0$F#1.all_gather#0` the whole that ranks gather of it.
  std::string getLabel(OpResult value) {
    Operation *maker = value.getOwner();
    std::string name;
    if (auto run = dyn_cast<RunOp>(maker))
      name = run.getChunk();
    else if (isExchange(maker))
      name = getLabel(cast<OpResult>(maker->getOperand(0))) + ".";
    if (!isa<RunOp>(maker))
      name += maker->getName().stripDialect();
    return name + "#" + std::to_string(value.getResultNumber());
  }

  ClusterOp cluster;
  Operation *place;
  FlatSymbolRefAttr stream;
  OpBuilder builder;
  llvm::DenseMap<std::pair<Value, int64_t>, Value> moved;
};

class InsertTransfersPass
    : public impl::InsertTransfersPassBase<InsertTransfersPass> {
  void runOnOperation() override {
    ModuleOp module = getOperation();
    SymbolTable symbols(module);
    Operation *place = findDirective<DoPlaceOp>(module);
    FlatSymbolRefAttr stream;
    MeshOp mesh = findMesh(module);
    if (AxisAttr axis = mesh ? mesh.getUnrolledAxis() : AxisAttr())
      stream = declareStream(symbols, axis.getName());
    for (auto cluster : module.getOps<ClusterOp>())
      if (cluster.getPhase() == Phase::Unrolled &&
          failed(Connector(cluster, place, stream).run()))
        return signalPassFailure();
  }
};

} // namespace
} // namespace piper
