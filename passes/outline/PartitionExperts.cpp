//===- PartitionExperts.cpp - Send rows to the ranks of their experts
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

// Dims that rules give one name are one class. Reads of sharded states divide
// their class by the number of ranks; what depends on experts follows:
//
//   order, counts = moe_sort(index, E, 1)    ranks 1 -> R, 1 x E -> R x E/R
//   received = moe_exchange_counts(counts)   all_to_all
//   rows = moe_dispatch(rows, counts, received)
//                                            host_wait, all_to_all: n -> ? rows
//   y = moe_linear(rows, w, received)        w: E -> E/R experts
//   rows = moe_collect(y, counts, received)  all_to_all: ? -> n rows
//
// A chunk that sorts rows may leave experts to another one. If its backward
// pass sorts again, no weight says there whose rows these are: so what two
// passes of a chunk sort alike is one class. Where a chunk sorts the same
// choices several times, perhaps for experts that ranks do not share out,
// piper-remat has said which of these sorts is done again.

#include "passes/outline/DimClasses.h"
#include "passes/outline/Partition.h"
#include "passes/support/Streams.h"
#include "passes/support/ValueNumbers.h"

#include "dialect/Layouts.h"
#include "dialect/Rules.h"
#include "mlir/IR/Builders.h"
#include "llvm/ADT/StringMap.h"
#include "llvm/ADT/StringSet.h"

#include <cmath>

using namespace mlir;

namespace piper {

namespace {

constexpr StringRef sortOp = "piper.moe_sort.default",
                    countsOp = "piper.moe_exchange_counts.default",
                    dispatchOp = "piper.moe_dispatch.default",
                    collectOp = "piper.moe_collect.default";

/// Whether an op handles rows in groups, one per expert: it does not sum over
/// experts, although no result has a dim for them.
bool isGrouped(TorchOp op) { return op.getOpName().starts_with("piper.moe_"); }

/// What becomes of the size of a class.
struct Change {
  int64_t divide = 1, multiply = 1;
  int64_t bound = 0, expect = 0; // of a dim whose size is known at run time
};

/// Partitions one step along one axis.
class Partitioner {
public:
  Partitioner(StepOp step, AxisAttr axis, std::optional<double> capacity,
              Operation *shard, SymbolTable &symbols)
      : step(step), axis(axis), capacity(capacity), shard(shard),
        symbols(symbols), builder(step.getContext()) {}

  LogicalResult run() {
    joinDims();
    seed();
    if (changes.empty())
      return success();
    for (Operation &op : llvm::make_early_inc_range(step.getBlock()))
      if (failed(rewrite(&op)))
        return failure();
    for (Operation *op : replaced)
      op->erase();
    return success();
  }

private:
  //===--------------------------------------------------------------------===//
  // Classes
  //===--------------------------------------------------------------------===//

  void joinDims() {
    llvm::DenseMap<Attribute, Value> states;
    auto joinState = [&](Attribute state, Value value) {
      joinAll(states.try_emplace(state, value).first->second, value);
    };
    for (Operation &op : step.getBlock()) {
      if (auto read = dyn_cast<ReadOp>(op))
        joinState(read.getSymbolAttr(), read.getResult());
      if (auto grad = dyn_cast<GradOp>(op))
        joinState(grad.getStateAttr(), grad.getValue());
      if (auto torch = dyn_cast<TorchOp>(op))
        dims.joinByRule(torch, /*ones=*/torch.getOpName() == sortOp);
    }
    joinSortedAgain();
  }

  /// What a backward pass sorts again it counts by the same experts.
  void joinSortedAgain() {
    ValueNumbers numbers;
    llvm::DenseMap<std::tuple<unsigned, Attribute, Attribute>, TorchOp> sorts;
    for (Operation &op : step.getBlock()) {
      numbers.add(&op);
      auto torch = dyn_cast<TorchOp>(op);
      if (!torch || torch.getOpName() != sortOp || !torch.getTag())
        continue;
      auto [first, fresh] = sorts.try_emplace({numbers.getResult(torch, 1),
                                               torch.getTag()->getChunk(),
                                               torch->getAttr("again")},
                                              torch);
      if (!fresh && first->second.getTag() != torch.getTag())
        for (auto [old, again] :
             llvm::zip(first->second->getResults(), torch->getResults()))
          joinAll(old, again);
    }
  }

  void joinAll(Value a, Value b) {
    for (size_t dim = 0; dim < getRank(a); ++dim)
      dims.join({a, dim}, {b, dim});
  }

  static size_t getRank(Value value) {
    return cast<RankedTensorType>(value.getType()).getRank();
  }

  //===--------------------------------------------------------------------===//
  // Changes
  //===--------------------------------------------------------------------===//

