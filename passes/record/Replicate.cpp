//===- Replicate.cpp - Record on which axes states are copied
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "passes/Passes.h"
#include "passes/support/Facts.h"

#include "dialect/Layouts.h"
#include "mlir/IR/Builders.h"

using namespace mlir;

namespace piper {

#define GEN_PASS_DEF_REPLICATEPASS
#include "passes/Passes.h.inc"

namespace {

LogicalResult checkDirective(DoReplicateOp replicate, MeshOp mesh) {
  for (auto name : replicate.getAxes().getAsRange<StringAttr>()) {
    AxisAttr axis = mesh.lookupAxis(name);
    if (!axis || axis.getRole() != AxisRole::Manual)
      return replicate.emitOpError("expected a manual axis of the mesh, got ")
             << name;
  }
  return success();
}

class ReplicatePass : public impl::ReplicatePassBase<ReplicatePass> {
  void runOnOperation() override {
    ModuleOp module = getOperation();
    MeshOp mesh = findMesh(module);
    if (!mesh)
      return; // nor is there a step, or a strategy
    llvm::SmallSetVector<Attribute, 4> axes;
    for (auto replicate : findDirectives<DoReplicateOp>(module)) {
      if (failed(checkDirective(replicate, mesh)) || failed(record(replicate)))
        return signalPassFailure();
      axes.insert_range(replicate.getAxes());
    }
    for (AxisAttr axis : mesh.getAxesWithRole(AxisRole::Manual))
      if (!axes.contains(axis.getName()) && axis.getSize() > 1) {
        mesh.emitOpError("expected a directive that uses axis '")
            << axis.getName().getValue() << "' of " << axis.getSize()
            << " ranks";
        return signalPassFailure();
      }
    Builder builder(&getContext());
    for (auto step : module.getOps<StepOp>())
      step.setAxesAttr(builder.getArrayAttr(axes.getArrayRef()));
  }

  LogicalResult record(DoReplicateOp replicate) {
    // Of frozen parameters stage 3 shares out all that there is: the value.
    bool sharesFrozen = replicate.getZero() == 3;
    auto states =
        selectStates(replicate, replicate.getSelect(), [&](StateOp state) {
          bool isParameter = state.getKind() == StateKind::Parameter;
          return isParameter && (sharesFrozen || state.isTrainable());
        });
    if (failed(states))
      return failure();
    for (StateOp state : *states)
      if (failed(facts.record(state, "replication", getFact(replicate, state),
                              replicate)))
        return failure();
    return success();
  }

  /// What the directive says, with the defaults filled in. Of a state that
  /// ranks along some axes share out already, ZeRO shares out the parts along
  /// others.
  static ReplicationAttr getFact(DoReplicateOp replicate, StateOp state) {
    Builder builder(replicate.getContext());
    SmallVector<Attribute> shard;
    if (replicate.getZero() > 0)
      for (Attribute axis : replicate.getShardAttr() ? replicate.getShardAttr()
                                                     : replicate.getAxesAttr())
        if (getKind(state, axis) != Kind::Shard)
          shard.push_back(axis);
    int64_t zero = shard.empty() ? 0 : replicate.getZero();
    StringRef gather = zero ? replicate.getGather().value_or("each") : "each";
    return ReplicationAttr::get(
        replicate.getContext(), replicate.getAxesAttr(), zero,
        replicate.getBucket(), replicate.getDtype().value_or(Type()),
        replicate.getReduceAttr(), builder.getArrayAttr(shard),
        builder.getStringAttr(gather), replicate.getPrefetch().value_or(1),
        replicate.getLimit().value_or(0));
  }

  static Kind getKind(StateOp state, Attribute axis) {
    LayoutAttr layout = state.getLayoutAttr();
    return layout ? layout.getKind(cast<StringAttr>(axis).getValue())
                  : Kind::Replicated;
  }

  FactRecorder facts;
};

} // namespace
} // namespace piper
