//===- KernelKinds.cpp - What ranks along auto axes hold of what kernels make
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

// The rules by which `piper-partition` gave ranks their parts say afterwards
// what ranks hold of each value:
//
//   operands                        results
//   replicated, all of them         replicated
//   shards of one factor            a shard of it; without it, where the rule
//                                   says `sum`, partial
//   partial, all, of a linear op    partial
//   anything else                   varying: nobody knows
//
// A factor is whole in an operand that is replicated, so that shards beside it
// do not go together with it. A rank's index, of which each has another, makes
// its factor one of which the op computes parts.

#include "passes/support/KernelKinds.h"

#include "passes/support/RowPositions.h"

#include "dialect/Layouts.h"
#include "dialect/Rules.h"
#include "mlir/IR/TypeUtilities.h"

using namespace mlir;

namespace piper {

llvm::raw_ostream &operator<<(llvm::raw_ostream &os, AxisKind kind) {
  os << stringifyKind(kind.kind);
  if (kind.kind == Kind::Shard)
    os << '(' << kind.dim << ')';
  if (isRows(kind.joined))
    os << " in an order of rows";
  else if (kind.joined)
    os << " by runs of " << kind.joined;
  return os;
}

std::string toString(AxisKind kind) {
  std::string text;
  llvm::raw_string_ostream(text) << kind;
  return text;
}

AxisKind getAxisKind(Type type, StringAttr axis) {
  LayoutAttr layout = getLayout(type);
  for (AxisKindAttr entry :
       layout ? layout.getAxes() : ArrayRef<AxisKindAttr>())
    if (entry.getAxis() == axis)
      return {entry.getKind(),
              entry.getKind() == Kind::Shard ? entry.getDim() : 0};
  return {};
}

SmallVector<AxisAttr> getSharedAxes(MeshOp mesh) {
  SmallVector<AxisAttr> axes = mesh.getAxesWithRole(AxisRole::Auto);
  llvm::erase_if(axes, [](AxisAttr axis) { return axis.getSize() == 1; });
  return axes;
}

static bool isReplicated(AxisKind kind) {
  return kind.kind == Kind::Replicated;
}

static int64_t getDimSize(Value value, size_t dim) {
  return cast<RankedTensorType>(value.getType()).getDimSize(dim);
}

//===----------------------------------------------------------------------===//
// Positions
//===----------------------------------------------------------------------===//

bool fillsWithOne(TorchOp op) {
  StringRef name = op.getOpName();
  return name.contains("full") || name.contains("zeros") ||
         name.contains("ones") || name.contains("empty") ||
         name.contains("scalar_tensor");
}

bool takesDtypeAlone(TorchOp op) {
  return fillsWithOne(op) && op.getOpName().starts_with("aten.new_");
}

bool ignoresTerms(TorchOp op) {
  return op.getOpName() == "aten.nll_loss_backward.default" || // of a sum
         op.getOpName() == "piper.nll_loss_backward_part.default";
}

bool onlyRounds(TorchOp op) {
  auto isFloating = [](Value value) {
    return isa<FloatType>(getElementTypeOrSelf(value));
  };
  return op.getOpName() == "aten._to_copy.default" &&
         llvm::all_of(op.getInputs(), isFloating) &&
         llvm::all_of(op.getResults(), isFloating);
}

bool isReshape(TorchOp op) {
  auto count = [](Value value) { // of rows that the run counts once
    int64_t product = 1;
    for (int64_t size : cast<RankedTensorType>(value.getType()).getShape())
      product *= ShapedType::isDynamic(size) ? -1 : size;
    return product;
  };
  return op.isView() && op.getInputs().size() == 1 &&
         llvm::all_of(op.getResults(), [&](Value result) {
           return count(result) == count(op.getInputs()[0]);
         });
}

/// Whether an op cuts a value into the parts of ranks along another axis. Each
/// of these is of fewer positions, of which ranks have parts all the same,
/// unless the batch was joined with them.
static bool cutsAlongOther(TorchOp op, ArrayRef<AxisKind> operands) {
  return op.getOpName() == "piper.part.default" && isReplicated(operands[1]) &&
         !operands[0].joined;
}

/// The dims along which the results of an op of replicated operands are the
/// same everywhere.
static uint64_t getSameDims(TorchOp op, ArrayRef<AxisKind> operands) {
  constexpr uint64_t all = ~0ull;
  auto isFilled = [](AxisKind held) { return held.same == all; };
  if (fillsWithOne(op) ||
      (!operands.empty() && llvm::all_of(operands, isFilled)))
    return all;
  if (op.getOpName() != "aten.expand.default" || !op.getFacts().getRule())
    return 0;
  Rule rule = *parseRule(op.getFacts().getRule());
  uint64_t same = 0;
  for (auto [dim, factor] : llvm::enumerate(rule.results.front()))
    if (!llvm::is_contained(rule.operands.front(), factor))
      same |= 1ull << dim;
  return same;
}

std::optional<AxisKind> followView(TorchOp op, const Rule &rule,
                                   AxisKind held) {
  const Rule::Dims &before = rule.operands.front();
  const Rule::Dims &after = rule.results.front();
  Value from = op.getInputs()[0], to = op.getResult(0);
  size_t dim = held.dim, head = dim;
  while (head > 0 && !llvm::is_contained(after, before[head]))
    --head;
  size_t there = llvm::find(after, before[head]) - after.begin();
  bool isLast = dim + 1 == before.size() ||
                llvm::is_contained(after, before[dim + 1]) ||
                getDimSize(from, dim + 1) == 1;
  if (there == after.size() || (!isLast && (head != dim || held.joined)))
    return std::nullopt;
  AxisKind made = {Kind::Shard, int64_t(there)};
  if (head != dim) // joined with what is before
    made.joined = held.joined ? held.joined : getDimSize(from, dim);
  else if (!held.joined || getDimSize(from, dim) == getDimSize(to, there))
    made.joined = held.joined;
  else { // split off: they are the last of the dims that come of one
    size_t last = there;
    while (last + 1 < after.size() &&
           !llvm::is_contained(before, after[last + 1]))
      ++last;
    while (last > there && getDimSize(to, last) == 1)
      --last;
    if (getDimSize(to, last) != held.joined)
      return std::nullopt;
    made.dim = last;
  }
  return made;
}

//===----------------------------------------------------------------------===//
// Ops
//===----------------------------------------------------------------------===//

/// The factor of which operands are shards, if they go together: every operand
/// that has the factor is a shard of it, or the same along it, and others are
/// replicated.
std::optional<StringRef> KernelKinds::findFactor(TorchOp op, const Rule &rule,
                                                 ArrayRef<AxisKind> operands) {
  std::optional<StringRef> factor;
  int64_t joined = 0;
  auto isIndex = [&](size_t number) {
    return rule.index && rule.index->operand == number;
  };
  for (auto [number, held] : llvm::enumerate(operands)) {
    if (isReplicated(held))
      continue;
    if (held.kind != Kind::Shard)
      return std::nullopt;
    StringRef name =
        isIndex(number) ? rule.index->name : rule.operands[number][held.dim];
    if (Rule::isOne(name) || isOfRows(op, name) ||
        (factor && (*factor != name || joined != held.joined)))
      return std::nullopt;
    factor = name;
    joined = held.joined;
  }
  for (auto [number, names] : llvm::enumerate(rule.operands)) {
    AxisKind held = operands[number];
    if (!isReplicated(held))
      continue;
    if (isIndex(number) && rule.index->name == *factor)
      return std::nullopt;
    for (auto [dim, name] : llvm::enumerate(names))
      if (name == *factor &&
          !(ofPositions && (getDimSize(op.getInputs()[number], dim) == 1 ||
                            held.same >> dim & 1)))
        return std::nullopt;
  }
  return factor;
}

AxisKind KernelKinds::getUnknown(TorchOp op, ArrayRef<AxisKind> operands) {
  for (AxisKind operand : operands)
    if (operand.kind == Kind::Varying)
      return operand; // it was unknown before
  std::string text;
  llvm::raw_string_ostream os(text);
  llvm::interleaveComma(operands, os);
  return {Kind::Varying, 0, &unknown.emplace_back(Unknown{op, text})};
}

SmallVector<AxisKind> KernelKinds::getRows(TorchOp op, const Rule *rule,
                                           ArrayRef<AxisKind> operands) {
  if (rule)
    if (auto made = inferRows(op, *rule, operands))
      return *made;
  return {op->getNumResults(), getUnknown(op, operands)};
}

SmallVector<AxisKind> KernelKinds::infer(TorchOp op, ArrayRef<AxisKind> given) {
  SmallVector<AxisKind> operands(given), results(op->getNumResults());
  if (ofPositions && takesDtypeAlone(op))
    operands.assign(operands.size(), {});
  if (ofPositions && ignoresTerms(op))
    for (AxisKind &held : operands)
      if (held.kind == Kind::Partial)
        held = {};
  if (llvm::all_of(operands, isReplicated)) {
    if (ofPositions)
      for (AxisKind &result : results)
        result.same = getSameDims(op, operands);
    return results;
  }
  if (ofPositions && cutsAlongOther(op, operands)) {
    results.front() = operands.front();
    return results;
  }
  StringAttr text = op.getFacts().getRule();
  std::optional<Rule> rule = text ? parseRule(text) : std::nullopt;
  if (ofPositions && isExpertsOp(op))
    return getRows(op, rule ? &*rule : nullptr, operands);
  auto isPartial = [](AxisKind held) { return held.kind == Kind::Partial; };
  bool passesTerms =
      rule && (rule->isLinear || (ofPositions && onlyRounds(op)));
  if (passesTerms && llvm::all_of(operands, isPartial)) {
    results.assign(results.size(), {Kind::Partial});
    return results;
  }
  std::optional<StringRef> factor =
      rule ? findFactor(op, *rule, operands) : std::nullopt;
  std::optional<AxisKind> lost;
  auto getLost = [&]() {
    if (!lost)
      lost = getUnknown(op, operands);
    return *lost;
  };
  if (!factor) {
    results.assign(results.size(), getLost());
    return results;
  }
  if (ofPositions && isReshape(op)) {
    std::optional<AxisKind> made = followView(op, *rule, operands.front());
    results.assign(results.size(), made ? *made : getLost());
    return results;
  }
  auto isShard = [](AxisKind held) { return held.kind == Kind::Shard; };
  int64_t joined = llvm::find_if(operands, isShard)->joined;
  const Rule::Sum *sum = rule->findSum(*factor);
  for (auto [number, names] : llvm::enumerate(getResultDims(op, *rule))) {
    auto *dim = llvm::find(names, *factor);
    if (dim != names.end())
      results[number] = {Kind::Shard, dim - names.begin(), nullptr, joined};
    else if (!sum)
      results[number] = getLost();
    else if (sum->but != getPosition(op, number))
      results[number] = {Kind::Partial};
  }
  return results;
}

ArrayRef<AxisKind> KernelKinds::infer(KernelOp kernel,
                                      ArrayRef<AxisKind> operands) {
  auto [entry, fresh] = known.try_emplace(
      {kernel, std::vector(operands.begin(), operands.end())});
  SmallVector<AxisKind> &results = entry->second;
  if (!fresh)
    return results;
  Block &block = kernel.getBody().front();
  llvm::DenseMap<Value, AxisKind> held;
  for (auto [argument, kind] : llvm::zip(block.getArguments(), operands))
    held[argument] = kind;
  auto get = [&](Value value) { return held.lookup(value); };
  for (auto op : block.getOps<TorchOp>())
    for (auto [result, kind] :
         llvm::zip(op.getResults(),
                   infer(op, llvm::map_to_vector(op.getInputs(), get))))
      held[result] = kind;
  results = llvm::map_to_vector(block.back().getOperands(), get);
  return results;
}

SmallVector<LayoutAttr> KernelKinds::getLayouts(KernelOp kernel, MeshOp mesh,
                                                ValueRange operands) {
  auto type = cast<FunctionType>(kernel.getFunctionType());
  LayoutAttr replicated = mesh.getRankLayout(Kind::Replicated);
  if (!replicated)
    return SmallVector<LayoutAttr>(type.getNumResults());
  SmallVector<LayoutAttr> layouts(type.getNumResults(),
                                  mixKinds(operands, replicated));
  for (AxisAttr axis : getSharedAxes(mesh)) {
    auto held = llvm::map_to_vector(operands, [&](Value operand) {
      return getAxisKind(operand.getType(), axis.getName());
    });
    for (auto [layout, kind] : llvm::zip(layouts, infer(kernel, held)))
      layout = layout.withKind(axis.getName(), kind.kind, kind.dim);
  }
  return layouts;
}

} // namespace piper
