//===- VerifyRows.cpp - Rows travel by the counts that ranks exchanged
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

// A step is followed through the chunks and kernels that it runs. Values have
// numbers, and what is computed again has the same one; the kind of a value
// says which counts it goes with:
//
//   order, c = moe_sort(...)                        order and counts of c
//   r = all_to_all(c)                               counts received of c
//   s, t = host_wait(c, r)                          sizes of c, sizes of r
//   rows = moe_permute(x, order)                    rows sorted as c
//   rows = all_to_all(rows, sizes s, t)             rows that came as r
//   rows = moe_group(rows, r)                       rows grouped as r
//   rows = moe_linear(rows, w, r), or any other op  rows grouped as r
//   rows = moe_ungroup(rows, r)                     rows that came as r
//   rows = all_to_all(rows, sizes t, s)             rows sorted as c
//   y = moe_unpermute(rows, order)
//
// How many rows came only the run knows, so that all values with such a dim
// have a kind. Of sorted rows an op between may make others, of which nothing
// is known: these are not checked.

#include "passes/VerifyRows.h"
#include "passes/ValueNumbers.h"

#include "mlir/IR/BuiltinOps.h"
#include "llvm/ADT/StringSwitch.h"

using namespace mlir;

namespace piper {

namespace {

/// What is known of a value, and of which counts, by number.
struct RowKind {
  enum What { Unknown, Order, Counts, Received, Sizes, Sorted, Came, Grouped };
  What what = Unknown;
  unsigned of = 0;

  bool operator==(const RowKind &other) const {
    return what == other.what && of == other.of;
  }
  /// Whether it is rows of which only the run knows the number.
  bool isThere() const { return what == Came || what == Grouped; }
  bool isRows() const { return what == Sorted || isThere(); }
};

StringRef describe(RowKind kind) {
  switch (kind.what) {
  case RowKind::Unknown:
    return "others";
  case RowKind::Order:
    return "an order of rows";
  case RowKind::Counts:
    return "counts of rows that are sent";
  case RowKind::Received:
    return "counts of rows that are received";
  case RowKind::Sizes:
    return "sizes";
  case RowKind::Sorted:
    return "rows as they are sorted before they are sent";
  case RowKind::Came:
    return "rows as they came";
  case RowKind::Grouped:
    return "rows grouped by expert";
  }
  llvm_unreachable("all kinds are above");
}

/// What an op on rows takes: which operands are rows, and in what order.
struct RowOp {
  RowKind::What takes = RowKind::Unknown, makes = RowKind::Unknown;
  int64_t rows = 0, order = -1; // operands
  size_t numRows = 1;           // operands, of an op without order
};

RowOp getRowOp(TorchOp op) {
  using Kind = RowKind;
  return llvm::StringSwitch<RowOp>(op.getOpName())
      .Case("piper.moe_permute.default", {Kind::Unknown, Kind::Sorted, -1, 1})
      .Case("piper.moe_unpermute_rows.default",
            {Kind::Unknown, Kind::Sorted, -1, 1})
      .Case("piper.moe_unpermute.default", {Kind::Sorted, Kind::Unknown, 0, 1})
      .Case("piper.moe_permute_backward.default",
            {Kind::Sorted, Kind::Unknown, 0, 1})
      .Case("piper.moe_unpermute_weights.default",
            {Kind::Sorted, Kind::Unknown, 1, 2})
      .Case("piper.moe_group.default", {Kind::Came, Kind::Grouped})
      .Case("piper.moe_ungroup.default", {Kind::Grouped, Kind::Came})
      .Case("piper.moe_linear.default", {Kind::Grouped, Kind::Grouped})
      .Case("piper.moe_linear_input.default", {Kind::Grouped, Kind::Grouped})
      .Case("piper.moe_linear_weight.default",
            {Kind::Grouped, Kind::Unknown, 0, -1, 2})
      .Default({});
}

/// Follows one step.
class RowVerifier {
public:
  explicit RowVerifier(SymbolTable &symbols) : symbols(symbols) {}

  LogicalResult visit(Block &block) {
    for (Operation &op : block)
      if (failed(visit(&op)))
        return failure();
    return success();
  }

private:
  LogicalResult visit(Operation *op) {
    if (auto run = dyn_cast<RunOp>(op))
      return call(run, symbols.lookup(run.getChunk()));
    if (auto launch = dyn_cast<LaunchOp>(op))
      return call(launch, symbols.lookup(launch.getKernel()));
    numbers.add(op);
    if (auto exchange = dyn_cast<AllToAllOp>(op))
      return exchange.getSendSizes() ? visitRows(exchange)
                                     : visitCounts(exchange);
    if (auto other = dyn_cast<CollectiveOpInterface>(op))
      return visitOther(other);
    if (auto wait = dyn_cast<HostWaitOp>(op))
      for (auto [count, size] : llvm::zip(wait.getCounts(), wait.getResults()))
        setKind(size, {RowKind::Sizes, numbers.get(count)});
    if (auto torch = dyn_cast<TorchOp>(op))
      return visitTorch(torch);
    return success();
  }

