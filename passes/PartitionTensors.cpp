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
//   an op that needs a part whole         all_gather first
//
// With that, weights sharded by output and by input give tensor parallelism as
// in Shoeybi et al., "Megatron-LM" (2019, arXiv:1909.08053), forward and
// backward.

#include "passes/DimClasses.h"
#include "passes/Partition.h"

#include "passes/ChunkBuilder.h"
#include "passes/Streams.h"

#include "dialect/Layouts.h"
#include "dialect/Rules.h"
#include "mlir/IR/Builders.h"
#include "llvm/ADT/DenseSet.h"

using namespace mlir;

namespace piper {

namespace {

/// What ranks along the axis hold of a value: all the whole of it, each a part
/// of a dim, or each a term of the sum.
struct Held {
  enum Form { Whole, Part, Term } form = Whole;
  size_t dim = 0; // of a part
};

class Partitioner {
public:
  Partitioner(StepOp step, AxisAttr axis, Operation *shard,
              DoSequenceOp sequence, SymbolTable &symbols)
      : step(step), axis(axis), shard(shard), sequence(sequence),
        symbols(symbols), builder(step.getContext()) {}

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

  Held get(Value value) const { return held.lookup(value); }
  bool isWhole(Value value) const { return get(value).form == Held::Whole; }
  bool isPart(Value value) const { return get(value).form == Held::Part; }
  bool isTerm(Value value) const { return get(value).form == Held::Term; }

  static int64_t getSize(Value value, size_t dim) {
    return cast<RankedTensorType>(value.getType()).getDimSize(dim);
  }

  static Type resize(Type type, size_t dim, int64_t size) {
    auto tensor = cast<RankedTensorType>(type);
    SmallVector<int64_t> shape(tensor.getShape());
    shape[dim] = size;
    return RankedTensorType::get(shape, tensor.getElementType(),
                                 tensor.getEncoding());
  }

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
    if (Rule::isOne(factor) || !llvm::any_of(rule.operands, has))
      return;
    const Rule::Dims &first = rule.operands.front();
    if (op.getInputs().size() == 1)
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
    Value &known = scattered[{value, tag}];
    if (!known) {
      builder.setInsertionPoint(operand.getOwner());
      Type part =
          resize(value.getType(), *dim, getSize(value, *dim) / axis.getSize());
      auto op = ReduceScatterOp::create(
          builder, value.getLoc(), TypeRange(part), value, DenseI64ArrayAttr(),
          builder.getArrayAttr(axis.getName()), StringAttr(),
          getLabel(tag, "scatter"), IntegerAttr(), getStream(), ValueRange(),
          *dim);
      op->setAttr("tag", tag);
      known = op.getResults().front();
      held[known] = {Held::Part, *dim};
    }
    operand.set(known);
  }

  /// In the backward pass parts are gathered again, so that what the forward
  /// pass gathered is not kept until then.
  void gatherAgain(OpOperand &operand, TagAttr tag) {
    SmallVector<OpResult> views;
    Value root = operand.get();
    while (auto view = root.getDefiningOp<TorchOp>()) {
      if (!view.isView() || view.getInputs().size() != 1)
        break;
      views.push_back(cast<OpResult>(root));
      root = view.getInputs().front();
    }
    auto gather = root.getDefiningOp<AllGatherOp>();
    if (!gather || gather->getAttr("tag") == tag)
      return;
    Value again = getWhole(gather.getInputs().front(), operand.getOwner(), tag);
    builder.setInsertionPoint(operand.getOwner());
    for (OpResult view : llvm::reverse(views)) {
      auto copy = cast<TorchOp>(builder.clone(*view.getOwner()));
      copy.getInputsMutable().assign(again);
      copy.setTagAttr(tag);
      again = copy.getResult(view.getResultNumber());
    }
    operand.set(again);
  }

  /// The whole of a value, exchanged once per pass.
  Value getWhole(Value value, Operation *user, TagAttr tag) {
    if (isWhole(value))
      return value;
    if (Value known = wholes.lookup({value, tag}))
      return known;
    Value made = getWholeView(value, user, tag);
    if (!made) {
      builder.setInsertionPoint(user);
      made =
          isTerm(value) ? reduce(value, user, tag) : gather(value, user, tag);
    }
    return wholes[{value, tag}] = made;
  }

  /// The whole of a view, as a view of the whole: several views of a part are
  /// gathered once. Null if it is no such view.
  Value getWholeView(Value value, Operation *user, TagAttr tag) {
    auto view = value.getDefiningOp<TorchOp>();
    if (!view || !view.isView() || view->getNumResults() != 1 ||
        view.getInputs().size() != 1 || !isPart(value) ||
        !isPart(view.getInputs()[0]))
      return {};
    Value whole = getWhole(view.getInputs()[0], user, tag);
    builder.setInsertionPoint(user);
    auto copy = cast<TorchOp>(builder.clone(*view));
    copy.getInputsMutable().assign(whole);
    copy.setTagAttr(tag);
    size_t dim = get(value).dim;
    Rule rule = *parseRule(view.getFacts().getRule());
    for (const Rule::Size &size : rule.sizes)
      if (size.name == rule.results.front()[dim])
        if (int64_t old = size.get(copy.getArgs()).getInt(); old > 0)
          copy.setArgsAttr(size.set(copy.getArgs(), old * axis.getSize()));
    Value result = copy.getResult(0);
    result.setType(
        resize(value.getType(), dim, getSize(value, dim) * axis.getSize()));
    return result;
  }

