//===- PartOps.cpp - Ops that take parts of what another op takes whole
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

// A softmax over a vocabulary of which ranks have parts is one over a part,
// given the maximum and the sum over all: a third op makes these of each part,
// and all ranks gather them.

#include "passes/outline/PartOps.h"

#include "mlir/IR/Builders.h"

using namespace mlir;

namespace piper {

static FactsAttr getPartFacts(TorchOp op, const Rule &rule,
                              const Rule::PartOp &part, bool hasStats) {
  FactsAttr facts = op.getFacts();
  return FactsAttr::get(
      op.getContext(), facts.getEffect(), facts.getFlops(), /*strided=*/false,
      facts.getHeavy(), facts.getMask(),
      StringAttr::get(op.getContext(), getPartRule(rule, part, hasStats)));
}

/// An element for each part, in fp32 at least.
static Type getStatsType(Type type, size_t dim) {
  auto one = cast<RankedTensorType>(resize(type, dim, 1));
  Type element = one.getElementType();
  if (element.getIntOrFloatBitWidth() < 32)
    element = Float32Type::get(type.getContext());
  return RankedTensorType::get(one.getShape(), element, one.getEncoding());
}

void callPartOp(TorchOp op, const Rule &rule, const Rule::PartOp &part,
                std::optional<size_t> dim, int64_t size, Value index,
                SharedValues &values) {
  int64_t count = op.getInputs().size();
  NamedAttrList kwargs(op.getKwargs());
  kwargs.append(values.getPartArgs(count, size));
  op.getInputsMutable().append(index);
  op.setFactsAttr(getPartFacts(op, rule, part, /*hasStats=*/false));
  op.setOpName(part.op);
  op.setKwargsAttr(kwargs.getDictionary(op.getContext()));
  if (part.stats.empty())
    return;
  OpBuilder builder(op);
  auto stats = cast<TorchOp>(builder.clone(*op));
  stats->removeAttr("primals");
  stats->removeAttr("cotangents");
  stats.setOpName(part.stats);
  Value value = stats.getResult(0);
  value.setType(getStatsType(value.getType(), *dim));
  values.setStats(value, *dim);
  op.getInputsMutable().append(values.getWhole(value, op, op.getTagAttr()));
  kwargs.set("stats", ArgAttr::get(op.getContext(), count + 1));
  op.setKwargsAttr(kwargs.getDictionary(op.getContext()));
  op.setFactsAttr(getPartFacts(op, rule, part, /*hasStats=*/true));
}

} // namespace piper
