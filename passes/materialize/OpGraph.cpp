//===- OpGraph.cpp - The ops of a block as a graph over dense numbers
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "passes/materialize/OpGraph.h"

#include "llvm/ADT/DenseMap.h"
#include "llvm/Support/Compiler.h"

using namespace mlir;

namespace piper {

OpGraph::OpGraph(Block &block) {
  for (Operation &op : block)
    ops.push_back(&op);
  connect();
  invert();
}

void OpGraph::prefetch(size_t op) const {
  constexpr int line = 64;
  const char *start = reinterpret_cast<const char *>(ops[op]);
  for (int offset = -line; offset < 5 * line; offset += line)
    LLVM_PREFETCH(start + offset, /*rw=*/0, /*locality=*/3);
}

void OpGraph::prefetchResults(Operation *op) {
  constexpr int size = 16; // of a result; they lie before their op
  LLVM_PREFETCH(reinterpret_cast<const char *>(op) - size, /*rw=*/1,
                /*locality=*/3);
}

void OpGraph::connect() {
  llvm::DenseMap<Operation *, unsigned> numbers;
  numbers.reserve(ops.size());
  for (auto [number, op] : llvm::enumerate(ops))
    numbers[op] = number;
  // The op that an op was last seen to make an operand of.
  Numbers seen(ops.size(), ~0u);
  for (auto [number, op] : llvm::enumerate(ops)) {
    if (number + ahead < ops.size())
      prefetch(number + ahead);
    operandStarts.push_back(operandMakers.size());
    makerStarts.push_back(distinctMakers.size());
    for (Value operand : op->getOperands()) {
      auto result = cast<OpResult>(operand);
      unsigned maker = numbers.lookup(result.getOwner());
      operandMakers.push_back(maker);
      operandResults.push_back(result.getResultNumber());
      if (std::exchange(seen[maker], unsigned(number)) != number)
        distinctMakers.push_back(maker);
    }
  }
  operandStarts.push_back(operandMakers.size());
  makerStarts.push_back(distinctMakers.size());
}

void OpGraph::invert() {
  userStarts.assign(size() + 1, 0);
  for (unsigned maker : distinctMakers)
    ++userStarts[maker + 1];
  for (size_t op = 0; op < size(); ++op)
    userStarts[op + 1] += userStarts[op];
  distinctUsers.resize(distinctMakers.size());
  Numbers next(userStarts.begin(), userStarts.end() - 1);
  for (size_t op = 0; op < size(); ++op)
    for (unsigned maker : makers(op))
      distinctUsers[next[maker]++] = op;
}

} // namespace piper
