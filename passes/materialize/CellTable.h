//===- CellTable.h - The cells of a cluster, and the rows of its schedule
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef PIPER_PASSES_MATERIALIZE_CELLTABLE_H
#define PIPER_PASSES_MATERIALIZE_CELLTABLE_H

#include "passes/materialize/OrderedBlock.h"

#include "dialect/Cells.h"

namespace piper {

/// Which ops make up which cell, and in which order coordinates run cells.
/// Cells have dense numbers; ops have those of a graph.
class CellTable {
public:
  static constexpr unsigned none = IssueOrder::noCell;

  /// Also notes in `order` the cell of each op and the coordinate of each cell.
  CellTable(ClusterOp cluster, mlir::SymbolTable &symbols, const OpGraph &graph,
            IssueOrder &order)
      : cluster(cluster), symbols(symbols), graph(graph), order(order) {
    order.cellOf.assign(graph.size(), none);
  }

  /// Notes the cell of an op, if it belongs to one.
  mlir::LogicalResult add(unsigned number);

  /// Reads the rows of the schedule once all ops are added; without a schedule
  /// all passes of a microbatch are run in turn.
  mlir::LogicalResult readRows();

  /// The op if it is a run, or the run whose results it exchanges; or null.
  static RunOp getRun(mlir::Operation *op);

  /// The cell that a run belongs to, and what its pieces exchange; none for a
  /// run of pass P.
  std::optional<Cell> getCell(mlir::Operation *op);

  /// How many cells of a row make up the pair that starts there: two, or three
  /// where input and weight gradients of the second come one after the other.
  size_t countPaired(llvm::ArrayRef<unsigned> row, size_t at) const;

  /// Whether there is a backward pass: an evaluation has none.
  bool trains() const;

  std::vector<llvm::SmallVector<unsigned, 4>> runs; // and exchanges, by cell
  std::vector<llvm::SmallVector<unsigned>> rows;    // cells
  std::vector<bool> isPaired; // by cell: may overlap with the next in its row

private:
  mlir::LogicalResult readRow(ScheduleOp schedule, size_t at,
                              mlir::ArrayRef<Cell> row);
  void addRun(unsigned op, const Cell &cell);
  unsigned find(const Cell &cell) const;
  bool isIdle(const Cell &cell) const;

  ClusterOp cluster;
  mlir::SymbolTable &symbols;
  const OpGraph &graph;
  IssueOrder &order;
  llvm::DenseMap<mlir::Attribute, ChunkOp> chunks;
  std::vector<Cell> cells;
  /// The numbers of the cells of a stage and pass, by microbatch.
  llvm::DenseMap<std::pair<int64_t, Pass>, std::vector<unsigned>> numbers;
};

} // namespace piper

#endif // PIPER_PASSES_MATERIALIZE_CELLTABLE_H