  /// Follows what an op calls, with the values that it passes.
  LogicalResult call(Operation *op, Operation *called) {
    Block &block = called->getRegion(0).front();
    for (auto [argument, operand] :
         llvm::zip(block.getArguments(), op->getOperands()))
      numbers.set(argument, numbers.get(operand));
    if (failed(visit(block)))
      return failure();
    for (auto [result, value] :
         llvm::zip(op->getResults(), block.back().getOperands()))
      numbers.set(result, numbers.get(value));
    return success();
  }

  //===--------------------------------------------------------------------===//
  // Exchanges
  //===--------------------------------------------------------------------===//

  LogicalResult visitCounts(AllToAllOp op) {
    Value counts = op.getInputs().front(), received = op.getTensors().front();
    RowKind kind = getKind(counts);
    if (kind.what == RowKind::Received)
      return op.emitOpError("expected counts of rows that are sent, got those "
                            "that another all_to_all makes");
    if (kind.isRows())
      return op.emitOpError("expected sizes of the rows that it exchanges");
    setKind(received, {RowKind::Received, numbers.get(received)});
    exchanges[numbers.get(received)] = {op, numbers.get(counts)};
    return success();
  }

  LogicalResult visitRows(AllToAllOp op) {
    RowKind sent = getKind(op.getSendSizes());
    RowKind received = getKind(op.getRecvSizes());
    if (sent.what != RowKind::Sizes || received.what != RowKind::Sizes)
      return op.emitOpError("expected sizes that a host_wait makes");
    bool isBack = isExchanged(/*counts=*/received.of, sent.of);
    if (!isBack && !isExchanged(sent.of, received.of))
      return op.emitOpError(
          "expected sizes of counts and of what an all_to_all "
          "makes of these counts, got others");
    unsigned there = isBack ? sent.of : received.of;
    AllToAllOp exchange = exchanges.lookup(there).op;
    if (exchange.getDim() != 0)
      return exchange.emitOpError("expected dim 0, which counts rows by rank, "
                                  "got dim ")
             << exchange.getDim();
    if (op.getOver() != exchange.getOver()) {
      InFlightDiagnostic error = op.emitOpError("expected axes ")
                                 << exchange.getOver()
                                 << ", over which ranks exchange the counts of "
                                    "its rows, got "
                                 << op.getOver();
      error.attachNote(exchange.getLoc()) << "the counts are exchanged here";
      return failure();
    }
    Value rows = op.getInputs().front(), made = op.getTensors().front();
    RowKind came = {RowKind::Came, there};
    RowKind sorted = {RowKind::Sorted, exchanges.lookup(there).counts};
    RowKind wanted = isBack ? came : sorted;
    if (!agree(getKind(rows), wanted))
      return op.emitOpError("expected ") << explain(wanted, getKind(rows));
    setKind(made, isBack ? sorted : came);
    return success();
  }

  /// Ranks along other axes have the same rows, or parts of each.
  LogicalResult visitOther(CollectiveOpInterface op) {
    for (auto [input, result] : llvm::zip(op.getInputs(), op.getTensors())) {
      RowKind kind = getKind(input);
      if (!kind.isRows())
        continue;
      auto isAlong = [&](Attribute axis) {
        return kind.isThere() &&
               llvm::is_contained(exchanges.lookup(kind.of).op.getOver(), axis);
      };
      if (llvm::any_of(op.getOver(), isAlong))
        return op.emitOpError("expected values that are the same rows on all "
                              "ranks of ")
               << op.getOver() << ", got " << describe(kind)
               << ", which an all_to_all sends back";
      setKind(result, kind);
    }
    return success();
  }

  /// Whether one is what ranks exchange of the other.
  bool isExchanged(unsigned counts, unsigned received) {
    auto found = exchanges.find(received);
    return found != exchanges.end() && found->second.counts == counts;
  }

  //===--------------------------------------------------------------------===//
  // Ops
  //===--------------------------------------------------------------------===//

  LogicalResult visitTorch(TorchOp op) {
    if (op.getOpName() == "piper.moe_sort.default") {
      visitSort(op);
      return success();
    }
    RowOp own = getRowOp(op);
    int64_t last = std::max({own.rows, own.order, int64_t(own.numRows)});
    if (int64_t(op.getInputs().size()) <= last || op->getNumResults() == 0)
      return visitOther(op); // no op of Piper's, for all that its name says
    if (own.order >= 0)
      return visitOrdered(op, own);
    if (own.takes != RowKind::Unknown)
      return visitGrouped(op, own);
    return visitOther(op);
  }

