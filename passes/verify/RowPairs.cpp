//===- RowPairs.cpp - Which rows and gradients make the gradient of a weight
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

//   y = moe_linear(x, w, r)                  x goes with w
//   dx = moe_linear_input(dy, w, r)          dy goes with w
//   grad @w moe_linear_weight(dy, x, r)      and no other weight's instead

#include "passes/verify/RowPairs.h"

using namespace mlir;

namespace piper {

void RowPairs::add(Operation *op) {
  if (auto read = dyn_cast<ReadOp>(op))
    states[numbers.get(read.getResult())] = read.getSymbolAttr();
  auto torch = dyn_cast<TorchOp>(op);
  if (!torch || torch.getInputs().size() != 3 || torch->getNumResults() != 1)
    return;
  StringRef name = torch.getOpName();
  if (name == "piper.moe_linear_weight.default")
    sums.try_emplace(numbers.get(torch.getResult(0)), torch);
  bool isForward = name == "piper.moe_linear.default";
  if (!isForward && name != "piper.moe_linear_input.default")
    return;
  Attribute state = states.lookup(numbers.get(torch.getInputs()[1]));
  if (!state)
    return;
  unsigned operand = numbers.get(torch.getInputs()[0]);
  for (Operands *known : {&own[state], &all})
    (isForward ? known->rows : known->gradients).insert(operand);
}

LogicalResult RowPairs::check(GradOp grad) const {
  TorchOp sum = sums.lookup(numbers.get(grad.getValue()));
  auto found = own.find(grad.getStateAttr());
  if (!sum || found == own.end())
    return success();
  auto isOfOthers = [&](unsigned operand,
                        llvm::DenseSet<unsigned> Operands::*of) {
    const llvm::DenseSet<unsigned> &known = found->second.*of;
    unsigned number = numbers.get(sum.getInputs()[operand]);
    return !known.empty() && !known.contains(number) &&
           (all.*of).contains(number);
  };
  bool hasOtherGradients = isOfOthers(0, &Operands::gradients);
  if (!hasOtherGradients && !isOfOthers(1, &Operands::rows))
    return success();
  InFlightDiagnostic error =
      grad.emitOpError("expected a sum over ")
      << (hasOtherGradients ? "gradients of what the state made"
                            : "rows that the state multiplied")
      << ", got one over those of other states";
  error.attachNote(sum.getLoc()) << "it is made here";
  return failure();
}

} // namespace piper
