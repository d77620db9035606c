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

std::optional<SmallVector<Cell>> piper::parseCells(StringRef row,
                                                   std::string &reason) {
  SmallVector<Cell> cells;
  SmallVector<StringRef> words;
  row.split(words, ' ', /*MaxSplit=*/-1, /*KeepEmpty=*/false);
  for (StringRef word : words) {
    StringRef inner = word;
    if (inner.consume_front("(") && !inner.consume_back(")OVERLAP_F_B")) {
      reason = ("'" + word + "'").str();
      return std::nullopt;
    }
    SmallVector<StringRef> parts;
    inner.split(parts, ';');
    for (StringRef part : parts) {
      std::optional<Cell> cell = parseCell(part);
      if (!cell) {
        reason = ("'" + word + "'").str();
        return std::nullopt;
      }
      cells.push_back(*cell);
    }
  }
  return cells;
}
