//===- RowPositions.cpp - Rows of experts, of parts of the sequence
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

// A rank sorts rows of its own positions by expert. So rows are no part of what
// the whole would be sorted to, but each stands for a token that the rank has,
// and goes through its expert by itself:
//
//   tokens     a b | c d          two ranks have two positions each
//   rows       b a | d c          a part, in an order of the rank's own
//   counts     1 1 | 0 2          terms of how many rows an expert gets
//   weights                       the same for all rows; terms of gradients
//
// Rules of these ops name dims alike: `t` is that of tokens, `n` and `m` those
// of rows, `r e` that of counts, and `e` alone that of experts' weights.

#include "passes/support/RowPositions.h"

#include "dialect/Rules.h"

using namespace mlir;

namespace piper {

bool isExpertsOp(TorchOp op) {
  return op.getOpName().starts_with("piper.moe_");
}

bool isOfRows(TorchOp op, StringRef factor) {
  return isExpertsOp(op) && (factor == "m" || factor == "e" || factor == "r");
}

std::optional<SmallVector<AxisKind>> inferRows(TorchOp op, const Rule &rule,
                                               ArrayRef<AxisKind> operands) {
  std::optional<int64_t> joined; // of the tokens
  auto agree = [&](int64_t found) {
    bool isFirst = !joined;
    joined = joined.value_or(found);
    return !isRows(found) && (isFirst || *joined == found);
  };
  for (auto [names, held] : llvm::zip(rule.operands, operands)) {
    StringRef first = names.front();
    bool isPart = held.kind == Kind::Shard && held.dim == 0, fits;
    if (first == "t")
      fits = isPart && agree(held.joined);
    else if (first == "n" || first == "m")
      fits = isPart && agree(toRows(held.joined));
    else
      fits = held.kind == (first == "r" ? Kind::Partial : Kind::Replicated);
    if (!fits)
      return std::nullopt;
  }
  SmallVector<AxisKind> results;
  for (const Rule::Dims &names : getResultDims(op, rule)) {
    StringRef first = names.front();
    if (first == "r" || first == "e")
      results.push_back({Kind::Partial});
    else
      results.push_back(
          {Kind::Shard, 0, nullptr, first == "t" ? *joined : toRows(*joined)});
  }
  return results;
}

} // namespace piper
