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
//   - losses, the norm and updates at the end.
// One block holds both ends of every message, so its projections to coordinates
// cannot mismatch or deadlock.

#include "passes/Coordinates.h"
#include "passes/Cycles.h"
#include "passes/Passes.h"

#include "dialect/Cells.h"
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
      : cluster(cluster), symbols(symbols) {}

  LogicalResult run() {
    collectCells();
    if (failed(readRows()))
      return failure();
    countOperands();
    for (auto tangent : cluster.getBlock().getOps<TangentOp>())
      emitWithOperands(tangent);
    if (failed(emitCells()))
      return failure();
    for (Operation &op : cluster.getBlock())
      emit(&op);
    splice();
    expandSums();
    cluster.setPhase(Phase::Ordered);
    return success();
  }

private:
  ChunkOp getChunk(RunOp run) {
    return symbols.lookup<ChunkOp>(run.getChunk());
  }

  /// The cell that a run belongs to; none for a run of pass P.
  std::optional<Cell> getCell(Operation *op) {
    auto run = dyn_cast<RunOp>(op);
    if (!run)
      return std::nullopt;
    ChunkOp chunk = getChunk(run);
    if (chunk.getPass() == Pass::P)
      return std::nullopt;
    return Cell{int64_t(chunk.getStage().value_or(0)), chunk.getPass(),
                int64_t(*run.getMb())};
  }

  void collectCells() {
    for (Operation &op : cluster.getBlock())
      if (std::optional<Cell> cell = getCell(&op)) {
        cells[*cell].push_back(&op);
        busy.insert({cell->stage, cell->pass});
      }
  }

  /// The rows of the schedule; without one, all passes of a microbatch in turn.
  LogicalResult readRows() {
    auto schedule = cluster.getOrderAttr()
                        ? symbols.lookup<ScheduleOp>(*cluster.getOrder())
                        : ScheduleOp();
    if (!schedule) {
      auto &row = rows.emplace_back();
      llvm::DenseSet<Cell> seen;
      for (Operation &op : cluster.getBlock())
        if (std::optional<Cell> cell = getCell(&op);
            cell && seen.insert(*cell).second)
          row.push_back(*cell);
      return success();
    }
    llvm::DenseSet<Cell> scheduled;
    for (auto [at, text] :
         llvm::enumerate(schedule.getRows().getAsRange<StringAttr>())) {
      std::string reason;
      auto &row = rows.emplace_back();
      SmallVector<Cell> parsed = *parseCells(text, reason);
      for (const Cell &cell : parsed) {
        if (isIdle(cell))
          continue;
        if (failed(checkCell(schedule, cell, at)))
          return failure();
        scheduled.insert(cell);
        row.push_back(cell);
      }
    }
    for (auto &[cell, ops] : cells)
      if (!scheduled.contains(cell))
        return schedule.emitOpError("expected a cell ") << cell.str();
    return success();
  }

  /// Whether a cell is a backward pass in which its stage does nothing: nothing
  /// in it is trained or nothing before it, or the step is an evaluation.
  bool isIdle(const Cell &cell) {
    auto runs = [&](Pass pass) {
      return cells.contains(Cell{cell.stage, pass, cell.microbatch});
    };
    bool otherwise =
        cell.pass == Pass::B ? runs(Pass::I) || runs(Pass::W) : runs(Pass::B);
    return cell.pass != Pass::F && !otherwise &&
           !busy.contains({cell.stage, cell.pass});
  }

  LogicalResult checkCell(ScheduleOp schedule, const Cell &cell, size_t row) {
    auto found = cells.find(cell);
    if (found == cells.end())
      return schedule.emitOpError("has a cell ")
             << cell.str() << " in row " << row
             << " that the step does not have";
    int64_t home = *getCoordinate(found->second.front());
    if (home != int64_t(row))
      return schedule.emitOpError("expected cell ")
             << cell.str() << " in row " << home
             << ", where its stage is placed, got row " << row;
    return success();
  }

  void countOperands() {
    for (Operation &op : cluster.getBlock()) {
      llvm::SmallPtrSet<Operation *, 8> makers;
      for (Value operand : op.getOperands())
        makers.insert(operand.getDefiningOp());
      missing[&op] = makers.size();
    }
  }

  /// Ops that follow what they use as soon as all of it is there.
  bool isPushed(Operation *op) {
    if (isa<TransferOp>(op))
      return true;
    if (auto sum = dyn_cast<SumOp>(op))
      return sum.getBucketAttr() != nullptr;
    auto reduction = dyn_cast<AllReduceOp>(op);
    if (!reduction)
      return false;
    auto sum = reduction.getInputs().front().getDefiningOp<SumOp>();
    return sum && sum.getBucketAttr();
  }

  void emit(Operation *op) {
    if (!emitted.insert(op).second)
      return;
    sequence.push_back(op);
    SmallVector<Operation *> ready;
    llvm::SmallPtrSet<Operation *, 8> users(op->user_begin(), op->user_end());
    for (Operation *user : users)
      if (--missing[user] == 0 && isPushed(user))
        ready.push_back(user);
    llvm::sort(ready, [&](Operation *a, Operation *b) {
      return position(a) < position(b);
    });
    for (Operation *user : ready)
      emit(user);
  }

  void emitWithOperands(Operation *op) {
    for (Value operand : op->getOperands())
      if (!emitted.contains(operand.getDefiningOp()))
        emitWithOperands(operand.getDefiningOp());
    emit(op);
  }

  /// Place in the block before ordering, numbered once.
  int64_t position(Operation *op) {
    if (positions.empty())
      for (auto [index, other] : llvm::enumerate(cluster.getBlock()))
        positions[&other] = index;
    return positions.lookup(op);
  }

  /// Whether an op is issued or can be issued with what uses it, since no cell
  /// has to come first.
  bool isAvailable(Operation *op) {
    return emitted.contains(op) ||
           (!getCell(op) && llvm::all_of(op->getOperands(), [&](Value operand) {
             return isAvailable(operand.getDefiningOp());
           }));
  }

  /// Whether a value must be issued before the cell of these runs can be.
  bool isMissing(Value operand, ArrayRef<Operation *> cell) {
    Operation *maker = operand.getDefiningOp();
    return !llvm::is_contained(cell, maker) && !isAvailable(maker);
  }

  bool isReady(const Cell &cell) {
    ArrayRef<Operation *> ops = cells.find(cell)->second;
    return llvm::none_of(ops, [&](Operation *op) {
      return llvm::any_of(op->getOperands(), [&](Value operand) {
        return isMissing(operand, ops);
      });
    });
  }

  LogicalResult emitCells() {
    SmallVector<size_t> next(rows.size());
    size_t left = 0;
    for (auto &row : rows)
      left += row.size();
    while (left > 0) {
      size_t before = left;
      for (auto [row, cell] : llvm::zip(rows, next)) {
        if (cell == row.size() || !isReady(row[cell]))
          continue;
        for (Operation *op : cells.find(row[cell])->second)
          emitWithOperands(op);
        ++cell;
        --left;
      }
      if (left == before)
        return reportDeadlock(next);
    }
    return success();
  }

  /// A run at the head of a row cannot be issued, because a value is missing
  /// that a run of another cell makes.
  struct Wait {
    Operation *run;
    Value value;
    Operation *maker;
  };
  /// The row of each cell, and its number in that row.
  using Places = llvm::DenseMap<Cell, std::pair<size_t, size_t>>;

  /// Shows a shortest cycle of rows. There is one: whatever is left waits for a
  /// run of a row that is left.
  LogicalResult reportDeadlock(ArrayRef<size_t> next) {
    Places places;
    for (auto [row, rowCells] : llvm::enumerate(rows))
      for (auto [number, cell] : llvm::enumerate(rowCells))
        places[cell] = {row, number};
    SmallVector<Wait> waits;
    for (auto [row, rowCells] : llvm::enumerate(rows))
      if (next[row] < rowCells.size())
        collectWaits(rowCells[next[row]], waits);
    SmallVector<Edge> edges;
    for (const Wait &wait : waits)
      edges.push_back({places[*getCell(wait.run)].first,
                       places[*getCell(wait.maker)].first});
    Operation *table =
        cluster.getOrderAttr() ? symbols.lookup(*cluster.getOrder()) : cluster;
    InFlightDiagnostic error =
        table->emitOpError("deadlocks: cells wait for each other in a cycle");
    for (size_t index : findShortestCycle(rows.size(), edges))
      describe(waits[index], next, places, error);
    return failure();
  }

  void describe(const Wait &wait, ArrayRef<size_t> next, const Places &places,
                InFlightDiagnostic &error) {
    auto run = cast<RunOp>(wait.run), maker = cast<RunOp>(wait.maker);
    Cell cell = *getCell(run), made = *getCell(maker);
    auto [from, number] = places.lookup(cell);
    auto [to, behind] = places.lookup(made);
    Diagnostic &note = error.attachNote(wait.value.getLoc());
    note << "coordinate " << from << " stops before " << cell.str()
         << ", number " << number << " of its row: " << run.getChunkAttr()
         << " for microbatch " << cell.microbatch << " needs this value of "
         << maker.getChunkAttr() << " for microbatch " << made.microbatch
         << ", which coordinate " << to << " runs in " << made.str()
         << ", number " << behind << " of its row";
    if (behind > next[to])
      note << ", behind " << rows[to][next[to]].str();
  }

  /// Adds everything that the cell at the head of a row waits for.
  void collectWaits(const Cell &cell, SmallVectorImpl<Wait> &waits) {
    ArrayRef<Operation *> ops = cells.find(cell)->second;
    for (Operation *op : ops)
      for (Value value : op->getOperands())
        if (isMissing(value, ops))
          waits.push_back({op, value, findMaker(value.getDefiningOp())});
  }

  /// A run, not issued yet, that an op which is not available comes from.
  Operation *findMaker(Operation *op) {
    while (!getCell(op)) {
      Value missing = *llvm::find_if(op->getOperands(), [&](Value operand) {
        return !isAvailable(operand.getDefiningOp());
      });
      op = missing.getDefiningOp();
    }
    return op;
  }

  void splice() {
    Block &block = cluster.getBlock();
    for (Operation *op : sequence)
      op->moveBefore(&block, block.end());
  }

  /// A sum of gradients becomes an accumulation after each contribution.
  void expandSums() {
    OpBuilder builder(cluster.getContext());
    llvm::DenseMap<Operation *, int64_t> issued;
    for (auto [index, op] : llvm::enumerate(sequence))
      issued[op] = index;
    for (Operation *op : sequence) {
      auto sum = dyn_cast<SumOp>(op);
      if (!sum || !sum.getBucketAttr())
        continue;
      SmallVector<Value> inputs(sum.getInputs());
      llvm::stable_sort(inputs, [&](Value a, Value b) {
        return issued[a.getDefiningOp()] < issued[b.getDefiningOp()];
      });
      Value onto;
      for (Value input : inputs) {
        builder.setInsertionPointAfter(input.getDefiningOp());
        onto = AccumulateOp::create(
            builder, input.getLoc(), sum.getResult().getType(),
            sum.getBucketAttr(), input, onto, sum.getAtAttr(), ValueRange());
      }
      sum.getResult().replaceAllUsesWith(onto);
      sum.erase();
    }
  }

  ClusterOp cluster;
  SymbolTable &symbols;
  llvm::DenseSet<std::pair<int64_t, Pass>> busy; // stages and what they run
  llvm::MapVector<Cell, SmallVector<Operation *>> cells;
  std::vector<SmallVector<Cell>> rows;
  llvm::DenseMap<Operation *, size_t> missing;
  llvm::DenseMap<Operation *, int64_t> positions;
  llvm::DenseSet<Operation *> emitted;
  std::vector<Operation *> sequence;
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
