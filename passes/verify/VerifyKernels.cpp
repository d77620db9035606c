//===- VerifyKernels.cpp - Kernels make what types say along auto axes
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

// Before kinds are assigned, a step is followed from its inputs on. Afterwards
// types say what ranks hold, so every chunk is followed by itself, from its
// arguments on: once, however many runs there are of it.

#include "passes/support/AxisKinds.h"
#include "passes/verify/Verify.h"

#include "dialect/Layouts.h"

using namespace mlir;

namespace piper {

namespace {

bool hasLayout(Value value) {
  LayoutAttr layout = getLayout(value.getType());
  return layout && !layout.getAxes().empty();
}

/// Checks that types agree with what ranks hold.
LogicalResult checkTypes(Operation *op, StringAttr axis,
                         const AxisKinds &kinds) {
  for (OpResult result : op->getResults()) {
    if (!isa<RankedTensorType>(result.getType()))
      continue;
    AxisKind declared = getAxisKind(result.getType(), axis);
    AxisKind found = kinds.get(result);
    if (!(declared == found))
      return op->emitOpError("expected result ")
             << result.getResultNumber() << " to be " << toString(found)
             << " on axis '" << axis.getValue() << "', got "
             << toString(declared);
  }
  return success();
}

/// Follows a chunk whose types say what ranks hold.
LogicalResult verifyTyped(ChunkOp chunk, AxisAttr axis, SymbolTable &symbols,
                          KernelKinds &kernels) {
  AxisKinds kinds(axis, symbols, kernels);
  Block &block = chunk.getBody().front();
  bool typed = false;
  for (BlockArgument argument : block.getArguments()) {
    kinds.set(argument, getAxisKind(argument.getType(), axis.getName()));
    typed |= hasLayout(argument);
  }
  for (Operation &op : block)
    typed |= llvm::any_of(op.getResults(), hasLayout);
  if (!typed)
    return success();
  if (failed(kinds.visit(chunk)))
    return failure();
  for (Operation &op : block)
    if (failed(checkTypes(&op, axis.getName(), kinds)))
      return failure();
  return success();
}

/// Checks that ranks hold the whole of what a step, whose types say what they
/// hold, divides by or reports.
LogicalResult verifyReported(StepOp step, StringAttr axis) {
  for (Operation &op : step.getBlock()) {
    if (!isa<TangentOp, OutputOp>(op))
      continue;
    for (Value value : op.getOperands())
      if (AxisKind kind = getAxisKind(value.getType(), axis);
          !(kind == AxisKind()))
        return op.emitOpError("expected a value that is replicated on axis '")
               << axis.getValue() << "', got " << toString(kind);
  }
  return success();
}

} // namespace

LogicalResult verifyKernels(ModuleOp module, SymbolTable &symbols) {
  MeshOp mesh = findMesh(module);
  if (!mesh)
    return success();
  if (failed(checkSteps(module, symbols)))
    return failure();
  KernelKinds kernels;
  for (AxisAttr axis : getSharedAxes(mesh)) {
    for (auto step : module.getOps<StepOp>())
      if (step.getPhase() == Phase::Bucketed &&
          failed(verifyReported(step, axis.getName())))
        return failure();
    for (auto chunk : module.getOps<ChunkOp>())
      if (failed(verifyTyped(chunk, axis, symbols, kernels)))
        return failure();
  }
  return success();
}

} // namespace piper
