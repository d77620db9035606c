//===- RowPairs.cpp - Which rows of a backward pass go with which of the forward
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

//   y = moe_linear(x, w, r)               w multiplies x
//   dx = moe_linear_input(dy, w, r)       dy is the gradient of what w makes
//   grad @w moe_linear_weight(dy, x, r)   so these are its rows
//
//   y = silu(x)
//   dx = silu_backward(dy, x)             x or y of some silu on these rows

#include "passes/RowPairs.h"

#include "passes/RowKinds.h"

using namespace mlir;

namespace piper {

/// `aten.silu` of `aten.silu.default` and of `aten.silu_backward.default`.
static StringRef getBaseName(TorchOp op) {
  StringRef name = op.getOpName().rsplit('.').first;
  name.consume_back("_backward");
  return name;
}

void RowPairs::add(Operation *op, bool isInBackward) {
  if (auto read = dyn_cast<ReadOp>(op))
    states[numbers.get(read.getResult())] = read.getSymbolAttr();
  if (!isInBackward)
    for (Value result : op->getResults())
      made.insert(numbers.get(result));
  if (auto torch = dyn_cast<TorchOp>(op); torch && isExpertsOp(torch))
    addProduct(torch, isInBackward);
}

void RowPairs::addProduct(TorchOp op, bool isInBackward) {
  if (op.getInputs().size() != 3 || op->getNumResults() != 1)
    return;
  unsigned first = numbers.get(op.getInputs()[0]);
  Attribute state = states.lookup(numbers.get(op.getInputs()[1]));
  if (op.getOpName() == "piper.moe_linear.default" && state && !isInBackward)
    rows[state].insert(first);
  if (op.getOpName() == "piper.moe_linear_input.default" && state) {
    gradients[state].insert(first);
    ownGradients.insert(first);
  }
  if (op.getOpName() == "piper.moe_linear_weight.default")
    sums.try_emplace(numbers.get(op.getResult(0)), op);
}

void RowPairs::addForward(TorchOp op, unsigned counts) {
  Numbers &known = touched[{getBaseName(op), counts}];
  for (Value value : llvm::concat<Value>(op->getOperands(), op->getResults()))
    known.insert(numbers.get(value));
}

LogicalResult RowPairs::checkSaved(TorchOp op, unsigned counts,
                                   unsigned saved) const {
  unsigned number = numbers.get(op.getInputs()[saved]);
  auto found = touched.find({getBaseName(op), counts});
  if (found == touched.end() || found->second.contains(number) ||
      !made.contains(number))
    return success();
  return op.emitError(op.getOpName())
         << " expected as operand " << saved << " what " << found->first.first
         << " took or made of these rows, got what others did";
}

LogicalResult RowPairs::checkGradient(GradOp grad) const {
  TorchOp sum = sums.lookup(numbers.get(grad.getValue()));
  auto own = rows.find(grad.getStateAttr());
  if (!sum || own == rows.end())
    return success();
  auto fail = [&](StringRef expected) {
    InFlightDiagnostic error = grad.emitOpError("expected a sum over ")
                               << expected << ", got one over others";
    error.attachNote(sum.getLoc()) << "it is made here";
    return error;
  };
  unsigned gradient = numbers.get(sum.getInputs()[0]);
  unsigned row = numbers.get(sum.getInputs()[1]);
  if (made.contains(row) && !own->second.contains(row))
    return fail("rows that the state multiplied");
  auto others = gradients.find(grad.getStateAttr());
  if (others != gradients.end() && ownGradients.contains(gradient) &&
      !others->second.contains(gradient))
    return fail("gradients of what the state made");
  return success();
}

} // namespace piper
