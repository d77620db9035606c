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

/// Parses `2 = r` or `1.2 = h`.
static std::optional<Rule::Size> parseSize(StringRef text) {
  auto [place, name] = text.split('=');
  auto [position, index] = place.trim().split('.');
  Rule::Size size = {0, std::nullopt, name.trim()};
  if (position.getAsInteger(10, size.position) || size.name.empty())
    return std::nullopt;
  if (!index.empty() && index.getAsInteger(10, size.index.emplace()))
    return std::nullopt;
  return size;
}

/// Parses `c d by mine.b.default after mine.a.default same 1`.
static std::optional<Rule::PartOp> parsePartOp(StringRef text) {
  auto [names, rest] = text.split(" by ");
  Rule::PartOp part;
  names.split(part.names, ' ', /*MaxSplit=*/-1, /*KeepEmpty=*/false);
  SmallVector<StringRef> words;
  rest.split(words, ' ', /*MaxSplit=*/-1, /*KeepEmpty=*/false);
  if (part.names.empty() || words.size() % 2 == 0)
    return std::nullopt;
  part.op = words.front();
  for (size_t word = 1; word < words.size(); word += 2) {
    StringRef value = words[word + 1];
    if (words[word] == "after")
      part.stats = value;
    else if (words[word] != "same" ||
             value.getAsInteger(10, part.same.emplace()))
      return std::nullopt;
  }
  return part;
}

/// Parses `c` or `c but 1`.
static std::optional<Rule::Sum> parseSum(StringRef text) {
  auto [name, but] = text.split(" but ");
  Rule::Sum sum = {name.trim(), std::nullopt};
  if (sum.name.empty() ||
      (!but.empty() && but.trim().getAsInteger(10, sum.but.emplace())))
    return std::nullopt;
  return sum;
}

/// Parses `c at 2`, of a rule of so many operands.
static std::optional<Rule::Index> parseIndex(StringRef text,
                                             size_t numOperands) {
  auto [name, operand] = text.split(" at ");
  Rule::Index index = {name.trim(), 0};
  if (index.name.empty() || operand.trim().getAsInteger(10, index.operand) ||
      index.operand >= numOperands)
    return std::nullopt;
  return index;
}

std::optional<Rule> parseRule(StringRef text) {
  Rule rule;
  auto [dims, rest] = text.split(';');
  size_t arrow = dims.find("->");
  if (arrow == StringRef::npos ||
      !parseSide(dims.take_front(arrow), rule.operands) ||
      !parseSide(dims.drop_front(arrow + 2), rule.results))
    return std::nullopt;
  SmallVector<StringRef> entries;
  rest.split(entries, ',', /*MaxSplit=*/-1, /*KeepEmpty=*/false);
  for (StringRef entry : entries) {
    entry = entry.trim();
    if (entry == "linear") {
      rule.isLinear = true;
    } else if (entry.consume_front("sum ")) {
      std::optional<Rule::Sum> sum = parseSum(entry);
      if (!sum)
        return std::nullopt;
      rule.sums.push_back(*sum);
    } else if (entry.contains(" by ")) {
      std::optional<Rule::PartOp> part = parsePartOp(entry);
      if (!part)
        return std::nullopt;
      rule.partOps.push_back(*part);
    } else if (entry.contains(" at ")) {
      rule.index = parseIndex(entry, rule.operands.size());
      if (!rule.index)
        return std::nullopt;
    } else {
      std::optional<Rule::Size> size = parseSize(entry);
      if (!size)
        return std::nullopt;
      rule.sizes.push_back(*size);
    }
  }
  return rule;
}

std::string toString(const Rule &rule) {
  std::string text;
  llvm::raw_string_ostream os(text);
  auto printSide = [&](ArrayRef<Rule::Dims> tensors) {
    llvm::interleave(
        tensors, os,
        [&](const Rule::Dims &dims) { llvm::interleave(dims, os, " "); }, ", ");
  };
  printSide(rule.operands);
  os << " -> ";
  printSide(rule.results);
  StringRef separator = "; ";
  auto begin = [&]() -> llvm::raw_ostream & {
    os << separator;
    separator = ", ";
    return os;
  };
  if (rule.isLinear)
    begin() << "linear";
  for (const Rule::Size &size : rule.sizes) {
    begin() << size.position;
    if (size.index)
      os << '.' << *size.index;
    os << " = " << size.name;
  }
  for (const Rule::Sum &sum : rule.sums) {
    begin() << "sum " << sum.name;
    if (sum.but)
      os << " but " << *sum.but;
  }
  if (rule.index)
    begin() << rule.index->name << " at " << rule.index->operand;
  for (const Rule::PartOp &part : rule.partOps) {
    llvm::interleave(part.names, begin(), " ");
    os << " by " << part.op;
    if (!part.stats.empty())
      os << " after " << part.stats;
    if (part.same)
      os << " same " << *part.same;
  }
  return text;
}

std::string getPartRule(const Rule &rule, const Rule::PartOp &part,
                        bool hasStats) {
  Rule own = rule;
  StringRef factor = part.names.front();
  auto isPart = [&](StringRef name) {
    return llvm::is_contained(part.names, name);
  };
  auto join = [&](MutableArrayRef<Rule::Dims> tensors) {
    for (Rule::Dims &dims : tensors)
      std::replace_if(dims.begin(), dims.end(), isPart, factor);
  };
  join(own.operands);
  join(own.results);
  own.index = {factor, own.operands.size()};
  own.operands.push_back({"1"});
  std::string stats = factor.str() + "s"; // an element of each part, all whole
  if (hasStats) {
    auto isTaken = [&](const Rule::Dims &dims) {
      return llvm::is_contained(dims, stats);
    };
    while (llvm::any_of(rule.operands, isTaken) ||
           llvm::any_of(rule.results, isTaken))
      stats += "s";
    Rule::Dims &dims = own.operands.emplace_back(own.results.front());
    llvm::replace(dims, factor, StringRef(stats));
  }
  for (Rule::Size &size : own.sizes)
    if (isPart(size.name))
      size.name = factor;
  if (llvm::any_of(own.results, [&](const Rule::Dims &dims) {
        return !llvm::is_contained(dims, factor);
      }))
    own.sums.push_back({factor, part.same});
  llvm::erase_if(own.partOps, [&](const Rule::PartOp &other) {
    return other.names == part.names;
  });
  return toString(own);
}

IntegerAttr Rule::Size::get(ArrayAttr args) const {
  if (position < 0 || position >= int64_t(args.size()))
    return {};
  Attribute arg = args[position];
  if (!index)
    return dyn_cast<IntegerAttr>(arg);
  auto list = dyn_cast<ArrayAttr>(arg);
  return list && *index >= 0 && *index < int64_t(list.size())
             ? dyn_cast<IntegerAttr>(list[*index])
             : IntegerAttr();
}

ArrayAttr Rule::Size::set(ArrayAttr args, int64_t size) const {
  MLIRContext *context = args.getContext();
  SmallVector<Attribute> changed(args.getValue());
  auto number = IntegerAttr::get(get(args).getType(), size);
  if (!index) {
    changed[position] = number;
  } else {
    SmallVector<Attribute> list(cast<ArrayAttr>(args[position]).getValue());
    list[*index] = number;
    changed[position] = ArrayAttr::get(context, list);
  }
  return ArrayAttr::get(context, changed);
}

int64_t getPosition(TorchOp op, int64_t number) {
  auto positions = op->getAttrOfType<DenseI64ArrayAttr>("positions");
  return positions ? positions.asArrayRef()[number] : number;
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
