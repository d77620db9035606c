//===- Replicate.cpp - Record on which axes states are copied
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "passes/Facts.h"
#include "passes/Passes.h"

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
  if (replicate.getZero() != 0)
    return replicate.emitOpError("expected zero = 0, the only ZeRO stage that "
                                 "is implemented, got ")
           << replicate.getZero();
  if (replicate.getReduce() != "last")
    return replicate.emitOpError("expected reduce = \"last\", the only policy "
                                 "that is implemented, got ")
           << replicate.getReduceAttr();
  return success();
}

class ReplicatePass : public impl::ReplicatePassBase<ReplicatePass> {
  void runOnOperation() override {
    ModuleOp module = getOperation();
    MeshOp mesh = findMesh(module);
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
    auto states = selectStates(replicate, replicate.getSelect(), true);
    if (failed(states))
      return failure();
    auto fact = ReplicationAttr::get(&getContext(), replicate.getAxes(),
                                     replicate.getZero(), replicate.getBucket(),
                                     replicate.getDtype().value_or(Type()));
    for (StateOp state : *states)
      if (failed(facts.record(state, "replication", fact, replicate)))
        return failure();
    return success();
  }

  FactRecorder facts;
};

} // namespace
} // namespace piper
