//===- Shard.cpp - Record which part of states ranks hold
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "passes/Passes.h"
#include "passes/support/Facts.h"

#include "dialect/Layouts.h"

using namespace mlir;

namespace piper {

#define GEN_PASS_DEF_SHARDPASS
#include "passes/Passes.h.inc"

namespace {

class ShardPass : public impl::ShardPassBase<ShardPass> {
  void runOnOperation() override {
    MeshOp mesh = findMesh(getOperation());
    FactRecorder facts;
    for (auto shard : findDirectives<DoShardOp>(getOperation()))
      if (failed(record(shard, mesh, facts)))
        return signalPassFailure();
  }

  LogicalResult record(DoShardOp shard, MeshOp mesh, FactRecorder &facts) {
    AxisAttr axis = mesh.lookupAxis(shard.getAxis());
    if (!axis || axis.getRole() == AxisRole::Unrolled)
      return shard.emitOpError("expected a manual or auto axis of the mesh, "
                               "got '")
             << shard.getAxis() << "'";
    for (auto sequence : findDirectives<DoSequenceOp>(getOperation()))
      if (axis.getRole() == AxisRole::Manual &&
          sequence.getAxis() == shard.getAxis())
        return shard.emitOpError("expected an axis whose ranks have other "
                                 "tokens or the same, got '")
               << shard.getAxis() << "', along which they have parts of "
               << "sequences";
    auto states =
        selectStates(shard, shard.getSelect(), [](StateOp) { return true; });
    if (failed(states))
      return failure();
    if (axis.getRole() == AxisRole::Manual && shard.getDim() != 0)
      return shard.emitOpError(
                 "expected dim 0 along a manual axis, whose ranks "
                 "have experts of their own, got dim ")
             << shard.getDim();
    LayoutAttr layout =
        mesh.getRankLayout(Kind::Replicated)
            .withKind(axis.getName(), Kind::Shard, shard.getDim());
    for (StateOp state : *states) {
      ArrayRef<int64_t> shape = state.getTensorType().getShape();
      int64_t dim = shard.getDim();
      // Parts along an auto axis may have padding.
      bool isDivided = axis.getRole() == AxisRole::Auto ||
                       dim >= int64_t(shape.size()) ||
                       shape[dim] % axis.getSize() == 0;
      if (dim >= int64_t(shape.size()) || !isDivided) {
        InFlightDiagnostic error = shard.emitOpError("expected a dim ") << dim;
        if (!isDivided)
          error << " that " << axis.getSize() << " ranks of axis '"
                << shard.getAxis() << "' divide";
        error << ", got @" << state.getSymName() << " of type "
              << state.getTensorType();
        error.attachNote(state.getLoc()) << "the state is here";
        return failure();
      }
      if (failed(facts.record(state, "layout", layout, shard)))
        return failure();
    }
    return success();
  }
};

} // namespace
} // namespace piper