  Value reduce(Value value, Operation *user, TagAttr tag) {
    auto op = AllReduceOp::create(
        builder, user->getLoc(), TypeRange(value.getType()), value,
        DenseI64ArrayAttr(), builder.getArrayAttr(axis.getName()), StringAttr(),
        getLabel(tag, "reduce"), IntegerAttr(), getStream(), ValueRange());
    op->setAttr("tag", tag);
    return op.getResults().front();
  }

  Value gather(Value value, Operation *user, TagAttr tag) {
    size_t dim = get(value).dim;
    if (value.getDefiningOp<ReadOp>()) // what is exchanged comes from a chunk
      value = copy(value, tag);
    Type whole =
        resize(value.getType(), dim, getSize(value, dim) * axis.getSize());
    auto op = AllGatherOp::create(
        builder, user->getLoc(), TypeRange(whole), value, DenseI64ArrayAttr(),
        builder.getArrayAttr(axis.getName()), StringAttr(),
        getLabel(tag, "gather"), IntegerAttr(), getStream(), ValueRange(), dim);
    op->setAttr("tag", tag);
    return op.getResults().front();
  }

  /// A rank's part of a value that is whole, cut where it is used.
  Value getPart(Value value, size_t dim, Operation *user, TagAttr tag) {
    Value &known = parts[{value, dim, tag}];
    if (known)
      return known;
    builder.setInsertionPoint(user);
    Type type =
        resize(value.getType(), dim, getSize(value, dim) / axis.getSize());
    Attribute args[] = {ArgAttr::get(step.getContext(), 0),
                        ArgAttr::get(step.getContext(), 1),
                        builder.getI64IntegerAttr(dim),
                        builder.getI64IntegerAttr(axis.getSize())};
    auto facts = FactsAttr::get(step.getContext(), Effect::Pure, 0, false,
                                false, std::nullopt, StringAttr());
    auto op = TorchOp::create(
        builder, user->getLoc(), TypeRange(type),
        ValueRange{value, readRankIndex(step, axis, symbols)},
        builder.getStringAttr("piper.part.default"), builder.getArrayAttr(args),
        builder.getDictionaryAttr({}), facts, UnitAttr(), tag);
    known = op.getResult(0);
    held[known] = {Held::Part, dim};
    return known;
  }

  StringAttr getLabel(TagAttr tag, StringRef what) {
    return builder.getStringAttr(tag.getChunk().getValue() + " " + what);
  }

  FlatSymbolRefAttr getStream() {
    return declareStream(symbols, axis.getName());
  }

  void makeWhole(OpOperand &operand, TagAttr tag) {
    operand.set(getWhole(operand.get(), operand.getOwner(), tag));
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
    for (OpOperand &operand : op->getOpOperands())
      if (!isWhole(operand.get())) {
        TagAttr tag = getTagOfMaker(operand.get());
        makeWhole(operand, tag);
        builder.setInsertionPoint(op); // what the step reports, a chunk makes
        operand.set(copy(operand.get(), tag));
      }
    return success();
  }

  /// A copy that a chunk makes.
  Value copy(Value value, TagAttr tag) {
    Value made = copyValue(value, builder);
    made.getDefiningOp<TorchOp>().setTagAttr(tag);
    return made;
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
      value.setType(resize(value.getType(), own->dim,
                           getSize(value, own->dim) / axis.getSize()));
      held[value] = *own;
    }
    return success();
  }

  /// The part of a state that ranks hold, or nothing if all hold the whole.
  std::optional<Held> getHeld(StateOp state) {
    LayoutAttr layout = state ? state.getLayoutAttr() : LayoutAttr();
    for (AxisKindAttr kind :
         layout ? layout.getAxes() : ArrayRef<AxisKindAttr>())
      if (kind.getAxis() == axis.getName() && kind.getKind() == Kind::Shard)
        return Held{Held::Part, size_t(kind.getDim())};
    return std::nullopt;
  }

  /// A rank contributes to the gradient of what it holds.
  LogicalResult visitGrad(GradOp grad) {
    auto state = symbols.lookup<StateOp>(grad.getState());
    std::optional<Held> own = getHeld(state);
    Value value = grad.getValue();
    if (!own) {
      if (!isWhole(value))
        makeWhole(grad->getOpOperand(0), grad.getTagAttr());
      return success();
    }
    if (isPart(value) && get(value).dim == own->dim)
      return success();
    TagAttr tag = grad.getTagAttr();
    if (!isWhole(value))
      value = getWhole(value, grad, tag);
    grad->getOpOperand(0).set(getPart(value, own->dim, grad, tag));
    return success();
  }

