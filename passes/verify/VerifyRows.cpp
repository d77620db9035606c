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
//
// Where experts multiply rows, what depends on a product goes back, and what is
// joined came back; other rows may go the same way beside these: see RowSkips.
// In a backward pass, gradients stand where ops want them, and nowhere else:
// see RowRoles.

#include "passes/support/RowPositions.h"
#include "passes/support/ValueNumbers.h"
#include "passes/verify/RowKinds.h"
#include "passes/verify/RowPairs.h"
#include "passes/verify/RowRoles.h"
#include "passes/verify/RowSkips.h"
#include "passes/verify/Verify.h"

#include "llvm/ADT/DenseSet.h"

using namespace mlir;

namespace piper {

namespace {

/// What ranks exchange, and the number of the counts that they send.
struct Exchange {
  AllToAllOp op;
  unsigned counts = 0;
};

/// Follows one step.
class RowVerifier {
public:
  explicit RowVerifier(SymbolTable &symbols) : symbols(symbols) {}

  LogicalResult verify(Block &block) {
    return failure(failed(visit(block)) || failed(checkSkipped()));
  }

private:
  LogicalResult visit(Block &block) {
    for (Operation &op : block)
      if (failed(visit(&op)))
        return failure();
    return success();
  }

  LogicalResult visit(Operation *op) {
    if (auto run = dyn_cast<RunOp>(op)) {
      auto chunk = symbols.lookup<ChunkOp>(run.getChunk());
      isInBackward = chunk.getPass() != Pass::F && chunk.getPass() != Pass::P;
      if (isInBackward)
        ofBackward.insert_range(run.getResults());
      return call(run, chunk);
    }
    if (isa<StepOp>(op->getParentOp())) {
      isInBackward = llvm::any_of(op->getOperands(), [&](Value operand) {
        return ofBackward.contains(operand);
      });
      if (isInBackward)
        ofBackward.insert_range(op->getResults());
    }
    if (auto launch = dyn_cast<LaunchOp>(op))
      return call(launch, symbols.lookup(launch.getKernel()));
    numbers.add(op);
    roles.add(op, isInBackward);
    pairs.add(op);
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
    if (auto grad = dyn_cast<GradOp>(op))
      return pairs.check(grad);
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

  /// Any values may be exchanged in equal parts: that they are counts, and of
  /// what, is asked where sizes or ops take them as such.
  LogicalResult visitCounts(AllToAllOp op) {
    Value counts = op.getInputs().front(), received = op.getTensors().front();
    if (getKind(counts).isRows())
      return op.emitOpError("expected sizes of the rows that it exchanges");
    setKind(received, {RowKind::Received, numbers.get(received)});
    exchanges[numbers.get(received)] = {op, numbers.get(counts)};
    return success();
  }

  LogicalResult visitRows(AllToAllOp op) {
    RowKind sent = getKind(op.getSendSizes());
    RowKind received = getKind(op.getRecvSizes());
    bool isBack = areExchanged(/*counts=*/received.of, sent.of);
    if (!isBack && !areExchanged(sent.of, received.of))
      return op.emitOpError(
          "expected sizes of counts and of what an all_to_all "
          "makes of these counts, got others");
    unsigned counts = isBack ? sent.of : received.of; // of rows that came
    Exchange exchange = exchanges.lookup(counts);
    if (failed(checkExchange(op, exchange)))
      return failure();
    Value rows = op.getInputs().front(), made = op.getTensors().front();
    RowKind came = {RowKind::Came, counts};
    RowKind sorted = {RowKind::Sorted, exchange.counts};
    RowKind wanted = isBack ? came : sorted;
    RowKind got = getKind(rows);
    if (!agree(got, wanted))
      return op.emitOpError("expected ") << explain(wanted, got);
    if (isBack)
      returned.add(getUse(op, counts, rows), got.isDone);
    else
      wereSent.insert(exchange.counts);
    sorted.isDone = isBack;
    setKind(made, isBack ? sorted : came);
    return success();
  }

  RowSkips::Use getUse(Operation *op, unsigned counts, Value rows) {
    return {op, counts, numbers.get(rows), isBackward(roles.get(rows)),
            isInBackward};
  }

  /// Checks rows that go back as they came, and tokens that are joined from
  /// rows which did not come back: if experts multiply some, and if some are
  /// sent. Where rows are added to what is made of them, by experts or by
  /// whoever sends them, gradients go back by the sum, perhaps by it alone.
  LogicalResult checkSkipped() {
    for (const RowSkips::Use &use : returned.get()) {
      TorchOp product = multiplied[use.isGradient].lookup(use.counts);
      if (product && !returned.isBesideOthers(use) &&
          !(use.isGradient && residual.contains(use.counts)))
        return failReturned(use, product);
    }
    for (const RowSkips::Use &use : joined.get())
      if (wereSent.contains(use.counts) && !joined.isBesideOthers(use) &&
          !residual.contains(use.counts))
        return fail(cast<TorchOp>(use.op))
               << "rows that came back, got "
               << describe({RowKind::Sorted, use.counts})
               << ": join what moe_collect gives, alone or beside these";
    return success();
  }

  LogicalResult failReturned(const RowSkips::Use &use, TorchOp product) {
    InFlightDiagnostic error =
        use.op->emitOpError("expected rows that experts multiplied, got ");
    error << describe({RowKind::Came, use.counts})
          << ", which go to them: collect what "
          << (use.isGradient ? "moe_linear_input" : "moe_linear")
          << " makes of these, alone or beside them";
    error.attachNote(product.getLoc()) << "experts multiply them here";
    return failure();
  }

  /// Counts that are sent are exchanged once, by rank, and as their rows are.
  LogicalResult checkExchange(AllToAllOp op, const Exchange &exchange) {
    AllToAllOp made = exchange.op;
    if (kinds.lookup(exchange.counts).what == RowKind::Received)
      return made.emitOpError("expected counts of rows that are sent, got "
                              "those that another all_to_all makes");
    if (made.getDim() != 0)
      return made.emitOpError("expected dim 0, which counts rows by rank, got "
                              "dim ")
             << made.getDim();
    if (op.getOver() == made.getOver())
      return success();
    InFlightDiagnostic error =
        op.emitOpError("expected axes ")
        << made.getOver()
        << ", over which ranks exchange the counts of its rows, got "
        << op.getOver();
    error.attachNote(made.getLoc()) << "the counts are exchanged here";
    return failure();
  }

  /// Ranks along other axes have the same rows, or parts of each.
  LogicalResult visitOther(CollectiveOpInterface op) {
    for (auto [input, result] : llvm::zip(op.getInputs(), op.getTensors())) {
      RowKind kind = getKind(input);
      if (!kind.isRows())
        continue;
      auto isAlong = [&](Attribute axis) {
        return kind.isReceivedRows() &&
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
  bool areExchanged(unsigned counts, unsigned received) {
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
    std::optional<RowOp> own = getRowOp(op);
    if (!own || !own->fits(op))
      return failure(failed(checkBackward(op)) || failed(visitOther(op)));
    if (isInBackward && own->gradient) {
      Wanted wanted = {*own->gradient, {}};
      if (own->saved)
        wanted.saved.push_back(*own->saved);
      if (failed(roles.check(op, wanted)))
        return failure();
    }
    return own->order ? visitOrdered(op, *own) : visitGrouped(op, *own);
  }

  /// Gradients of torch's ops on rows that came.
  LogicalResult checkBackward(TorchOp op) {
    if (!isInBackward || !isBackwardOp(op) || op.getInputs().empty())
      return success();
    auto isReceived = [&](Value value) {
      return getKind(value).isReceivedRows();
    };
    if (!isReceived(op.getInputs().front()))
      return success();
    Wanted wanted;
    for (auto [index, value] : llvm::enumerate(op.getInputs().drop_front()))
      if (isReceived(value))
        wanted.saved.push_back(index + 1);
    return roles.check(op, wanted);
  }

  /// What it orders and what it counts go together.
  void visitSort(TorchOp op) {
    unsigned order = numbers.getResult(op, 0);
    unsigned counts = numbers.getResult(op, 1);
    kinds[order] = {RowKind::Order, counts};
    kinds[counts] = {RowKind::Counts, counts};
  }

  /// Rows of tokens have the order that their sort gave them.
  LogicalResult visitOrdered(TorchOp op, const RowOp &own) {
    RowKind order = getKind(op.getInputs()[*own.order]);
    if (order.what != RowKind::Order)
      return success();
    RowKind wanted = {RowKind::Sorted, order.of};
    if (own.makes == RowKind::Sorted)
      setKind(op.getResult(0), wanted);
    for (unsigned operand : own.rows) {
      RowKind got = getKind(op.getInputs()[operand]);
      if (!agree(got, wanted))
        return fail(op) << explain(wanted, got);
      bool isDone = got.what != RowKind::Sorted || got.isDone;
      joined.add(
          getUse(op, isDone ? wanted.of : got.of, op.getInputs()[operand]),
          isDone);
    }
    return success();
  }

  /// Experts take rows and the counts by which these came. In a layer that
  /// ranks do not share out nothing came, and counts are of one rank.
  LogicalResult visitGrouped(TorchOp op, const RowOp &own) {
    Value last = op.getInputs().back();
    RowKind counts = getKind(last);
    for (unsigned operand : own.rows) {
      RowKind rows = getKind(op.getInputs()[operand]);
      RowKind received = {RowKind::Received, rows.of};
      if (rows.isReceivedRows() && !(counts == received))
        return fail(op) << explain(received, counts);
      if (counts.what == RowKind::Counts && getNumRanks(last) > 1)
        return fail(op) << explain(received, counts);
      if (counts.what != RowKind::Received)
        continue;
      RowKind wanted = {own.takes, counts.of};
      if (!agree(rows, wanted))
        return fail(op) << explain(wanted, rows);
      if (isProductOfExperts(op))
        multiplied[isBackward(roles.get(op.getInputs()[operand]))].try_emplace(
            counts.of, op);
      if (own.makes != RowKind::Unknown)
        setKind(op.getResult(0),
                {own.makes, rows.of, rows.isDone || isProductOfExperts(op)});
    }
    return success();
  }

  /// For how many ranks rows are counted.
  static int64_t getNumRanks(Value counts) {
    auto type = cast<RankedTensorType>(counts.getType());
    return type.getRank() == 0 ? 1 : type.getDimSize(0);
  }

  /// Other ops work on each row by itself.
  LogicalResult visitOther(TorchOp op) {
    RowKind common;
    bool isMixed = false;
    for (Value value : op.getInputs()) {
      RowKind kind = getKind(value);
      if (kind.what == RowKind::Sorted && !kind.isDone && !isInBackward &&
          op.getOpName() != "aten.clone.default")
        residual.insert(kind.of);
      if (!kind.isReceivedRows())
        continue;
      if (common.isReceivedRows() && !agree(kind, common))
        return fail(op) << explain(common, kind);
      isMixed |= common.isReceivedRows() && kind.isDone != common.isDone;
      kind.isDone |= common.isDone;
      common = kind;
    }
    if (!common.isReceivedRows())
      return success();
    if (isMixed && !isInBackward)
      residual.insert(common.of);
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
    return got.isReceivedRows() && wanted.isReceivedRows() &&
           got.of == wanted.of && hasOneExpert(got.of);
  }

  bool isOfSort(unsigned counts) {
    return kinds.lookup(counts).what == RowKind::Counts;
  }

  /// Whether ranks have one expert each: then rows came as they are grouped.
  bool hasOneExpert(unsigned received) {
    AllToAllOp op = exchanges.lookup(received).op;
    auto type = cast<RankedTensorType>(op.getTensors().front().getType());
    return type.getRank() == 2 && type.getDimSize(1) == 1;
  }

  SymbolTable &symbols;
  ValueNumbers numbers;
  RowRoles roles{numbers};
  RowPairs pairs{numbers};
  bool isInBackward = false;        // what is followed
  llvm::DenseSet<Value> ofBackward; // of the step, made by backward passes
  llvm::DenseMap<unsigned, RowKind> kinds;      // by number
  llvm::DenseMap<unsigned, Exchange> exchanges; // by number of what is received
  llvm::DenseSet<unsigned> wereSent; // counts by which rows were sent
  llvm::DenseMap<unsigned, TorchOp> multiplied[2]; // by counts, of each pass
  llvm::DenseSet<unsigned> residual; // counts of rows that other ops take
  RowSkips returned, joined;
};

} // namespace

/// Whether any kernel handles rows of experts.
static bool hasExperts(ModuleOp module) {
  for (auto kernel : module.getOps<KernelOp>())
    if (llvm::any_of(kernel.getBody().getOps<TorchOp>(), isExpertsOp))
      return true;
  return false;
}

LogicalResult verifyRows(ModuleOp module, SymbolTable &symbols) {
  bool areAllFollowed = hasExperts(module);
  for (auto step : module.getOps<StepOp>()) {
    Block &block = step.getBlock();
    if (step.getPhase() == Phase::Captured ||
        (!areAllFollowed && block.getOps<AllToAllOp>().empty()))
      continue;
    if (failed(RowVerifier(symbols).verify(block)))
      return failure();
  }
  return success();
}

} // namespace piper
