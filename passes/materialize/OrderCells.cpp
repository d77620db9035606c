//===- OrderCells.cpp - Put the cluster in issue order
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

// Coordinates advance in turn, one cell each, when what the cell needs has been
// issued. Around the cells:
//   - counts and tangents come first, then inputs and masks right before their
//     first use;
//   - transfers, and reductions of gradients and losses, right after what they
//     move;
//   - states are gathered some runs before their use (see Gathers), and what
//     ranks reduced of a contribution is added a cell later, so that compute
//     waits for neither;
//   - outputs, the norm and updates at the end.
// Two cells that may overlap are issued together if ranks exchange values
// within them: see Overlap. One block holds both ends of every message, so its
// projections to coordinates cannot mismatch or deadlock.

#include "passes/Passes.h"
#include "passes/materialize/CellTable.h"
#include "passes/materialize/Cycles.h"
#include "passes/materialize/Gathers.h"
#include "passes/materialize/Overlap.h"
#include "passes/support/ChunkBuilder.h"
#include "passes/support/Coordinates.h"

#include <deque>

using namespace mlir;

namespace piper {

#define GEN_PASS_DEF_ORDERCELLSPASS
#include "passes/Passes.h.inc"

namespace {

class Orderer {
public:
  Orderer(ClusterOp cluster, SymbolTable &symbols)
      : cluster(cluster), symbols(symbols), graph(cluster.getBlock()),
        table(cluster, symbols, graph, order), gathers(symbols, graph, order),
        overlap(cluster->getParentOfType<ModuleOp>()) {}

  LogicalResult run() {
    if (failed(collectOps()) || failed(table.readRows()) || failed(planTurns()))
      return failure();
    order.sequence.reserve(graph.size());
    for (size_t op = 0; op < graph.size(); ++op)
      if (isa<TangentOp>(graph.ops[op]))
        emitWithMakers(op);
    if (failed(emitCells()) || (table.trains() && failed(overlap.checkUsed())))
      return failure();
    for (size_t op = 0; op < graph.size(); ++op)
      emit(op);
    buildOrderedBlock(cluster, graph, order);
    cluster.setPhase(Phase::Ordered);
    return success();
  }

private:
  /// Notes of every op what ordering asks for, in one walk.
  LogicalResult collectOps() {
    emitted.assign(graph.size(), false);
    for (auto [number, op] : llvm::enumerate(graph.ops)) {
      if (number + OpGraph::ahead < graph.size())
        graph.prefetch(number + OpGraph::ahead);
      missing.push_back(graph.makers(number).size());
      pushed.push_back(isPushed(op));
      order.contributes.push_back(isContribution(op));
      gathers.add(number);
      if (failed(table.add(number)))
        return failure();
    }
    return success();
  }

  //===--------------------------------------------------------------------===//
  // Issue order
  //===--------------------------------------------------------------------===//

  /// Ops that follow what they use as soon as all of it is there: transfers,
  /// sums of losses, and everything that is done to a gradient before its
  /// update. So updates wait for no loss that ranks sum behind all gradients.
  static bool isPushed(Operation *op) {
    if (isa<TransferOp, SumOp>(op))
      return true;
    if (isExchange(op) ||
        !isa<AllReduceOp, ReduceScatterOp, ConvertOp, SliceOp>(op))
      return false;
    Operation *maker = op->getOperand(0).getDefiningOp();
    return isa<RunOp>(maker) || (!isa<TransferOp>(maker) && isPushed(maker));
  }

  void emit(unsigned op) {
    if (emitted[op])
      return;
    emitted[op] = true;
    if (!order.shared.contains(op))
      order.sequence.push_back(op);
    SmallVector<unsigned> ready;
    for (unsigned user : graph.users(op))
      if (--missing[user] == 0 && pushed[user])
        ready.push_back(user);
    for (unsigned user : ready)
      emit(user);
  }

  void emitWithMakers(unsigned op) {
    auto found = order.shared.find(op);
    if (found != order.shared.end() && !emitted[found->second])
      emitWithMakers(found->second);
    for (unsigned maker : graph.makers(op))
      if (!emitted[maker])
        emitWithMakers(maker);
    emit(op);
  }

  /// Whether an op is issued or can be issued with what uses it, since no cell
  /// has to come first.
  bool isAvailable(unsigned op) {
    return emitted[op] || (order.cellOf[op] == none &&
                           llvm::all_of(graph.makers(op), [&](unsigned maker) {
                             return isAvailable(maker);
                           }));
  }