  /// What it orders and what it counts go together.
  void visitSort(TorchOp op) {
    unsigned order = numbers.getResult(op, 0);
    unsigned counts = numbers.getResult(op, 1);
    kinds[order] = {RowKind::Order, counts};
    kinds[counts] = {RowKind::Counts, counts};
  }

  /// Rows of tokens have the order that their sort gave them.
  LogicalResult visitOrdered(TorchOp op, RowOp own) {
    RowKind order = getKind(op.getInputs()[own.order]);
    if (order.what != RowKind::Order)
      return success();
    RowKind wanted = {RowKind::Sorted, order.of};
    if (own.makes == RowKind::Sorted)
      setKind(op.getResult(0), wanted);
    else if (RowKind got = getKind(op.getInputs()[own.rows]);
             !agree(got, wanted))
      return fail(op) << explain(wanted, got);
    return success();
  }

  /// Experts take rows and the counts by which these came. In a layer that
  /// ranks do not share out nothing came.
  LogicalResult visitGrouped(TorchOp op, RowOp own) {
    RowKind counts = getKind(op.getInputs().back());
    for (Value value : op.getInputs().take_front(own.numRows)) {
      RowKind rows = getKind(value);
      if (!rows.isThere() && counts.what != RowKind::Received)
        continue;
      RowKind received = {RowKind::Received, rows.of};
      if (rows.isThere() && !(counts == received))
        return fail(op) << explain(received, counts);
      RowKind wanted = {own.takes, counts.of};
      if (!agree(rows, wanted))
        return fail(op) << explain(wanted, rows);
      if (own.makes != RowKind::Unknown)
        setKind(op.getResult(0), {own.makes, rows.of});
    }
    return success();
  }

  /// Other ops work on each row by itself.
  LogicalResult visitOther(TorchOp op) {
    RowKind common;
    for (Value value : op.getInputs()) {
      RowKind kind = getKind(value);
      if (!kind.isThere())
        continue;
      if (common.isThere() && !agree(kind, common))
        return fail(op) << explain(common, kind);
      common = kind;
    }
    if (!common.isThere())
      return success();
    for (Value result : op.getResults())
      if (!cast<RankedTensorType>(result.getType()).hasStaticShape())
        setKind(result, common);
    return success();
  }

  InFlightDiagnostic fail(TorchOp op) {
    return op.emitError(op.getOpName()) << " expected ";
  }

  //===--------------------------------------------------------------------===//
  // Kinds
  //===--------------------------------------------------------------------===//

  RowKind getKind(Value value) { return kinds.lookup(numbers.get(value)); }
  void setKind(Value value, RowKind kind) { kinds[numbers.get(value)] = kind; }

  /// Whether a value of a kind may be where another is wanted.
  bool agree(RowKind got, RowKind wanted) {
    if (got == wanted)
      return true;
    if (wanted.what == RowKind::Sorted) // of counts that a sort makes
      return got.what == RowKind::Unknown ||
             (got.what == RowKind::Sorted &&
              (!isOfSort(got.of) || !isOfSort(wanted.of)));
    return got.isThere() && wanted.isThere() && got.of == wanted.of &&
           isSingle(got.of);
  }

  bool isOfSort(unsigned counts) {
    return kinds.lookup(counts).what == RowKind::Counts;
  }

  /// Whether ranks have one expert each: then rows came as they are grouped.
  bool isSingle(unsigned received) {
    AllToAllOp op = exchanges.lookup(received).op;
    auto type = cast<RankedTensorType>(op.getTensors().front().getType());
    return type.getRank() == 2 && type.getDimSize(1) == 1;
  }

  static std::string explain(RowKind wanted, RowKind got) {
    std::string text;
    llvm::raw_string_ostream os(text);
    os << describe(wanted) << ", got " << describe(got);
    if (wanted.what == got.what)
      os << " of other counts";
    return text;
  }

  /// What ranks exchange, and the number of the counts that they send.
  struct Exchange {
    AllToAllOp op;
    unsigned counts = 0;
  };

  SymbolTable &symbols;
  ValueNumbers numbers;
  llvm::DenseMap<unsigned, RowKind> kinds;      // by number
  llvm::DenseMap<unsigned, Exchange> exchanges; // by number of what is received
};

} // namespace

LogicalResult verifyRows(ModuleOp module, SymbolTable &symbols) {
  for (auto step : module.getOps<StepOp>()) {
    Block &block = step.getBlock();
    if (step.getPhase() != Phase::Captured &&
        !block.getOps<AllToAllOp>().empty() &&
        failed(RowVerifier(symbols).visit(block)))
      return failure();
  }
  return success();
}

} // namespace piper
