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
//   - transfers, and reductions of gradients, right after what they move;
//   - states are gathered some cells before their use, and what ranks reduced
//   of
//     a contribution is added a cell later, so that compute waits for neither;
//   - losses, the norm and updates at the end.
// Two cells that may overlap are issued together if ranks exchange values
// within them: see Overlap. One block holds both ends of every message, so its
// projections to coordinates cannot mismatch or deadlock.

#include "passes/CellTable.h"
#include "passes/ChunkBuilder.h"
#include "passes/Coordinates.h"
#include "passes/Cycles.h"
#include "passes/Overlap.h"
#include "passes/Passes.h"
#include "passes/Sharding.h"

#include "mlir/IR/Builders.h"
#include "llvm/ADT/DenseSet.h"

using namespace mlir;

namespace piper {

#define GEN_PASS_DEF_ORDERCELLSPASS
#include "passes/Passes.h.inc"

namespace {

class Orderer {
public:
  Orderer(ClusterOp cluster, SymbolTable &symbols)
      : cluster(cluster), symbols(symbols), graph(cluster.getBlock()),
        table(cluster, symbols, graph, order),
        overlap(cluster->getParentOfType<ModuleOp>()) {}

  LogicalResult run() {
    if (failed(collectOps()) || failed(table.readRows()))
      return failure();
    shareGathers();
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
      if (ReadOp read = getGathered(op))
        gathers[number] = getGather(read.getSymbolAttr());
      if (failed(table.add(number)))
        return failure();
    }
    return success();
  }

  //===--------------------------------------------------------------------===//
  // Issue order
  //===--------------------------------------------------------------------===//

  /// Ops that follow what they use as soon as all of it is there: transfers,
  /// and everything that is done to a gradient before its update.
  static bool isPushed(Operation *op) {
    if (isa<TransferOp>(op) || isContribution(op))
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

  /// Whether all cells of a pair can be issued, the first of which can.
  bool isPairReady(ArrayRef<unsigned> row, size_t at, size_t count) {
    return isReady(row[at + 1]) &&
           (count < 3 || isReadyWith(row[at + 2], row[at + 1]));
  }

  LogicalResult emitCells() {
    SmallVector<size_t> next(table.rows.size());
    size_t left = 0;
    for (auto &row : table.rows)
      left += row.size();
    bool apart = false; // whether the cells of a pair need not be ready at once
    while (left > 0) {
      size_t before = left;
      for (auto [row, at] : llvm::zip(table.rows, next)) {
        if (at == row.size() || !isReady(row[at]))
          continue;
        size_t count = overlaps(row, at) ? table.countPaired(row, at) : 1;
        if (count > 1 && !isPairReady(row, at, count)) {
          if (!apart)
            continue;
          count = 1;
        }
        apart = false;
        if (failed(count > 1 ? emitPair(row, at, count) : emitCell(row, at)))
          return failure();
        at += count;
        left -= count;
      }
      if (left == before && std::exchange(apart, true))
        return reportDeadlock(next);
    }
    return success();
  }

  LogicalResult emitCell(ArrayRef<unsigned> row, size_t at) {
    if (!gathers.empty())
      emitGathers(row, at);
    for (unsigned run : table.runs[row[at]])
      emitWithMakers(run);
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

  /// Issues cells that overlap: F, then B or I, and W of the same microbatch.
  LogicalResult emitPair(ArrayRef<unsigned> row, size_t at, size_t count) {
    if (!gathers.empty())
      for (size_t cell = at; cell < at + count; ++cell)
        emitGathers(row, cell);
    llvm::DenseMap<Operation *, unsigned> byOp;
    auto getOps = [&](unsigned cell) {
      Overlap::Ops ops;
      for (unsigned op : table.runs[cell]) {
        ops.push_back(graph.ops[op]);
        byOp[graph.ops[op]] = op;
      }
      return ops;
    };
    FailureOr<Overlap::Ops> merged =
        overlap.merge(getOps(row[at]), getOps(row[at + 1]),
                      count > 2 ? getOps(row[at + 2]) : Overlap::Ops());
    if (failed(merged))
      return failure();
    for (Operation *op : *merged)
      emitWithMakers(byOp[op]);
    return success();
  }

  //===--------------------------------------------------------------------===//
  // Gathered states
  //===--------------------------------------------------------------------===//

  /// The states that an op gathers from their shards, or null.
  static ReadOp getGathered(Operation *op) {
    auto gather = dyn_cast<AllGatherOp>(op);
    return gather ? gather.getInputs().front().getDefiningOp<ReadOp>()
                  : ReadOp();
  }

  /// A gather of the states of a bucket.
  struct Gather {
    Attribute bucket;
    bool isShared;   // by uses in a row
    size_t prefetch; // cells
  };

  Gather getGather(FlatSymbolRefAttr name) {
    auto bucket = symbols.lookup<BucketOp>(name.getValue());
    ReplicationAttr replication = getReplication(bucket, symbols);
    farthest = std::max(farthest, size_t(replication.getPrefetch()));
    return {name, replication.getGather() == "group",
            size_t(replication.getPrefetch())};
  }

  /// Calls back with what the runs of a cell gather.
  void forGathers(unsigned cell,
                  llvm::function_ref<void(unsigned, const Gather &)> callback) {
    for (unsigned run : table.runs[cell])
      for (unsigned maker : graph.makers(run))
        if (auto found = gathers.find(maker); found != gathers.end())
          callback(maker, found->second);
  }

  /// Lets cells of one row that come one after the other and use the same
  /// bucket use one gather, that of the first.
  void shareGathers() {
    if (gathers.empty())
      return;
    for (auto &row : table.rows) {
      llvm::DenseMap<Attribute, std::pair<size_t, unsigned>> last;
      for (auto [number, cell] : llvm::enumerate(row))
        forGathers(cell, [&](unsigned op, const Gather &gather) {
          if (!gather.isShared)
            return;
          auto found = last.find(gather.bucket);
          bool follows =
              found != last.end() && found->second.first + 1 >= number;
          unsigned first = follows ? found->second.second : op;
          if (first != op)
            order.shared[op] = first;
          last[gather.bucket] = {number, first};
        });
    }
  }

  /// Issues what a cell needs gathered, and then what the cells behind it do
  /// that want it this early. A bucket that is in use is not gathered again
  /// before, so that it is whole only once.
  void emitGathers(ArrayRef<unsigned> row, size_t at) {
    llvm::SmallDenseSet<Attribute, 4> inUse;
    for (size_t ahead = 0; at + ahead < row.size() && ahead <= farthest;
         ++ahead) {
      SmallVector<Attribute> buckets;
      forGathers(row[at + ahead], [&](unsigned op, const Gather &gather) {
        buckets.push_back(gather.bucket);
        bool again =
            inUse.contains(gather.bucket) && !order.shared.contains(op);
        if (ahead <= gather.prefetch && !again && !emitted[op])
          emitWithMakers(op);
      });
      inUse.insert_range(buckets);
    }
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
  Overlap overlap;
  std::vector<unsigned> missing;            // makers not emitted, by op
  std::vector<bool> pushed, emitted;        // by op
  llvm::DenseMap<unsigned, Gather> gathers; // by op
  size_t farthest = 0;                      // cells of prefetch
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
