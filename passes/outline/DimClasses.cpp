//===- DimClasses.cpp - Which dims of a step's values belong together
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "passes/outline/DimClasses.h"

#include "dialect/Rules.h"
#include "llvm/ADT/StringMap.h"

using namespace mlir;

namespace piper {

void DimClasses::joinByRule(TorchOp op, bool ones) {
  if (!op.getFacts().getRule())
    return;
  Rule rule = *parseRule(op.getFacts().getRule());
  llvm::StringMap<Dim> first;
  auto add = [&](ArrayRef<Rule::Dims> names, ValueRange values) {
    for (auto [tensor, value] : llvm::zip(names, values))
      for (auto [dim, name] : llvm::enumerate(tensor))
        if (ones || !Rule::isOne(name))
          join(first.try_emplace(name, value, dim).first->second, {value, dim});
  };
  add(rule.operands, op.getInputs());
  add(getResultDims(op, rule), op.getResults());
}

} // namespace piper
