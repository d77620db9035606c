//===- CellTable.cpp - The cells of a cluster, and the rows of its schedule
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "passes/materialize/CellTable.h"

#include "passes/support/ChunkBuilder.h"
#include "passes/support/Coordinates.h"

using namespace mlir;

namespace piper {

//===----------------------------------------------------------------------===//
// Cells
//===----------------------------------------------------------------------===//

RunOp CellTable::getRun(Operation *op) {
  return isExchange(op) ? findRunOfCell(op) : dyn_cast<RunOp>(op);
}

std::optional<Cell> CellTable::getCell(Operation *op) {
  RunOp run = getRun(op);
  if (!run)
    return std::nullopt;
  auto [chunk, fresh] = chunks.try_emplace(run.getChunkAttr());
  if (fresh)
    chunk->second = symbols.lookup<ChunkOp>(run.getChunk());
  Pass pass = chunk->second.getPass();
  if (pass == Pass::P)
    return std::nullopt;
  return Cell{int64_t(chunk->second.getStage().value_or(0)), pass,
              int64_t(*run.getMb())};
}

LogicalResult CellTable::add(unsigned number) {
  Operation *op = graph.ops[number];
  std::optional<Cell> cell = getCell(op);
  if (!cell)
    return success();
  if (cell->microbatch >= int64_t(cluster.getMicrobatches()))
    return op->emitOpError("expected a microbatch below ")
           << cluster.getMicrobatches() << ", got " << cell->microbatch;
  addRun(number, *cell);
  return success();
}

static int64_t getHome(Operation *op) {
  return isa<CollectiveOpInterface>(op) ? getCoordinate(op->getResult(0))
                                        : *getCoordinate(op);
}

void CellTable::addRun(unsigned op, const Cell &cell) {
  auto &ofPass = numbers[{cell.stage, cell.pass}];
  if (size_t(cell.microbatch) >= ofPass.size())
    ofPass.resize(cell.microbatch + 1, none);
  unsigned &number = ofPass[cell.microbatch];
  if (number == none) {
    number = cells.size();
    cells.push_back(cell);
    runs.emplace_back();
    order.homes.push_back(getHome(graph.ops[op]));
  }
  runs[number].push_back(op);
  order.cellOf[op] = number;
}

/// The number of a cell, or none.
unsigned CellTable::find(const Cell &cell) const {
  auto found = numbers.find({cell.stage, cell.pass});
  return found == numbers.end() ||
                 size_t(cell.microbatch) >= found->second.size()
             ? none
             : found->second[cell.microbatch];
}

bool CellTable::trains() const {
  return llvm::any_of(cells,
                      [](const Cell &cell) { return cell.pass != Pass::F; });
}

size_t CellTable::countPaired(ArrayRef<unsigned> row, size_t at) const {
  if (at + 2 >= row.size())
    return 2;
  const Cell &second = cells[row[at + 1]], &third = cells[row[at + 2]];
  bool halves = second.pass == Pass::I && third.pass == Pass::W &&
                second.stage == third.stage &&
                second.microbatch == third.microbatch;
  return halves ? 3 : 2;
}

/// Whether a cell is a backward pass in which its stage does nothing: nothing
/// in it is trained or nothing before it, or the step is an evaluation.
bool CellTable::isIdle(const Cell &cell) const {
  if (cell.pass == Pass::F || numbers.contains({cell.stage, cell.pass}))
    return false;
  auto exists = [&](Pass pass) {
    return find(Cell{cell.stage, pass, cell.microbatch}) != none;
  };
  return cell.pass == Pass::B ? !exists(Pass::I) && !exists(Pass::W)
                              : !exists(Pass::B);
}

//===----------------------------------------------------------------------===//
// Rows
//===----------------------------------------------------------------------===//

LogicalResult CellTable::readRows() {
  isPaired.resize(cells.size());
  auto schedule = cluster.getOrderAttr()
                      ? symbols.lookup<ScheduleOp>(*cluster.getOrder())
                      : ScheduleOp();
  if (!schedule) {
    auto &row = rows.emplace_back();
    for (size_t cell = 0; cell < cells.size(); ++cell)
      row.push_back(cell);
    return success();
  }
  size_t scheduled = 0;
  for (auto [at, text] :
       llvm::enumerate(schedule.getRows().getAsRange<StringAttr>())) {
    std::string reason;
    if (failed(readRow(schedule, at, *parseCells(text, reason))))
      return failure();
    scheduled += rows.back().size();
  }
  if (scheduled == cells.size()) // a schedule has each cell once
    return success();
  llvm::DenseSet<unsigned> seen;
  for (auto &row : rows)
    seen.insert_range(row);
  for (auto [number, cell] : llvm::enumerate(cells))
    if (!seen.contains(number))
      return schedule.emitOpError("expected a cell ") << cell.str();
  return success();
}

LogicalResult CellTable::readRow(ScheduleOp schedule, size_t at,
                                 ArrayRef<Cell> parsed) {
  auto &row = rows.emplace_back();
  for (auto [index, cell] : llvm::enumerate(parsed)) {
    if (isIdle(cell))
      continue;
    unsigned number = find(cell);
    if (number == none)
      return schedule.emitOpError("has a cell ")
             << cell.str() << " in row " << at
             << " that the step does not have";
    if (order.homes[number] != int64_t(at))
      return schedule.emitOpError("expected cell ")
             << cell.str() << " in row " << order.homes[number]
             << ", where its stage is placed, got row " << at;
    row.push_back(number);
    isPaired[number] = cell.isPaired && !isIdle(parsed[index + 1]);
  }
  return success();
}

} // namespace piper
