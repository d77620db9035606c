//===- PartitionSequence.cpp - Attention over a sequence that ranks share out
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

// Ranks along the axis get parts of the inputs, so the captured step is that of
// a part. All ops but attention see one position at a time, which is checked;
// attention gathers keys and values, and knows by the rank's index at which
// positions its queries are:
//
//   attention(q, k, v)          all_gather k, v; attention_part(q, k, v, index)
//   attention_backward(...)     the same again; reduce_scatter of dk, dv
//
// Gathered keys and values are those of context parallelism in Llama 3 (Llama
// Team, 2024, arXiv:2407.21783, section 3.3.2).

#include "passes/outline/Partition.h"

#include "passes/support/KernelKinds.h"
#include "passes/support/RowPositions.h"
#include "passes/support/Streams.h"

#include "dialect/Layouts.h"
#include "dialect/Rules.h"
#include "mlir/IR/Builders.h"
#include "llvm/ADT/DenseSet.h"
#include "llvm/ADT/StringSet.h"

using namespace mlir;

namespace piper {

namespace {

constexpr StringRef forwardOp = "piper.attention.default",
                    backwardOp = "piper.attention_backward.default";
constexpr size_t keyDim = 2; // of keys and values

//===----------------------------------------------------------------------===//
// What sees several positions
//===----------------------------------------------------------------------===//

/// Checks that ops but attention see one position of the sequence at a time.
class PositionChecker {
public:
  PositionChecker(StepOp step, DoSequenceOp sequence)
      : step(step), sequence(sequence) {}

  LogicalResult run() {
    for (auto [name, argument] :
         llvm::zip(step.getInputs().getAsRange<StringAttr>(),
                   step.getBody().getArguments()))
      if (auto dim = sequence.getDims().getAs<IntegerAttr>(name.getValue())) {
        if (failed(checkDim(name, argument, dim.getInt())))
          return failure();
        lengths.insert(getSize(argument, dim.getInt()));
        positions[{argument, size_t(dim.getInt())}] = Exact;
      }
    if (positions.empty())
      return sequence.emitOpError("expected names of inputs, of which the step "
                                  "has ")
             << step.getInputs() << ", got " << sequence.getDims();
    for (auto op : step.getBlock().getOps<TorchOp>())
      if (failed(visit(op)))
        return failure();
    return success();
  }

private:
  using Dim = std::pair<Value, size_t>;
  /// What a dim holds: positions, or, joined with the dims before by a view,
  /// this number of them in a row, or rows of experts (`toRows`).
  using Joined = int64_t;
  using Names = llvm::StringMap<Joined>;
  static constexpr Joined Exact = 0;

  static int64_t getSize(Value value, size_t dim) {
    return cast<RankedTensorType>(value.getType()).getDimSize(dim);
  }

  LogicalResult checkDim(StringAttr name, Value argument, int64_t dim) {
    int64_t rank = cast<RankedTensorType>(argument.getType()).getRank();
    if (dim >= 0 && dim < rank)
      return success();
    return sequence.emitOpError("expected a dim of input ")
           << name << " below " << rank << ", got " << dim;
  }

  LogicalResult visit(TorchOp op) {
    if (op.getOpName().starts_with("aten.arange") &&
        lengths.contains(getSize(op.getResult(0), 0)))
      return fail(op)
             << "numbers positions from 0 on every rank, expected them "
                "as an input of the batch, such as position_ids";
    Names names;
    Rule rule;
    if (StringAttr text = op.getFacts().getRule())
      rule = *parseRule(text);
    if (takesDtypeAlone(op))
      return markSame(op, rule);
    for (auto [number, value] : llvm::enumerate(op.getInputs()))
      for (size_t dim = 0; dim < size_t(getRank(value)); ++dim)
        if (auto found = positions.find({value, dim});
            found != positions.end()) {
          if (!op.getFacts().getRule())
            return fail(op) << "has no rule that says whether it sees one "
                               "position at a time";
          auto [entry, fresh] =
              names.try_emplace(rule.operands[number][dim], found->second);
          if (!fresh && isRows(entry->second) != isRows(found->second))
            return fail(op) << "takes rows of experts, which are in an order "
                               "of their own, beside positions";
          entry->second = found->second;
        }
    if (isExpertsOp(op))
      return visitRows(op, rule);
    if (failed(checkTerms(op, rule)))
      return failure();
    if (names.empty())
      return markSame(op, rule);
    if (op.getOpName() == forwardOp || op.getOpName() == backwardOp)
      return markAttention(op);
    if (failed(checkOthers(op, rule, names)))
      return failure();
    return isReshape(op) ? markView(op, rule, names) : mark(op, rule, names);
  }

