//===- Cycles.h - Cycles of small graphs
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef PIPER_PASSES_MATERIALIZE_CYCLES_H
#define PIPER_PASSES_MATERIALIZE_CYCLES_H

#include "mlir/Support/LLVM.h"

namespace piper {

/// Node `from` waits for node `to`.
struct Edge {
  size_t from, to;
};

/// A shortest cycle, as indices of edges, each of which leads to where the next
/// begins; empty if there is none. Takes nodes times edges: for small graphs.
mlir::SmallVector<size_t> findShortestCycle(size_t numNodes,
                                            mlir::ArrayRef<Edge> edges);

} // namespace piper

#endif // PIPER_PASSES_MATERIALIZE_CYCLES_H