  void seed() {
    for (auto read : step.getBlock().getOps<ReadOp>()) {
      auto state = symbols.lookup<StateOp>(read.getSymbol());
      LayoutAttr layout = state ? state.getLayoutAttr() : LayoutAttr();
      for (AxisKindAttr kind :
           layout ? layout.getAxes() : ArrayRef<AxisKindAttr>())
        if (kind.getAxis() == axis.getName() && kind.getKind() == Kind::Shard) {
          DimClasses::Dim dim(read.getResult(), kind.getDim());
          dims.join(dim, dim);
          changes[dims.find(dim)].divide = axis.getSize();
        }
    }
    for (auto op : step.getBlock().getOps<TorchOp>()) {
      if (op.getOpName() == sortOp && isDivided(op.getResult(1), 1))
        changes[dims.find({op.getResult(1), 0})].multiply = axis.getSize();
      if (op.getOpName() == dispatchOp && isDivided(op.getInputs()[1], 1)) {
        // Joined with itself, so that it has a class even if nobody uses it.
        DimClasses::Dim rows(op.getResult(0), 0);
        dims.join(rows, rows);
        Change &change = changes[dims.find(rows)];
        change.expect = getSize(op.getInputs()[0], 0);
        change.bound = change.expect * axis.getSize(); // all rows of all ranks
        if (capacity)
          change.bound = std::min<int64_t>(
              change.bound, std::ceil(*capacity * change.expect));
        change.expect = std::min(change.expect, change.bound);
      }
    }
  }

  static int64_t getSize(Value value, size_t dim) {
    return cast<RankedTensorType>(value.getType()).getDimSize(dim);
  }

  const Change *findChange(Value value, size_t dim) {
    unsigned number = dims.find({value, dim});
    auto found = changes.find(number);
    return number == DimClasses::none || found == changes.end()
               ? nullptr
               : &found->second;
  }

  bool isDivided(Value value, size_t dim) {
    const Change *change = findChange(value, dim);
    return change && change->divide > 1;
  }

  bool isTouched(Value value) {
    for (size_t dim = 0; dim < getRank(value); ++dim)
      if (findChange(value, dim))
        return true;
    return false;
  }

  /// The type of a value with the sizes of parts.
  RankedTensorType getType(Value value) {
    auto type = cast<RankedTensorType>(value.getType());
    SmallVector<int64_t> shape(type.getShape());
    LayoutAttr layout;
    for (auto [dim, size] : llvm::enumerate(shape)) {
      const Change *change = findChange(value, dim);
      if (!change)
        continue;
      if (change->bound) {
        size = ShapedType::kDynamic;
        layout = LayoutAttr::get(step.getContext(), {}, change->bound,
                                 change->expect);
      } else {
        size = size / change->divide * change->multiply;
      }
    }
    return RankedTensorType::get(shape, type.getElementType(), layout);
  }

  //===--------------------------------------------------------------------===//
  // Rewriting
  //===--------------------------------------------------------------------===//

  LogicalResult rewrite(Operation *op) {
    if (auto torch = dyn_cast<TorchOp>(op))
      return rewriteTorch(torch);
    if (auto read = dyn_cast<ReadOp>(op))
      return rewriteRead(read);
    return success();
  }

  LogicalResult rewriteRead(ReadOp read) {
    auto state = symbols.lookup<StateOp>(read.getSymbol());
    if (isTouched(read.getResult()) && !state.getLayoutAttr()) {
      InFlightDiagnostic error =
          state.emitOpError("is used together with states that ranks along "
                            "axis '")
          << axis.getName().getValue()
          << "' share out, expected a shard directive to select @"
          << state.getSymName() << ", too";
      error.attachNote(shard->getLoc()) << "the others are shared out here";
      return failure();
    }
    read.getResult().setType(getType(read.getResult()));
    return success();
  }

  LogicalResult rewriteTorch(TorchOp op) {
    if (!llvm::any_of(op->getOperands(),
                      [&](Value v) { return isTouched(v); }) &&
        !llvm::any_of(op->getResults(), [&](Value v) { return isTouched(v); }))
      return success();
    if (failed(checkRule(op)))
      return failure();
    for (OpResult result : op->getResults())
      result.setType(getType(result));
    if (op.getOpName() == countsOp)
      return replace(op, exchange(op, Value(), Value()));
    if (op.getOpName() == dispatchOp || op.getOpName() == collectOp) {
      HostWaitOp wait = getSizes(op);
      Value sent = wait.getResult(0), received = wait.getResult(1);
      if (op.getOpName() == collectOp)
        std::swap(sent, received);
      return replace(op, exchange(op, sent, received));
    }
    return success();
  }

  /// An op that is touched has a rule, does not sum over a dim of which ranks
  /// hold parts, and takes nothing whole beside them.
  LogicalResult checkRule(TorchOp op) {
    StringAttr text = op.getFacts().getRule();
    if (!text)
      return fail(op) << "but has no rule that says what becomes of its "
                         "results";
    Rule rule = *parseRule(text);
    llvm::StringSet<> kept;
    for (const Rule::Dims &names : getResultDims(op, rule))
      for (StringRef name : names)
        kept.insert(name);
    for (auto [names, value] : llvm::zip(rule.operands, op.getInputs()))
      for (auto [dim, name] : llvm::enumerate(names)) {
        if (!isGrouped(op) && findChange(value, dim) && !kept.contains(name))
          return fail(op) << "but needs the whole of dim " << dim
                          << " of operand "
                          << "of type " << value.getType();
      }
    bool divided = false, whole = false;
    for (Value value : op.getInputs()) {
      (isTouched(value) ? divided : whole) |= getRank(value) > 0;
    }
    if (divided && whole && !isGrouped(op))
      return fail(op) << "but mixes it with values that are whole";
    if (failed(checkRows(op, rule)))
      return failure();
    return setSizes(op, rule);
  }