  /// Rows of experts are those of the positions that a rank has, and how many
  /// there are a term of how many there are of all.
  LogicalResult visitRows(TorchOp op, const Rule &rule) {
    auto kinds = llvm::map_to_vector(
        op.getInputs(), [&](Value value) { return getKind(value); });
    if (llvm::all_of(kinds, [](AxisKind kind) { return kind == AxisKind(); }))
      return success();
    auto made = inferRows(op, rule, kinds);
    if (!made) {
      InFlightDiagnostic error = fail(op);
      error << "expected tokens that are parts along dim 0, rows and counts of "
               "these tokens, and weights that are whole, got ";
      llvm::interleaveComma(kinds, error,
                            [&](AxisKind kind) { error << toString(kind); });
      return error;
    }
    for (auto [result, kind] : llvm::zip(op.getResults(), *made))
      if (kind.kind == Kind::Partial)
        terms.insert(result);
      else
        positions[{result, size_t(kind.dim)}] = kind.joined;
    return success();
  }

  /// What ranks hold of a value.
  AxisKind getKind(Value value) const {
    AxisKind kind;
    if (terms.contains(value))
      kind.kind = Kind::Partial;
    for (size_t dim = 0; dim < size_t(getRank(value)); ++dim)
      if (auto found = positions.find({value, dim}); found != positions.end())
        kind = kind == AxisKind()
                   ? AxisKind{Kind::Shard, int64_t(dim), nullptr, found->second}
                   : AxisKind{Kind::Varying};
    return kind;
  }

  /// A sum over positions that a rank has is a term of the sum. It may be
  /// reported or added to a gradient, where terms are summed, and until then
  /// pass through ops that are linear in terms alone, but for rounding.
  LogicalResult checkTerms(TorchOp op, const Rule &rule) {
    auto isTerm = [&](Value value) { return terms.contains(value); };
    if (!llvm::any_of(op.getInputs(), isTerm) || ignoresTerms(op))
      return success();
    bool passesTerms = rule.isLinear || onlyRounds(op);
    if (!passesTerms || !llvm::all_of(op.getInputs(), isTerm))
      return fail(op)
             << "goes on with a sum over the part of the sequence that "
                "a rank has";
    terms.insert_range(op.getResults());
    return success();
  }

  /// What is beside positions is made from them, or the same for all of them: a
  /// table of all positions would be read from its start on every rank.
  LogicalResult checkOthers(TorchOp op, const Rule &rule, const Names &names) {
    for (auto [dims, value] : llvm::zip(rule.operands, op.getInputs()))
      for (auto [dim, name] : llvm::enumerate(dims))
        if (names.contains(name) && getSize(value, dim) > 1 &&
            !positions.contains({value, dim}) && !isSame(value, dim))
          return fail(op) << "takes an operand of type " << value.getType()
                          << " of which dim " << dim
                          << " is not that of an input's sequence, expected "
                             "values by positions that are an input, such as "
                             "position_ids";
    return success();
  }

  /// Whether a value is the same along a dim: filled with one number, or
  /// repeated.
  bool isSame(Value value, size_t dim) const {
    return filled.contains(value) || repeated.contains({value, dim});
  }

  LogicalResult markSame(TorchOp op, const Rule &rule) {
    auto isFilled = [&](Value value) { return filled.contains(value); };
    if (fillsWithOne(op) ||
        (!op.getInputs().empty() && llvm::all_of(op.getInputs(), isFilled)))
      filled.insert_range(op.getResults());
    if (op.getOpName() != "aten.expand.default" || !op.getFacts().getRule())
      return success();
    for (auto [dim, factor] : llvm::enumerate(rule.results.front()))
      if (!llvm::is_contained(rule.operands.front(), factor))
        repeated.insert({op.getResult(0), dim});
    return success();
  }

  static int64_t getRank(Value value) {
    return cast<RankedTensorType>(value.getType()).getRank();
  }

  /// Queries, keys and values, gradients and what was kept, have positions at
  /// one dim.
  LogicalResult markAttention(TorchOp op) {
    if (failed(checkPlain(op, op.getOpName() == forwardOp ? 3 : 6)))
      return failure();
    for (Value value : op.getInputs())
      for (size_t dim = 0; dim < size_t(getRank(value)); ++dim)
        if (positions.contains({value, dim}) != (dim == keyDim))
          return fail(op) << "expected queries, keys and values with positions "
                             "along dim 2";
    for (Value result : op.getResults())
      positions[{result, keyDim}] = Exact;
    attentions.insert(op);
    return success();
  }

