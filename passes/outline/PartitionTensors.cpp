//===- PartitionTensors.cpp - Let ranks compute parts of what ops make
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

// One walk in data order. An op of which one operand is a part of a factor
// computes with that part of the factor:
//
//   mm(x, w) "m k, k n -> m n; sum k"     w part of n: the result is part of n
//                                         w part of k, x too: an unfinished sum
//   relu, view, attention                 parts stay parts
//   add of unfinished sums                an unfinished sum: it is linear
//   any other op of an unfinished sum     all_reduce first
//   an op that needs a part whole         all_gather first; or by its rule
//                                         another op, that takes parts
//
// With that, weights sharded by output and by input give tensor parallelism as
// in Shoeybi et al., "Megatron-LM" (2019, arXiv:1909.08053), forward and
// backward.

#include "passes/outline/DimClasses.h"
#include "passes/outline/PartOps.h"
#include "passes/outline/Partition.h"
#include "passes/outline/SharedValues.h"
#include "passes/support/RowPositions.h"

#include "dialect/Layouts.h"
#include "dialect/Rules.h"
#include "mlir/IR/Builders.h"
#include "llvm/ADT/DenseSet.h"
#include "llvm/ADT/SetVector.h"

using namespace mlir;

namespace piper {

namespace {

class Partitioner {
public:
  Partitioner(StepOp step, AxisAttr axis, Operation *shard,
              DoSequenceOp sequence, SymbolTable &symbols)
      : step(step), axis(axis), shard(shard), sequence(sequence),
        symbols(symbols), builder(step.getContext()),
        values(step, axis, symbols) {}

  LogicalResult run() {
    if (sequence && failed(findPositions()))
      return failure();
    for (auto grad : step.getBlock().getOps<GradOp>())
      if (std::optional<Held> own =
              getHeld(symbols.lookup<StateOp>(grad.getState())))
        want(grad.getValue(), own->dim);
    for (Operation &op : llvm::make_early_inc_range(step.getBlock()))
      if (failed(visit(&op)))
        return failure();
    return success();
  }

private:
  //===--------------------------------------------------------------------===//
  // Values
  //===--------------------------------------------------------------------===//

  /// What the states hold that a chain of casts and moved dims starts from.
  bool isWeight(Value value) const {
    while (auto torch = value.getDefiningOp<TorchOp>()) {
      if (torch.getInputs().size() != 1)
        return false;
      value = torch.getInputs().front();
    }
    return value.getDefiningOp<ReadOp>() != nullptr;
  }

  /// Notes that only a part of a value is asked for, at the op that can compute
  /// it without the rest.
  void want(Value value, size_t dim) {
    auto op = value.getDefiningOp<TorchOp>();
    if (!op || !op.getFacts().getRule() || !value.hasOneUse())
      return;
    Rule rule = *parseRule(op.getFacts().getRule());
    size_t number = cast<OpResult>(value).getResultNumber();
    StringRef factor = getResultDims(op, rule)[number][dim];
    auto has = [&](const Rule::Dims &names) {
      return llvm::is_contained(names, factor);
    };
    bool byPart = rule.findPartOp(factor);
    if (Rule::isOne(factor) || isOfRows(op, factor) ||
        (!byPart && !llvm::any_of(rule.operands, has)))
      return;
    const Rule::Dims &first = rule.operands.front();
    if (op.getInputs().size() == 1 && !byPart)
      want(op.getInputs()[0], llvm::find(first, factor) - first.begin());
    else
      wanted[op] = builder.getStringAttr(factor);
  }

  /// Finds the dims along which values have an element per position of the
  /// sequence.
  LogicalResult findPositions() {
    for (auto op : step.getBlock().getOps<TorchOp>())
      dims.joinByRule(op);
    for (auto [name, argument] :
         llvm::zip(step.getInputs().getAsRange<StringAttr>(),
                   step.getBody().getArguments())) {
      auto dim = sequence.getDims().getAs<IntegerAttr>(name.getValue());
      if (!dim)
        continue;
      size_t number = dim.getInt();
      if (dim.getInt() < 0 || number >= getRank(argument) ||
          getSize(argument, number) % axis.getSize() != 0)
        return sequence.emitOpError("expected a dim of input '")
               << name.getValue() << "' that " << axis.getSize()
               << " ranks of axis '" << axis.getName().getValue()
               << "' divide, got dim " << dim.getInt() << " of "
               << argument.getType();
      if (unsigned found = dims.find({argument, number});
          found != DimClasses::none)
        positions.insert(found);
    }
    if (positions.empty())
      return sequence.emitOpError(
                 "expected inputs whose sequence dim ops keep, "
                 "of which the step has ")
             << step.getInputs() << ", got " << sequence.getDims();
    return success();
  }

