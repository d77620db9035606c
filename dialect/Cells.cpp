//===- Cells.cpp - Cells of a schedule, in PyTorch's notation
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "dialect/Cells.h"

using namespace mlir;
using namespace piper;

std::string Cell::str() const {
  return (Twine(stage) + stringifyPass(pass) + Twine(microbatch)).str();
}

/// Parses a word such as `12F3`, the whole of it.
static std::optional<Cell> parseCell(StringRef word) {
  Cell cell;
  if (word.consumeInteger(10, cell.stage) || word.empty())
    return std::nullopt;
  std::optional<Pass> pass = symbolizePass(word.take_front());
  if (!pass || *pass == Pass::P)
    return std::nullopt;
  cell.pass = *pass;
  if (word.drop_front().getAsInteger(10, cell.microbatch) || cell.stage < 0 ||
      cell.microbatch < 0)
    return std::nullopt;
  return cell;
}

/// Appends the cells of a word: one, or the two of a pair that may overlap.
static bool parseWord(StringRef word, SmallVectorImpl<Cell> &cells) {
  SmallVector<StringRef> parts = {word};
  if (word.consume_front("(")) {
    if (!word.consume_back(")OVERLAP_F_B"))
      return false;
    parts.clear();
    word.split(parts, ';');
    if (parts.size() != 2)
      return false;
  }
  for (StringRef part : parts) {
    std::optional<Cell> cell = parseCell(part);
    if (!cell)
      return false;
    cell->isPaired = part.begin() == parts[0].begin() && parts.size() == 2;
    cells.push_back(*cell);
  }
  return true;
}

std::optional<SmallVector<Cell>> piper::parseCells(StringRef row,
                                                   std::string &reason) {
  SmallVector<Cell> cells;
  SmallVector<StringRef> words;
  row.split(words, ' ', /*MaxSplit=*/-1, /*KeepEmpty=*/false);
  for (StringRef word : words)
    if (!parseWord(word, cells)) {
      reason = ("'" + word + "'").str();
      return std::nullopt;
    }
  return cells;
}

SmallVector<Cell> piper::readCells(ScheduleOp schedule) {
  SmallVector<Cell> cells;
  std::string reason;
  for (auto row : schedule.getRows().getAsRange<StringAttr>())
    llvm::append_range(cells, *parseCells(row, reason));
  return cells;
}