  /// Neither masks nor offsets: the parts know their positions.
  LogicalResult checkPlain(TorchOp op, size_t mask) {
    size_t offset = op.getArgs().size() - 1;
    auto isNone = [&](size_t position) {
      return !isa<ArgAttr>(op.getArgs()[position]);
    };
    auto start = dyn_cast<IntegerAttr>(op.getArgs()[offset]);
    bool plain = isNone(mask) && start && start.getInt() == 0;
    if (plain && (mask == 3 || isNone(mask + 1)))
      return success();
    InFlightDiagnostic error =
        op.emitError(op.getOpName())
        << " expected no mask and no offset where ranks share out the sequence";
    error.attachNote(sequence.getLoc()) << "the sequence is shared out here";
    return error;
  }

  /// Every factor with positions is one of each result, or summed over.
  LogicalResult mark(TorchOp op, const Rule &rule, const Names &names) {
    for (auto [dims, result] :
         llvm::zip(getResultDims(op, rule), op.getResults())) {
      for (auto &entry : names) {
        if (llvm::is_contained(dims, entry.getKey()))
          continue;
        if (!rule.findSum(entry.getKey()))
          return fail(op) << "sees several positions of the sequence at once";
        terms.insert(result);
      }
      for (auto [dim, name] : llvm::enumerate(dims))
        if (auto found = names.find(name); found != names.end())
          positions[{result, dim}] = found->second;
    }
    return success();
  }

  LogicalResult markView(TorchOp op, const Rule &rule, const Names &names) {
    Value from = op.getInputs()[0], to = op.getResult(0);
    for (auto [dim, name] : llvm::enumerate(rule.operands.front())) {
      auto found = names.find(name);
      if (found == names.end())
        continue;
      AxisKind held = {Kind::Shard, int64_t(dim), nullptr, found->second};
      std::optional<AxisKind> made = followView(op, rule, held);
      bool isExact = made && !held.joined && !made->joined;
      if (!made || (isExact && getSize(from, dim) != getSize(to, made->dim)))
        return fail(op) << "cuts the sequence apart";
      positions[{to, size_t(made->dim)}] = made->joined;
    }
    return success();
  }

  InFlightDiagnostic fail(TorchOp op) {
    InFlightDiagnostic error = op.emitError(op.getOpName()) << ' ';
    error.attachNote(sequence.getLoc()) << "ranks share out the sequence here";
    return error;
  }

public:
  llvm::DenseSet<Operation *> attentions; // over the sequence

private:
  StepOp step;
  DoSequenceOp sequence;
  llvm::DenseMap<Dim, Joined> positions;
  llvm::DenseSet<Dim> repeated; // dims along which values are the same
  llvm::DenseSet<Value> filled; // with one number
  llvm::DenseSet<Value> terms;  // of sums over positions
  llvm::DenseSet<int64_t> lengths;
};

//===----------------------------------------------------------------------===//
// Attention
//===----------------------------------------------------------------------===//

class Partitioner {
public:
  Partitioner(StepOp step, AxisAttr axis, DoSequenceOp sequence,
              SymbolTable &symbols)
      : step(step), axis(axis), sequence(sequence), symbols(symbols),
        builder(step.getContext()) {}

  LogicalResult run() {
    PositionChecker checker(step, sequence);
    if (failed(checker.run()))
      return failure();
    for (auto op :
         llvm::make_early_inc_range(step.getBlock().getOps<TorchOp>())) {
      bool forward = op.getOpName() == forwardOp;
      if (!checker.attentions.contains(op))
        continue;
      forward ? rewriteForward(op) : rewriteBackward(op);
    }
    return success();
  }

private:
  void rewriteForward(TorchOp op) {
    builder.setInsertionPoint(op);
    TagAttr tag = op.getTagAttr();
    auto inputs = op.getInputs();
    SmallVector<Value> operands = {inputs[0], gather(inputs[1], tag, "keys"),
                                   gather(inputs[2], tag, "values"),
                                   readRankIndex(step, axis, symbols)};
    auto args = op.getArgs().getValue();
    TorchOp part =
        call("piper.attention_part.default",
             "b h s d, b h t d, b h t e, 1 -> b h s e, b h s; s at 3", op,
             op.getResultTypes(), operands, {args[4], args[5]});
    if (Attribute primals = op->getAttr("primals"))
      part->setAttr("primals", primals);
    op.replaceAllUsesWith(part);
    op.erase();
  }