  LogicalResult visitTorch(TorchOp op) {
    if (op.getTagAttr().getPass() != Pass::F && !op.isView())
      for (OpOperand &operand : op->getOpOperands())
        gatherAgain(operand, op.getTagAttr());
    auto whole = [&](Value value) { return isWhole(value); };
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
      if (isTerm(operand.get()) &&
          getTagOfMaker(operand.get()) != op.getTagAttr())
        settle(operand, getTagOfMaker(operand.get()));
    if (passTerms(op, rule))
      return success();
    for (OpOperand &operand : op->getOpOperands())
      if (isTerm(operand.get()))
        settle(operand, op.getTagAttr());
    std::optional<StringRef> factor =
        asked ? asked.getValue() : chooseFactor(op, rule);
    for (auto [names, operand] : llvm::zip(rule.operands, op->getOpOperands()))
      if (isPart(operand.get()) && names[get(operand.get()).dim] != factor)
        makeWhole(operand, op.getTagAttr());
    return factor ? compute(op, rule, *factor) : success();
  }

  /// Whether all operands are terms of sums and the op is linear: then its
  /// results are terms, too.
  bool passTerms(TorchOp op, const Rule &rule) {
    auto term = [&](Value value) { return isTerm(value); };
    if (!rule.isLinear || !llvm::all_of(op.getInputs(), term))
      return false;
    for (Value result : op.getResults())
      held[result] = {Held::Term};
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
      if (!isPart(value))
        continue;
      StringRef name = names[get(value).dim];
      bool weight = isWeight(value);
      if (isPossible(op, rule, name) && (!found || (weight && !isOfWeight))) {
        found = name;
        isOfWeight = weight;
      }
    }
    return found;
  }

  bool isPossible(TorchOp op, const Rule &rule, StringRef factor) {
    if (llvm::is_contained(rule.sums, factor))
      return true;
    return llvm::all_of(getResultDims(op, rule), [&](const Rule::Dims &names) {
      return llvm::is_contained(names, factor);
    });
  }

  /// Lets the op compute with a part of a factor.
  LogicalResult compute(TorchOp op, const Rule &rule, StringRef factor) {
    for (auto [names, operand] :
         llvm::zip(rule.operands, op->getOpOperands())) {
      auto found = llvm::find(names, factor);
      if (!isWhole(operand.get()) || found == names.end())
        continue;
      size_t dim = found - names.begin();
      if (getSize(operand.get(), dim) % axis.getSize() != 0)
        return fail(op) << "but dim " << dim << " of its operand of type "
                        << operand.get().getType() << " is not divided by "
                        << axis.getSize();
      operand.set(getPart(operand.get(), dim, op, op.getTagAttr()));
    }
    for (auto [names, result] :
         llvm::zip(getResultDims(op, rule), op.getResults())) {
      auto found = llvm::find(names, factor);
      if (found == names.end()) {
        held[result] = {Held::Term};
        continue;
      }
      size_t dim = found - names.begin();
      int64_t size = getSize(result, dim);
      if (size % axis.getSize() != 0)
        return fail(op) << "but dim " << dim << " of its result of type "
                        << result.getType() << " is not divided by "
                        << axis.getSize();
      result.setType(resize(result.getType(), dim, size / axis.getSize()));
      held[result] = {Held::Part, dim};
    }
    for (const Rule::Size &size : rule.sizes)
      if (size.name == factor)
        if (int64_t old = size.get(op.getArgs()).getInt(); old > 0) // or -1
          op.setArgsAttr(size.set(op.getArgs(), old / axis.getSize()));
    return success();
  }

  InFlightDiagnostic fail(TorchOp op) {
    InFlightDiagnostic error = op.emitError(op.getOpName())
                               << " computes with what ranks along axis '"
                               << axis.getName().getValue()
                               << "' hold parts of, ";
    error.attachNote(shard->getLoc()) << "states are shared out here";
    return error;
  }

  StepOp step;
  AxisAttr axis;
  Operation *shard;
  DoSequenceOp sequence;
  SymbolTable &symbols;
  OpBuilder builder;
  DimClasses dims;
  llvm::DenseSet<unsigned> positions; // classes of the sequence's dims
  llvm::DenseMap<Value, Held> held;   // whole if it is not in it
  llvm::DenseMap<std::pair<Value, Attribute>, Value> wholes; // by pass
  llvm::DenseMap<std::pair<Value, Attribute>, Value> scattered;
  llvm::DenseMap<std::tuple<Value, size_t, Attribute>, Value> parts;
  llvm::DenseMap<Operation *, StringAttr> wanted; // factors, by op
};

} // namespace

LogicalResult partitionTensors(StepOp step, AxisAttr axis, DoShardOp shard,
                               DoSequenceOp sequence, SymbolTable &symbols) {
  return Partitioner(step, axis, shard, sequence, symbols).run();
}

} // namespace piper
