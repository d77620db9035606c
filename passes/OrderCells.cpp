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
        if (cell->pass != Pass::F)
          trained.insert(cell->stage);
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
        if (isFrozen(cell))
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

  /// Whether a cell is the backward of a stage that has none: nothing in it is
  /// trained, or the step is an evaluation, which takes the forward cells.
  bool isFrozen(const Cell &cell) {
    bool evaluates = trained.empty();
    return cell.pass != Pass::F && !trained.contains(cell.stage) &&
           (evaluates || cell.pass == Pass::B);
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

  /// Ops that come right before what uses them.
  bool isPulled(Operation *op) { return !isPushed(op) && !getCell(op); }

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

  /// Whether everything a cell needs is issued or can be issued with it.
  Value findMissing(const Cell &cell) {
    ArrayRef<Operation *> ops = cells.find(cell)->second;
    for (Operation *op : ops)
      for (Value operand : op->getOperands()) {
        Operation *maker = operand.getDefiningOp();
        if (!emitted.contains(maker) && !isPulled(maker) &&
            !llvm::is_contained(ops, maker))
          return operand;
      }
    return {};
  }

  LogicalResult emitCells() {
    SmallVector<size_t> next(rows.size());
    size_t left = 0;
    for (auto &row : rows)
      left += row.size();
    while (left > 0) {
      size_t before = left;
      for (auto [row, cell] : llvm::zip(rows, next)) {
        if (cell == row.size() || findMissing(row[cell]))
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

  LogicalResult reportDeadlock(ArrayRef<size_t> next) {
    InFlightDiagnostic error =
        symbols.lookup(*cluster.getOrder())
            ->emitOpError("deadlocks: every coordinate waits for another");
    for (auto [at, row] : llvm::enumerate(rows)) {
      if (next[at] == row.size())
        continue;
      const Cell &cell = row[next[at]];
      Value missing = findMissing(cell);
      error.attachNote(missing.getLoc())
          << "coordinate " << at << " stops before cell " << cell.str()
          << " (number " << next[at] << " of its row), which needs this value";
    }
    return failure();
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
  llvm::SmallDenseSet<int64_t> trained; // stages with a backward
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