  /// Whether an op must be issued before a cell can be.
  bool isMissing(unsigned op, unsigned cell) {
    return order.cellOf[op] != cell && !isAvailable(op);
  }

  bool isReady(unsigned cell) { return isReadyWith(cell, cell); }

  /// Whether a cell can be issued with another that is.
  bool isReadyWith(unsigned cell, unsigned other) {
    return llvm::none_of(table.runs[cell], [&](unsigned run) {
      return llvm::any_of(graph.makers(run), [&](unsigned maker) {
        return order.cellOf[maker] != other && isMissing(maker, cell);
      });
    });
  }

  /// What a coordinate issues in one go: a cell, or cells that overlap.
  struct Turn {
    SmallVector<unsigned, 3> cells;
    ArrayRef<unsigned> ops; // runs and exchanges
  };

  LogicalResult planTurns() {
    for (auto &row : table.rows) {
      auto &turns = rows.emplace_back();
      Gathers::Ops ops;
      for (size_t at = 0; at < row.size(); at += turns.back().cells.size()) {
        turns.push_back({{row[at]}, table.runs[row[at]]});
        if (overlaps(row, at) &&
            failed(pair(turns.back(),
                        ArrayRef(row).slice(at, table.countPaired(row, at)))))
          return failure();
        llvm::append_range(ops, turns.back().ops);
      }
      gathers.addRow(ops);
    }
    return success();
  }

  /// Whether a cell is issued together with the one behind it: they may
  /// overlap, and ranks exchange values within one of them.
  bool overlaps(ArrayRef<unsigned> row, size_t at) {
    auto exchanges = [&](unsigned cell) {
      return llvm::any_of(table.runs[cell], [&](unsigned op) {
        return isExchange(graph.ops[op]);
      });
    };
    return table.isPaired[row[at]] && at + 1 < row.size() &&
           (exchanges(row[at]) || exchanges(row[at + 1]));
  }

  /// Makes a turn of cells that overlap: F, then B or I, and W of the same
  /// microbatch.
  LogicalResult pair(Turn &turn, ArrayRef<unsigned> cells) {
    llvm::DenseMap<Operation *, unsigned> byOp;
    SmallVector<Overlap::Ops> passes(3);
    for (auto [pass, cell] : llvm::zip(passes, cells))
      for (unsigned op : table.runs[cell]) {
        pass.push_back(graph.ops[op]);
        byOp[graph.ops[op]] = op;
      }
    FailureOr<Overlap::Ops> merged =
        overlap.merge(passes[0], passes[1], passes[2]);
    if (failed(merged))
      return failure();
    auto &ops = pairs.emplace_back();
    for (Operation *op : *merged)
      ops.push_back(byOp[op]);
    turn = {llvm::to_vector<3>(cells), ops};
    return success();
  }

  LogicalResult emitCells() {
    SmallVector<size_t> next(rows.size()); // turns
    SmallVector<size_t> done(rows.size()); // cells
    size_t left = 0;
    for (auto &row : table.rows)
      left += row.size();
    bool apart = false; // whether the cells of a turn need not be ready at once
    while (left > 0) {
      size_t before = left;
      for (auto [turns, at, cells] : llvm::zip(rows, next, done)) {
        if (at == turns.size() || !isReady(turns[at].cells.front()))
          continue;
        if (!isWholeReady(turns[at])) {
          if (!apart)
            continue;
          split(turns, at);
        }
        apart = false;
        for (unsigned op : turns[at].ops)
          emitNext(op);
        cells += turns[at].cells.size();
        left -= turns[at].cells.size();
        ++at;
      }
      if (left == before && std::exchange(apart, true))
        return reportDeadlock(done);
    }
    return success();
  }

  /// Whether all cells of a turn can be issued, the first of which can.
  bool isWholeReady(const Turn &turn) {
    ArrayRef<unsigned> cells = turn.cells;
    return cells.size() == 1 ||
           (isReady(cells[1]) &&
            (cells.size() == 2 || isReadyWith(cells[2], cells[1])));
  }

  /// Makes a turn of each cell of one.
  void split(std::vector<Turn> &turns, size_t at) {
    SmallVector<Turn> single;
    for (unsigned cell : turns[at].cells)
      single.push_back({{cell}, table.runs[cell]});
    turns.erase(turns.begin() + at);
    turns.insert(turns.begin() + at, single.begin(), single.end());
  }

