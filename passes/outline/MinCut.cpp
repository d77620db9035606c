//===- MinCut.cpp - Minimum cuts of directed graphs
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

// Edge 2i runs as it was added and 2i + 1 against it; what one carries the
// other can carry back.

#include "passes/outline/MinCut.h"

#include <algorithm>
#include <cassert>

namespace piper {

unsigned FlowGraph::addNode() {
  edgesOf.emplace_back();
  return edgesOf.size() - 1;
}

void FlowGraph::addEdge(unsigned from, unsigned to, int64_t capacity) {
  edgesOf[from].push_back(edges.size());
  edges.push_back({to, capacity});
  edgesOf[to].push_back(edges.size());
  edges.push_back({from, 0});
}

/// Numbers nodes by their distance from the source; false if the sink has none.
bool FlowGraph::setLevels(unsigned source, unsigned sink) {
  levels.assign(edgesOf.size(), -1);
  levels[source] = 0;
  std::vector<unsigned> reached = {source};
  for (size_t i = 0; i < reached.size(); ++i)
    for (unsigned edge : edgesOf[reached[i]])
      if (edges[edge].left > 0 && levels[edges[edge].to] < 0) {
        levels[edges[edge].to] = levels[reached[i]] + 1;
        reached.push_back(edges[edge].to);
      }
  return levels[sink] >= 0;
}

/// Finds a shortest path from source to sink and sends along it what it can
/// carry; false if there is none at the current levels. Edges that lead nowhere
/// are not looked at twice.
bool FlowGraph::augment(unsigned source, unsigned sink) {
  std::vector<unsigned> path;
  unsigned node = source;
  while (node != sink) {
    if (next[node] == edgesOf[node].size()) {
      if (path.empty())
        return false;
      node = edges[path.back() ^ 1].to;
      path.pop_back();
      ++next[node];
      continue;
    }
    unsigned edge = edgesOf[node][next[node]];
    if (edges[edge].left > 0 && levels[edges[edge].to] == levels[node] + 1) {
      path.push_back(edge);
      node = edges[edge].to;
    } else {
      ++next[node];
    }
  }
  int64_t amount = unlimited;
  for (unsigned edge : path)
    amount = std::min(amount, edges[edge].left);
  assert(amount < unlimited &&
         "expected a cut that crosses limited edges only");
  for (unsigned edge : path) {
    edges[edge].left -= amount;
    edges[edge ^ 1].left += amount;
  }
  return true;
}

llvm::BitVector FlowGraph::cutNearSink(unsigned source, unsigned sink) {
  while (setLevels(source, sink)) {
    next.assign(edgesOf.size(), 0);
    while (augment(source, sink)) {
    }
  }
  llvm::BitVector side(edgesOf.size());
  side.set(sink);
  std::vector<unsigned> reached = {sink};
  for (size_t i = 0; i < reached.size(); ++i)
    for (unsigned edge : edgesOf[reached[i]])
      if (edges[edge ^ 1].left > 0 && !side.test(edges[edge].to)) {
        side.set(edges[edge].to);
        reached.push_back(edges[edge].to);
      }
  return side;
}

} // namespace piper