  void rewriteBackward(TorchOp op) {
    builder.setInsertionPoint(op);
    TagAttr tag = op.getTagAttr();
    auto inputs = op.getInputs(); // gradient, q, k, v, out, lse
    Value keys = gather(inputs[2], tag, "keys");
    Value values = gather(inputs[3], tag, "values");
    SmallVector<Value> operands = {inputs[0],
                                   inputs[1],
                                   keys,
                                   values,
                                   inputs[4],
                                   inputs[5],
                                   readRankIndex(step, axis, symbols)};
    auto args = op.getArgs().getValue();
    Type types[] = {op.getResult(0).getType(), keys.getType(),
                    values.getType()};
    // Of keys and values the part makes terms for all ranks.
    auto none = builder.getArrayAttr({});
    TorchOp part = call("piper.attention_part_backward.default",
                        "b h s e, b h s d, b h t d, b h t e, b h s e, b h s, 1 "
                        "-> b h s d, b h t d, b h t e; sum s, s at 6",
                        op, types, operands, {args[8], args[9]});
    if (auto lists = op->getAttrOfType<ArrayAttr>("cotangents"))
      part->setAttr("cotangents", builder.getArrayAttr({lists[0], none, none}));
    op.getResult(0).replaceAllUsesWith(part.getResult(0));
    op.getResult(1).replaceAllUsesWith(
        scatter(part.getResult(1), op.getResult(1).getType(), tag, "keys"));
    op.getResult(2).replaceAllUsesWith(
        scatter(part.getResult(2), op.getResult(2).getType(), tag, "values"));
    op.erase();
  }

  /// The op of a part: tensors, then whether it is causal, the scale and the
  /// number of parts.
  TorchOp call(StringRef name, StringRef rule, TorchOp like, TypeRange types,
               ValueRange inputs, ArrayRef<Attribute> options) {
    SmallVector<Attribute> args;
    for (size_t index = 0; index < inputs.size(); ++index)
      args.push_back(ArgAttr::get(step.getContext(), index));
    llvm::append_range(args, options);
    args.push_back(builder.getI64IntegerAttr(axis.getSize()));
    FactsAttr facts = like.getFacts();
    auto own = FactsAttr::get(
        step.getContext(), facts.getEffect(), facts.getFlops() * axis.getSize(),
        false, facts.getHeavy(), std::nullopt, builder.getStringAttr(rule));
    return TorchOp::create(
        builder, like.getLoc(), types, inputs, builder.getStringAttr(name),
        builder.getArrayAttr(args), builder.getDictionaryAttr({}), own,
        UnitAttr(), like.getTagAttr());
  }

  /// Gathers a value once for each pass of a chunk.
  Value gather(Value value, TagAttr tag, StringRef what) {
    Value &known = gathered[{value, tag}];
    if (known)
      return known;
    auto type = cast<RankedTensorType>(value.getType());
    SmallVector<int64_t> shape(type.getShape());
    shape[keyDim] *= axis.getSize();
    auto op = AllGatherOp::create(
        builder, value.getLoc(),
        TypeRange(RankedTensorType::get(shape, type.getElementType())), value,
        DenseI64ArrayAttr(), builder.getArrayAttr(axis.getName()), StringAttr(),
        getLabel(tag, what), IntegerAttr(),
        declareStream(symbols, axis.getName()), ValueRange(), keyDim);
    op->setAttr("tag", tag);
    return known = op.getResults().front();
  }

  Value scatter(Value value, Type type, TagAttr tag, StringRef what) {
    auto op = ReduceScatterOp::create(
        builder, value.getLoc(), TypeRange(type), value, DenseI64ArrayAttr(),
        builder.getArrayAttr(axis.getName()), StringAttr(), getLabel(tag, what),
        IntegerAttr(), declareStream(symbols, axis.getName()), ValueRange(),
        keyDim);
    op->setAttr("tag", tag);
    return op.getResults().front();
  }

  StringAttr getLabel(TagAttr tag, StringRef what) {
    return builder.getStringAttr(tag.getChunk().getValue() + " " + what);
  }

  StepOp step;
  AxisAttr axis;
  DoSequenceOp sequence;
  SymbolTable &symbols;
  OpBuilder builder;
  llvm::DenseMap<std::pair<Value, Attribute>, Value> gathered; // by tag
};

} // namespace

LogicalResult partitionSequence(StepOp step, AxisAttr axis,
                                DoSequenceOp sequence, SymbolTable &symbols) {
  return Partitioner(step, axis, sequence, symbols).run();
}

} // namespace piper