  /// Experts get rows that were dispatched, and the counts that were exchanged.
  LogicalResult checkRows(TorchOp op, const Rule &rule) {
    if (!isGrouped(op) || rule.operands.front().front() != "m")
      return success();
    if (const Change *rows = findChange(op.getInputs()[0], 0);
        !rows || !rows->bound)
      return fail(op) << "but takes rows that were not sent to the ranks of "
                         "their experts, expected those of moe_dispatch";
    Value received = op.getInputs().back();
    if (!received.getDefiningOp<AllToAllOp>())
      return fail(op) << "but takes counts of rows that are sent, expected "
                         "those of moe_exchange_counts, which are received";
    return success();
  }

  InFlightDiagnostic fail(TorchOp op) { return emitPartError(op, axis, shard); }

  /// Writes new sizes into the integer arguments that state them.
  LogicalResult setSizes(TorchOp op, const Rule &rule) {
    for (const Rule::Size &size : rule.sizes) {
      const Change *change = findChange(op, rule, size.name);
      if (!change)
        continue;
      if (change->bound)
        return fail(op) << "but states a size that is known at run time as "
                           "argument "
                        << size.position;
      int64_t old = size.get(op.getArgs()).getInt();
      op.setArgsAttr(
          size.set(op.getArgs(), old / change->divide * change->multiply));
    }
    return success();
  }

  /// What becomes of a factor of an op's results.
  const Change *findChange(TorchOp op, const Rule &rule, StringRef factor) {
    for (auto [names, value] :
         llvm::zip(getResultDims(op, rule), op.getResults()))
      for (auto [dim, name] : llvm::enumerate(names))
        if (name == factor)
          return findChange(value, dim);
    return nullptr;
  }

  /// The op is erased at the end: its values are names of dims until then.
  LogicalResult replace(TorchOp op, Value value) {
    Value old = op.getResult(0);
    joinAll(old, value);
    old.replaceAllUsesWith(value);
    replaced.push_back(op);
    return success();
  }

  /// `layer.0 dispatch`.
  StringAttr getLabel(TorchOp op) {
    StringRef name = op.getOpName() == countsOp     ? "counts"
                     : op.getOpName() == dispatchOp ? "dispatch"
                                                    : "collect";
    return builder.getStringAttr(op.getTagAttr().getChunk().getValue() + " " +
                                 name);
  }

  Value exchange(TorchOp op, Value sent, Value received) {
    builder.setInsertionPoint(op);
    auto made = AllToAllOp::create(
        builder, op.getLoc(), TypeRange(op.getResult(0).getType()),
        ValueRange(op.getInputs()[0]), DenseI64ArrayAttr(),
        builder.getArrayAttr(axis.getName()), StringAttr(), getLabel(op),
        IntegerAttr(), declareStream(symbols, axis.getName()), ValueRange(),
        /*dim=*/0, sent, received);
    made->setAttr("tag", op.getTagAttr());
    return made.getResults().front();
  }

  /// How many rows go to and come from each rank, on the host: asked for once
  /// per exchange of counts, also for the way back.
  HostWaitOp getSizes(TorchOp op) {
    Value counts = op.getInputs()[1], received = op.getInputs()[2];
    HostWaitOp &wait = waits[{counts, received}];
    if (wait)
      return wait;
    builder.setInsertionPoint(op);
    Type sizes = SizesType::get(builder.getContext());
    wait = HostWaitOp::create(builder, op.getLoc(), TypeRange{sizes, sizes},
                              ValueRange{counts, received}, IntegerAttr(),
                              IntegerAttr(), ValueRange());
    wait->setAttr("tag", op.getTagAttr());
    return wait;
  }

  StepOp step;
  AxisAttr axis;
  std::optional<double> capacity;
  Operation *shard;
  SymbolTable &symbols;
  OpBuilder builder;
  DimClasses dims;
  llvm::DenseMap<unsigned, Change> changes; // by class
  llvm::DenseMap<std::pair<Value, Value>, HostWaitOp> waits;
  SmallVector<Operation *> replaced;
};

} // namespace

LogicalResult partitionExperts(StepOp step, AxisAttr axis, DoShardOp shard,
                               SymbolTable &symbols) {
  std::optional<double> capacity;
  if (shard.getCapacity())
    capacity = shard.getCapacity()->convertToDouble();
  return Partitioner(step, axis, capacity, shard, symbols).run();
}

} // namespace piper
