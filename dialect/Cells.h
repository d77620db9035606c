//===- Cells.h - Cells of a schedule, in PyTorch's notation
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef PIPER_DIALECT_CELLS_H
#define PIPER_DIALECT_CELLS_H

#include "dialect/Piper.h"

namespace piper {

/// One cell of a schedule: a pass of a stage for a microbatch.
struct Cell {
  int64_t stage;
  Pass pass;
  int64_t microbatch;
  bool isPaired = false; // may overlap with the cell behind it

  std::string str() const;
  bool operator==(const Cell &other) const {
    return stage == other.stage && pass == other.pass &&
           microbatch == other.microbatch;
  }
};

/// The cells of a row such as "0F0 1F2 (1F3;0B0)OVERLAP_F_B", in issue order,
/// or nothing, with the reason. Each word is matched whole.
std::optional<llvm::SmallVector<Cell>> parseCells(llvm::StringRef row,
                                                  std::string &reason);

/// All cells of a verified schedule, row by row.
llvm::SmallVector<Cell> readCells(ScheduleOp schedule);

} // namespace piper

template <> struct llvm::DenseMapInfo<piper::Cell> {
  using Key = llvm::DenseMapInfo<std::tuple<int64_t, int64_t, int64_t>>;
  static std::tuple<int64_t, int64_t, int64_t> key(const piper::Cell &cell) {
    return {cell.stage, int64_t(cell.pass), cell.microbatch};
  }
  static piper::Cell getEmptyKey() { return {-1, piper::Pass::F, 0}; }
  static piper::Cell getTombstoneKey() { return {-2, piper::Pass::F, 0}; }
  static unsigned getHashValue(const piper::Cell &cell) {
    return Key::getHashValue(key(cell));
  }
  static bool isEqual(const piper::Cell &a, const piper::Cell &b) {
    return a == b;
  }
};

#endif // PIPER_DIALECT_CELLS_H
