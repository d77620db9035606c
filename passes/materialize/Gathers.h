//===- Gathers.h - When states that ranks share out are gathered
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef PIPER_PASSES_MATERIALIZE_GATHERS_H
#define PIPER_PASSES_MATERIALIZE_GATHERS_H

#include "passes/materialize/OrderedBlock.h"

#include "mlir/IR/SymbolTable.h"

namespace piper {

/// The gathers of buckets that a cluster's runs use: which of them one gather
/// is enough for, and before which run each is issued. A bucket is whole from
/// its gather to the last run that uses it.
class Gathers {
public:
  using Ops = llvm::SmallVector<unsigned>; // by their numbers

  /// Writes to `order` what shares a gather.
  Gathers(mlir::SymbolTable &symbols, const OpGraph &graph, IssueOrder &order)
      : symbols(symbols), graph(graph), order(order) {}

  /// Notes an op, if it gathers a bucket.
  void add(unsigned op);

  /// Notes which ops a coordinate issues in turn. Runs that follow each other
  /// and use the same bucket share the gather of the first, if the bucket's
  /// directive says so; a run that uses none is not in between.
  void addRow(llvm::ArrayRef<unsigned> ops);

  /// What is to be gathered before a run, which is issued next: what it uses,
  /// and what the runs behind it use that want it this early. That stops where
  /// it would not fit into the limit beside what is whole; and a bucket that is
  /// whole for a run before is not gathered again.
  Ops getNext(unsigned run);

private:
  struct Gather {
    mlir::Attribute bucket;
    ReplicationAttr replication;
    int64_t bytes;   // of the whole bucket
    size_t last = 0; // the use after which it is not whole any more
  };
  struct Row {
    std::vector<llvm::SmallVector<unsigned, 2>> uses; // gathers, by run
    Ops whole;         // gathers that were issued, and are in use
    int64_t bytes = 0; // of these
  };

  void release(Row &row, size_t use);
  bool isWholeBefore(const Row &row, unsigned op) const;

  mlir::SymbolTable &symbols;
  const OpGraph &graph;
  IssueOrder &order;
  llvm::DenseMap<unsigned, Gather> gathers; // by op
  std::vector<Row> rows;
  llvm::DenseMap<unsigned, std::pair<size_t, size_t>> useOf; // row, use, by run
  llvm::DenseSet<unsigned> issued;
  size_t farthest = 0; // uses that anything is gathered ahead
};

} // namespace piper

#endif // PIPER_PASSES_MATERIALIZE_GATHERS_H
