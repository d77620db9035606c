//===- Order.cpp - Record the schedule of a step
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "passes/Passes.h"
#include "passes/support/Facts.h"

#include "dialect/Cells.h"
#include "dialect/Layouts.h"
#include "mlir/IR/Builders.h"
#include "llvm/ADT/DenseSet.h"

using namespace mlir;

namespace piper {

#define GEN_PASS_DEF_ORDERPASS
#include "passes/Passes.h.inc"

namespace {

class OrderPass : public impl::OrderPassBase<OrderPass> {
  void runOnOperation() override {
    FactRecorder facts;
    SymbolTable symbols(getOperation());
    for (auto order : findDirectives<DoOrderOp>(getOperation())) {
      auto schedule = symbols.lookup<ScheduleOp>(order.getSchedule());
      if (!schedule) {
        order.emitOpError("expected a schedule, got ")
            << order.getScheduleAttr();
        return signalPassFailure();
      }
      for (auto step : getOperation().getOps<StepOp>())
        if (failed(check(order, schedule, step)) ||
            failed(facts.record(step, "order", order.getScheduleAttr(), order)))
          return signalPassFailure();
    }
    MeshOp mesh = findMesh(getOperation());
    if (mesh && mesh.getNumCoordinates() > 1)
      for (auto step : getOperation().getOps<StepOp>())
        if (!step.getOrder()) {
          step.emitOpError("expected an order directive: several coordinates "
                           "need a schedule");
          return signalPassFailure();
        }
  }

  /// The table is about as many microbatches, stages and coordinates as the
  /// step.
  LogicalResult check(DoOrderOp order, ScheduleOp schedule, StepOp step) {
    int64_t microbatches = step.getMicrobatches().value_or(1);
    if (int64_t(schedule.getMicrobatches()) != microbatches)
      return order.emitOpError("expected a schedule of ")
             << microbatches << " microbatches, got "
             << schedule.getMicrobatches();
    int64_t stages = 0;
    for (auto chunk : getOperation().getOps<ChunkOp>())
      stages = std::max<int64_t>(stages, chunk.getStage().value_or(0) + 1);
    if (int64_t(schedule.getStages()) != stages)
      return order.emitOpError("expected a schedule of ")
             << stages << " stages, got " << schedule.getStages();
    int64_t rows = findMesh(getOperation()).getNumCoordinates();
    if (int64_t(schedule.getRows().size()) != rows)
      return order.emitOpError("expected a row for each of ")
             << rows << " coordinates, got " << schedule.getRows().size();
    return checkPasses(order, schedule);
  }

  /// A microbatch goes backward through a stage at once or in two halves.
  static LogicalResult checkPasses(DoOrderOp order, ScheduleOp schedule) {
    SmallVector<Cell> cells = readCells(schedule);
    llvm::DenseSet<Cell> known(cells.begin(), cells.end());
    for (const Cell &cell : cells) {
      auto has = [&](piper::Pass pass) {
        return known.contains(Cell{cell.stage, pass, cell.microbatch});
      };
      bool input = has(piper::Pass::I), weight = has(piper::Pass::W);
      if (input == weight && !(input && has(piper::Pass::B)))
        continue;
      auto text = [&](piper::Pass pass) {
        return Cell{cell.stage, pass, cell.microbatch}.str();
      };
      return order.emitOpError("expected a schedule with either ")
             << text(piper::Pass::B) << " or both " << text(piper::Pass::I)
             << " and " << text(piper::Pass::W);
    }
    return success();
  }
};

} // namespace
} // namespace piper
