//===- Split.cpp - Record how the batch is cut into microbatches
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

#define GEN_PASS_DEF_SPLITPASS
#include "passes/Passes.h.inc"

namespace {

/// The directive and the step agree on which inputs are split, and where.
LogicalResult checkDims(DoSplitOp split, StepOp step) {
  for (NamedAttribute entry : split.getDims())
    if (!llvm::is_contained(step.getInputs(), entry.getName()))
      return split.emitOpError("expected an input of ")
             << step.getInputs() << ", got '" << entry.getName().getValue()
             << "'";
  for (auto [input, dim] :
       llvm::zip(step.getInputs().getAsRange<StringAttr>(), step.getDims())) {
    auto wanted = split.getDims().getAs<IntegerAttr>(input);
    if (dim != (wanted ? wanted.getInt() : -1))
      return split.emitOpError("expected dim ")
             << dim << " for input " << input
             << ", as the step was captured, got "
             << (wanted ? wanted.getInt() : -1);
  }
  return success();
}

/// The captured shapes are those of one microbatch of one rank.
LogicalResult checkShapes(DoSplitOp split, StepOp step, int64_t shards) {
  if (!step.getBatch())
    return success();
  int64_t parts = split.getMicrobatches() * shards;
  for (auto [argument, name, dim] :
       llvm::zip(step.getBody().getArguments(),
                 step.getInputs().getAsRange<StringAttr>(), step.getDims())) {
    if (dim < 0)
      continue;
    int64_t size = cast<RankedTensorType>(argument.getType()).getDimSize(dim);
    if (size * parts != int64_t(*step.getBatch()))
      return split.emitOpError("expected ")
             << *step.getBatch() << " examples in " << split.getMicrobatches()
             << " microbatches on " << shards
             << " data-parallel ranks, but the step was captured with " << size
             << " examples of input " << name << " per microbatch and rank";
  }
  return success();
}

class SplitPass : public impl::SplitPassBase<SplitPass> {
  void runOnOperation() override {
    FactRecorder facts;
    Builder builder(&getContext());
    for (auto step : getOperation().getOps<StepOp>()) {
      for (auto split : findDirectives<DoSplitOp>(getOperation())) {
        if (failed(checkDims(split, step)) ||
            failed(checkShapes(split, step, getShards())) ||
            failed(facts.record(
                step, "microbatches",
                builder.getI64IntegerAttr(split.getMicrobatches()), split)))
          return signalPassFailure();
      }
      if (!step.getMicrobatches())
        step.setMicrobatches(1);
    }
  }

  /// Number of ranks among which replicate directives split the batch. Along an
  /// axis that shares out sequences ranks have the same examples.
  int64_t getShards() {
    llvm::SmallSetVector<Attribute, 4> axes;
    for (auto replicate : findDirectives<DoReplicateOp>(getOperation()))
      axes.insert_range(replicate.getAxes());
    for (auto sequence : findDirectives<DoSequenceOp>(getOperation()))
      axes.remove(sequence.getAxisAttr());
    MeshOp mesh = findMesh(getOperation());
    return mesh ? product(
                      mesh,
                      Builder(&getContext()).getArrayAttr(axes.getArrayRef()))
                : 1;
  }
};

} // namespace
} // namespace piper
