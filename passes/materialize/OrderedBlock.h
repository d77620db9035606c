//===- OrderedBlock.h - The block of a cluster in issue order
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef PIPER_PASSES_MATERIALIZE_ORDEREDBLOCK_H
#define PIPER_PASSES_MATERIALIZE_ORDEREDBLOCK_H

#include "passes/materialize/OpGraph.h"

#include "dialect/Piper.h"
#include "llvm/ADT/DenseMap.h"

namespace piper {

/// The order in which the ops of a cluster are issued, by their numbers.
struct IssueOrder {
  static constexpr unsigned noCell = ~0u;

  std::vector<unsigned> sequence;
  std::vector<unsigned> cellOf;              // by op, or noCell
  std::vector<int64_t> homes;                // coordinates, by cell
  std::vector<bool> contributes;             // whether an op isContribution
  llvm::DenseMap<unsigned, unsigned> shared; // ops that another stands for
};

/// Whether an op sums contributions to a gradient.
bool isContribution(mlir::Operation *op);

/// Makes the ops of a cluster anew in issue order, so that whoever walks the
/// block later walks through memory. A sum of contributions to a gradient
/// becomes an accumulation behind each of them; what ranks reduce of one is
/// added a run later, so that compute does not wait for it.
void buildOrderedBlock(ClusterOp cluster, const OpGraph &graph,
                       const IssueOrder &order);

} // namespace piper

#endif // PIPER_PASSES_MATERIALIZE_ORDEREDBLOCK_H