  static size_t getRank(Value value) {
    return cast<RankedTensorType>(value.getType()).getRank();
  }

  bool isPosition(DimClasses::Dim dim) const {
    unsigned found = dims.find(dim);
    return found != DimClasses::none && positions.contains(found);
  }

  /// The dim along which a value has an element per position, if ranks can
  /// share it out.
  std::optional<size_t> getPositions(Value value) {
    for (size_t dim = 0; dim < getRank(value); ++dim)
      if (isPosition({value, dim}) && getSize(value, dim) % axis.getSize() == 0)
        return dim;
    return std::nullopt;
  }

  //===--------------------------------------------------------------------===//
  // Exchanges
  //===--------------------------------------------------------------------===//

  /// Sums the terms of a value, and leaves parts of the sequence if they are
  /// asked for.
  void settle(OpOperand &operand, TagAttr tag) {
    Value value = operand.get();
    std::optional<size_t> dim =
        sequence ? getPositions(value) : std::optional<size_t>();
    if (!dim)
      return makeWhole(operand, tag);
    operand.set(values.getScattered(value, *dim, operand.getOwner(), tag));
  }

  void makeWhole(OpOperand &operand, TagAttr tag) {
    operand.set(values.getWhole(operand.get(), operand.getOwner(), tag));
  }

  //===--------------------------------------------------------------------===//
  // Ops
  //===--------------------------------------------------------------------===//

  LogicalResult visit(Operation *op) {
    if (auto read = dyn_cast<ReadOp>(op))
      return visitRead(read);
    if (auto torch = dyn_cast<TorchOp>(op))
      return visitTorch(torch);
    if (auto grad = dyn_cast<GradOp>(op))
      return visitGrad(grad);
    if (passPart(op))
      return success();
    for (OpOperand &operand : op->getOpOperands())
      if (!values.isWhole(operand.get())) {
        TagAttr tag = getTagOfMaker(operand.get());
        makeWhole(operand, tag);
        // What the step reports, a chunk makes.
        operand.set(values.copy(operand.get(), op, tag));
      }
    return success();
  }

  /// Whether an op exchanges parts of another dim along another axis, as those
  /// of the sequence: then it makes such parts.
  bool passPart(Operation *op) {
    std::optional<size_t> dim;
    if (auto gather = dyn_cast<AllGatherOp>(op))
      dim = gather.getDim();
    else if (auto scatter = dyn_cast<ReduceScatterOp>(op))
      dim = scatter.getDim();
    if (!dim)
      return false;
    Value input = op->getOperand(0), result = op->getResult(0);
    Held part = values.get(input);
    if (!values.isPart(input) || part.dim == *dim)
      return false;
    result.setType(
        resize(result.getType(), part.dim, values.getPartSize(part.size)));
    values.set(result, part);
    return true;
  }

  static TagAttr getTagOfMaker(Value value) {
    Operation *maker = value.getDefiningOp();
    if (auto torch = dyn_cast<TorchOp>(maker))
      return torch.getTagAttr();
    return maker->getAttrOfType<TagAttr>("tag");
  }

  LogicalResult visitRead(ReadOp read) {
    auto state = symbols.lookup<StateOp>(read.getSymbol());
    if (std::optional<Held> own = getHeld(state)) {
      Value value = read.getResult();
      value.setType(
          resize(value.getType(), own->dim, values.getPartSize(own->size)));
      values.set(value, *own);
    }
    return success();
  }

  /// The part of a state that ranks hold, or nothing if all hold the whole.
  std::optional<Held> getHeld(StateOp state) {
    LayoutAttr layout = state ? state.getLayoutAttr() : LayoutAttr();
    for (AxisKindAttr kind :
         layout ? layout.getAxes() : ArrayRef<AxisKindAttr>())
      if (kind.getAxis() == axis.getName() && kind.getKind() == Kind::Shard)
        return Held{Held::Part, size_t(kind.getDim()),
                    state.getTensorType().getDimSize(kind.getDim()),
                    /*isClean=*/true};
    return std::nullopt;
  }

