//===- OpGraph.h - The ops of a block as a graph over dense numbers
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef PIPER_PASSES_MATERIALIZE_OPGRAPH_H
#define PIPER_PASSES_MATERIALIZE_OPGRAPH_H

#include "mlir/IR/Block.h"
#include "mlir/IR/Operation.h"

namespace piper {

/// The ops of one block, numbered in block order, and who uses what. A pass
/// over 10^6 ops reads these arrays instead of use lists and maps of pointers,
/// which leave the cache. Every operand is made in the block.
struct OpGraph {
  explicit OpGraph(mlir::Block &block);

  size_t size() const { return ops.size(); }

  /// The makers of an op's operands, an entry per operand.
  mlir::ArrayRef<unsigned> operands(unsigned op) const {
    return slice(operandMakers, operandStarts, op);
  }
  /// Which of its maker's results each operand is.
  mlir::ArrayRef<unsigned> results(unsigned op) const {
    return slice(operandResults, operandStarts, op);
  }
  /// The makers of an op's operands, each once.
  mlir::ArrayRef<unsigned> makers(unsigned op) const {
    return slice(distinctMakers, makerStarts, op);
  }
  /// The ops that use an op's results, each once, in block order.
  mlir::ArrayRef<unsigned> users(unsigned op) const {
    return slice(distinctUsers, userStarts, op);
  }

  /// How many ops ahead of its use the memory of an op is worth fetching.
  static constexpr size_t ahead = 12;

  /// Fetches the memory of an op that is read soon: of 10^5 ops, neighbours in
  /// the order of a walk lie far apart.
  void prefetch(size_t op) const;

  /// Fetches the memory of results that get a use soon.
  static void prefetchResults(mlir::Operation *op);

  std::vector<mlir::Operation *> ops;

private:
  using Numbers = std::vector<unsigned>;

  void connect();
  void invert();

  static mlir::ArrayRef<unsigned> slice(const Numbers &numbers,
                                        const Numbers &starts, unsigned op) {
    return mlir::ArrayRef(numbers).slice(starts[op],
                                         starts[op + 1] - starts[op]);
  }

  Numbers operandMakers, operandResults, operandStarts;
  Numbers distinctMakers, makerStarts;
  Numbers distinctUsers, userStarts;
};

} // namespace piper

#endif // PIPER_PASSES_MATERIALIZE_OPGRAPH_H