  void emitNext(unsigned op) {
    for (unsigned gather : gathers.getNext(op))
      emitWithMakers(gather);
    emitWithMakers(op);
  }

  //===--------------------------------------------------------------------===//
  // Deadlocks
  //===--------------------------------------------------------------------===//

  /// A run at the head of a row cannot be issued, because a value is missing
  /// that a run of another cell makes.
  struct Wait {
    unsigned run;
    Value value;
    unsigned maker;
  };
  /// The row of each cell, and its number in that row.
  using Places = SmallVector<std::pair<size_t, size_t>>;

  /// Shows a shortest cycle of table.rows. There is one: whatever is left waits
  /// for a run of a row that is left.
  LogicalResult reportDeadlock(ArrayRef<size_t> next) {
    Places places(table.runs.size());
    for (auto [row, rowCells] : llvm::enumerate(table.rows))
      for (auto [number, cell] : llvm::enumerate(rowCells))
        places[cell] = {row, number};
    SmallVector<Wait> waits;
    for (auto [row, rowCells] : llvm::enumerate(table.rows))
      if (next[row] < rowCells.size())
        collectWaits(rowCells[next[row]], waits);
    SmallVector<Edge> edges;
    for (const Wait &wait : waits)
      edges.push_back({places[order.cellOf[wait.run]].first,
                       places[order.cellOf[wait.maker]].first});
    Operation *culprit =
        cluster.getOrderAttr() ? symbols.lookup(*cluster.getOrder()) : cluster;
    InFlightDiagnostic error =
        culprit->emitOpError("deadlocks: cells wait for each other in a cycle");
    for (size_t index : findShortestCycle(table.rows.size(), edges))
      describe(waits[index], next, places, error);
    return failure();
  }

  void describe(const Wait &wait, ArrayRef<size_t> next, const Places &places,
                InFlightDiagnostic &error) {
    RunOp run = CellTable::getRun(graph.ops[wait.run]);
    RunOp maker = CellTable::getRun(graph.ops[wait.maker]);
    Cell cell = *table.getCell(run), made = *table.getCell(maker);
    auto [from, number] = places[order.cellOf[wait.run]];
    auto [to, behind] = places[order.cellOf[wait.maker]];
    Diagnostic &note = error.attachNote(wait.value.getLoc());
    note << "coordinate " << from << " stops before " << cell.str()
         << ", number " << number << " of its row: " << run.getChunkAttr()
         << " for microbatch " << cell.microbatch << " needs this value of "
         << maker.getChunkAttr() << " for microbatch " << made.microbatch
         << ", which coordinate " << to << " runs in " << made.str()
         << ", number " << behind << " of its row";
    if (behind > next[to]) {
      unsigned head = table.runs[table.rows[to][next[to]]].front();
      note << ", behind " << table.getCell(graph.ops[head])->str();
    }
  }

  /// Adds everything that the cell at the head of a row waits for.
  void collectWaits(unsigned cell, SmallVectorImpl<Wait> &waits) {
    for (unsigned run : table.runs[cell])
      for (auto [value, maker] :
           llvm::zip(graph.ops[run]->getOperands(), graph.operands(run)))
        if (isMissing(maker, cell))
          waits.push_back({run, value, findMaker(maker)});
  }

  /// A run, not issued yet, that an op which is not available comes from.
  unsigned findMaker(unsigned op) {
    while (order.cellOf[op] == none)
      op = *llvm::find_if(graph.makers(op),
                          [&](unsigned maker) { return !isAvailable(maker); });
    return op;
  }

  static constexpr unsigned none = IssueOrder::noCell;

  ClusterOp cluster;
  SymbolTable &symbols;
  OpGraph graph;
  IssueOrder order;
  CellTable table;
  Gathers gathers;
  Overlap overlap;
  std::vector<std::vector<Turn>> rows; // of the schedule
  std::deque<SmallVector<unsigned>> pairs;
  std::vector<unsigned> missing;     // makers not emitted, by op
  std::vector<bool> pushed, emitted; // by op
};

class OrderCellsPass : public impl::OrderCellsPassBase<OrderCellsPass> {
  void runOnOperation() override {
    SymbolTable symbols(getOperation());
    for (auto cluster : getOperation().getOps<ClusterOp>())
      if (cluster.getPhase() == Phase::Reduced &&
          failed(Orderer(cluster, symbols).run()))
        return signalPassFailure();
  }
};

} // namespace
} // namespace piper
