//===- Cycles.cpp - Cycles of small graphs
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "passes/materialize/Cycles.h"

#include "mlir/Support/LLVM.h"
#include "llvm/ADT/SmallVector.h"

#include <optional>
#include <vector>

using namespace mlir;

namespace piper {

/// A shortest cycle through `start`, searched breadth first.
static SmallVector<size_t>
findCycleThrough(size_t start, ArrayRef<Edge> edges,
                 ArrayRef<SmallVector<size_t>> outgoing) {
  std::vector<std::optional<size_t>> via(outgoing.size()); // led to a node
  SmallVector<size_t> queue = {start};
  for (size_t i = 0; i < queue.size() && !via[start]; ++i)
    for (size_t index : outgoing[queue[i]])
      if (std::optional<size_t> &known = via[edges[index].to]; !known) {
        known = index;
        queue.push_back(edges[index].to);
      }
  if (!via[start])
    return {};
  SmallVector<size_t> cycle = {*via[start]};
  while (edges[cycle.back()].from != start)
    cycle.push_back(*via[edges[cycle.back()].from]);
  std::reverse(cycle.begin(), cycle.end());
  return cycle;
}

SmallVector<size_t> findShortestCycle(size_t numNodes, ArrayRef<Edge> edges) {
  std::vector<SmallVector<size_t>> outgoing(numNodes);
  for (size_t index = 0; index < edges.size(); ++index)
    outgoing[edges[index].from].push_back(index);
  SmallVector<size_t> shortest;
  for (size_t start = 0; start < numNodes; ++start) {
    SmallVector<size_t> cycle = findCycleThrough(start, edges, outgoing);
    if (!cycle.empty() && (shortest.empty() || cycle.size() < shortest.size()))
      shortest = cycle;
  }
  return shortest;
}

} // namespace piper
