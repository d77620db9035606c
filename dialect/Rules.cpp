//===- Rules.cpp - How the dims of an op's operands and results belong together
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "dialect/Rules.h"

#include "llvm/ADT/StringExtras.h"

using namespace mlir;

namespace piper {

/// The dims of the tensors of one side.
static bool parseSide(StringRef text, SmallVectorImpl<Rule::Dims> &tensors) {
  if (text.trim().empty() && !text.contains(','))
    text = ""; // a scalar
  SmallVector<StringRef> parts;
  text.split(parts, ',');
  for (StringRef part : parts) {
    Rule::Dims &dims = tensors.emplace_back();
    part.split(dims, ' ', /*MaxSplit=*/-1, /*KeepEmpty=*/false);
    for (StringRef name : dims)
      if (!llvm::all_of(name, [](char c) { return llvm::isAlnum(c); }))
        return false;
  }
  return true;
}

std::optional<Rule> parseRule(StringRef text) {
  Rule rule;
  auto [dims, sizes] = text.split(';');
  size_t arrow = dims.find("->");
  if (arrow == StringRef::npos ||
      !parseSide(dims.take_front(arrow), rule.operands) ||
      !parseSide(dims.drop_front(arrow + 2), rule.results))
    return std::nullopt;
  SmallVector<StringRef> entries;
  sizes.split(entries, ',', /*MaxSplit=*/-1, /*KeepEmpty=*/false);
  for (StringRef entry : entries) {
    auto [position, name] = entry.split('=');
    int64_t index;
    if (position.trim().getAsInteger(10, index) || name.trim().empty())
      return std::nullopt;
    rule.sizes.push_back({index, name.trim()});
  }
  return rule;
}

SmallVector<Rule::Dims> getResultDims(TorchOp op, const Rule &rule) {
  auto positions = op->getAttrOfType<DenseI64ArrayAttr>("positions");
  if (!positions)
    return llvm::to_vector(
        ArrayRef(rule.results).take_front(op->getNumResults()));
  SmallVector<Rule::Dims> dims;
  for (int64_t position : positions.asArrayRef())
    dims.push_back(position < int64_t(rule.results.size())
                       ? rule.results[position]
                       : Rule::Dims());
  return dims;
}

} // namespace piper