  /// A rank contributes to the gradient of what it holds.
  LogicalResult visitGrad(GradOp grad) {
    auto state = symbols.lookup<StateOp>(grad.getState());
    std::optional<Held> own = getHeld(state);
    Value value = grad.getValue();
    if (!own) {
      if (!values.isWhole(value))
        makeWhole(grad->getOpOperand(0), grad.getTagAttr());
      return success();
    }
    TagAttr tag = grad.getTagAttr();
    if (values.isPart(value) && values.get(value).dim == own->dim) {
      grad->getOpOperand(0).set(values.getClean(value, grad, tag));
      return success();
    }
    if (!values.isWhole(value))
      value = values.getWhole(value, grad, tag);
    grad->getOpOperand(0).set(values.getPart(value, own->dim, grad, tag));
    return success();
  }

  LogicalResult visitTorch(TorchOp op) {
    if (op.getTagAttr().getPass() != Pass::F && !op.isView())
      for (OpOperand &operand : op->getOpOperands())
        operand.set(values.getAgain(operand.get(), op, op.getTagAttr()));
    auto whole = [&](Value value) { return values.isWhole(value); };
    StringAttr asked = wanted.lookup(op);
    if (llvm::all_of(op.getInputs(), whole))
      return asked ? compute(op, *parseRule(op.getFacts().getRule()), asked)
                   : success();
    StringAttr text = op.getFacts().getRule();
    if (!text)
      return fail(op) << "but has no rule that says what becomes of its "
                         "results";
    Rule rule = *parseRule(text);
    // Chunks pass on finished sums.
    for (OpOperand &operand : op->getOpOperands())
      if (values.isTerm(operand.get()) &&
          getTagOfMaker(operand.get()) != op.getTagAttr())
        settle(operand, getTagOfMaker(operand.get()));
    if (passTerms(op, rule))
      return success();
    for (OpOperand &operand : op->getOpOperands())
      if (values.isTerm(operand.get()))
        settle(operand, op.getTagAttr());
    std::optional<StringRef> factor =
        asked ? asked.getValue() : chooseFactor(op, rule);
    for (auto [names, operand] : llvm::zip(rule.operands, op->getOpOperands()))
      if (values.isPart(operand.get()) &&
          !(factor &&
            isNamed(rule, *factor, names[values.get(operand.get()).dim])))
        makeWhole(operand, op.getTagAttr());
    return factor ? compute(op, rule, *factor) : success();
  }

  /// Whether all operands are terms of sums and the op is linear: then its
  /// results are terms, too.
  bool passTerms(TorchOp op, const Rule &rule) {
    auto term = [&](Value value) { return values.isTerm(value); };
    if (!rule.isLinear || !llvm::all_of(op.getInputs(), term))
      return false;
    for (Value result : op.getResults())
      values.set(result, {Held::Term});
    return true;
  }

  /// The factor of which the op computes a part, or nothing: one of which an
  /// operand is a part and which results have or are sums over. That of a
  /// weight comes first: what is computed with it is smaller than what it would
  /// take to gather it.
  std::optional<StringRef> chooseFactor(TorchOp op, const Rule &rule) {
    std::optional<StringRef> found;
    bool isOfWeight = false;
    for (auto [names, value] : llvm::zip(rule.operands, op.getInputs())) {
      if (!values.isPart(value))
        continue;
      StringRef name = names[values.get(value).dim];
      bool weight = isWeight(value);
      if (isPossible(op, rule, name) && (!found || (weight && !isOfWeight))) {
        found = name;
        isOfWeight = weight;
      }
    }
    return found;
  }

  bool isPossible(TorchOp op, const Rule &rule, StringRef factor) {
    if (rule.index && rule.index->name == factor) // parts along another axis
      return false;
    if (isOfRows(op, factor))
      return false;
    if (rule.findSum(factor) || rule.findPartOp(factor))
      return true;
    return llvm::all_of(getResultDims(op, rule), [&](const Rule::Dims &names) {
      return llvm::is_contained(names, factor);
    });
  }

  /// Lets the op compute with a part of a factor.
  LogicalResult compute(TorchOp op, const Rule &rule, StringRef factor) {
    const Rule::PartOp *part = rule.findPartOp(factor);
    SmallVector<std::optional<size_t>> operands, results;
    for (const Rule::Dims &names : rule.operands)
      operands.push_back(findDim(rule, factor, names));
    for (const Rule::Dims &names : getResultDims(op, rule))
      results.push_back(findDim(rule, factor, names));
    if (failed(checkSizes(op, operands, results)))
      return failure();
    int64_t whole = 0;
    bool isSum = !part && llvm::is_contained(results, std::nullopt);
    bool isClean = part || rule.isLinear;
    for (auto [dim, operand] : llvm::zip(operands, op->getOpOperands())) {
      if (!dim) {
        isClean &= bool(part);
        continue;
      }
      if (values.isWhole(operand.get()))
        operand.set(values.getPart(operand.get(), *dim, op, op.getTagAttr()));
      if (isSum)
        operand.set(values.getClean(operand.get(), op, op.getTagAttr()));
      whole = values.get(operand.get()).size;
      isClean &= part || values.get(operand.get()).isClean;
    }
    for (auto [number, dim] : llvm::enumerate(results)) {
      Value result = op.getResult(number);
      if (dim) {
        whole = getSize(result, *dim);
        result.setType(
            resize(result.getType(), *dim, values.getPartSize(whole)));
        values.set(result, {Held::Part, *dim, whole, isClean});
      } else if (!part || part->same != getPosition(op, number)) {
        values.set(result, {Held::Term});
      }
    }
    for (const Rule::Size &size : rule.sizes)
      if (isNamed(rule, factor, size.name))
        if (int64_t old = size.get(op.getArgs()).getInt(); old > 0) // or -1
          op.setArgsAttr(size.set(op.getArgs(), values.getPartSize(old)));
    if (part)
      callPartOp(op, rule, *part, results.front(), whole,
                 readRankIndex(step, axis, symbols), values);
    return success();
  }

  /// The dim of a tensor that is one of the factor.
  static std::optional<size_t> findDim(const Rule &rule, StringRef factor,
                                       const Rule::Dims &names) {
    auto *found = llvm::find_if(
        names, [&](StringRef name) { return isNamed(rule, factor, name); });
    return found == names.end() ? std::optional<size_t>()
                                : found - names.begin();
  }

  /// Whether a dim of that name is one of the factor.
  static bool isNamed(const Rule &rule, StringRef factor, StringRef name) {
    const Rule::PartOp *part = rule.findPartOp(factor);
    return name == factor || (part && llvm::is_contained(part->names, name));
  }

  /// Dims of a factor are divided by the ranks; or they are all of one size, so
  /// that the last parts of all of them have the same padding.
  LogicalResult checkSizes(TorchOp op, ArrayRef<std::optional<size_t>> operands,
                           ArrayRef<std::optional<size_t>> results) {
    llvm::SmallSetVector<int64_t, 2> sizes;
    for (auto [dim, value] : llvm::zip(operands, op.getInputs()))
      if (dim)
        sizes.insert(getWholeSize(value, *dim));
    for (auto [dim, value] : llvm::zip(results, op.getResults()))
      if (dim)
        sizes.insert(getSize(value, *dim));
    auto check = [&](std::optional<size_t> dim, Value value,
                     StringRef what) -> LogicalResult {
      if (!dim || sizes.size() == 1 ||
          values.isDivided(getWholeSize(value, *dim)))
        return success();
      Type whole = resize(value.getType(), *dim, getWholeSize(value, *dim));
      return fail(op) << "but dim " << *dim << " of its " << what << " of type "
                      << whole << " is not divided by " << axis.getSize();
    };
    for (auto [dim, value] : llvm::zip(operands, op.getInputs()))
      if (failed(check(dim, value, "operand")))
        return failure();
    for (auto [dim, value] : llvm::zip(results, op.getResults()))
      if (failed(check(dim, value, "result")))
        return failure();
    return success();
  }

  /// The size of a dim of the whole.
  int64_t getWholeSize(Value value, size_t dim) const {
    Held form = values.get(value);
    return form.form == Held::Part && form.dim == dim ? form.size
                                                      : getSize(value, dim);
  }

  InFlightDiagnostic fail(TorchOp op) { return emitPartError(op, axis, shard); }

  StepOp step;
  AxisAttr axis;
  Operation *shard;
  DoSequenceOp sequence;
  SymbolTable &symbols;
  OpBuilder builder;
  DimClasses dims;
  llvm::DenseSet<unsigned> positions; // classes of the sequence's dims
  SharedValues values;
  llvm::DenseMap<Operation *, StringAttr> wanted; // factors, by op
};

} // namespace

LogicalResult partitionTensors(StepOp step, AxisAttr axis, DoShardOp shard,
                               DoSequenceOp sequence, SymbolTable &symbols) {
  return Partitioner(step, axis, shard, sequence, symbols).run();
}

} // namespace piper
