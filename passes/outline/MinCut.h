//===- MinCut.h - Minimum cuts of directed graphs
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef PIPER_PASSES_OUTLINE_MINCUT_H
#define PIPER_PASSES_OUTLINE_MINCUT_H

#include "llvm/ADT/BitVector.h"
#include "llvm/ADT/SmallVector.h"

#include <cstdint>
#include <limits>
#include <vector>

namespace piper {

/// A directed graph whose edges can carry so much, no more.
class FlowGraph {
public:
  /// The capacity of an edge that no minimum cut may cross.
  static constexpr int64_t unlimited = std::numeric_limits<int64_t>::max() / 2;

  /// Adds a node and returns its number; numbers count from 0.
  unsigned addNode();

  void addEdge(unsigned from, unsigned to, int64_t capacity);

  /// The nodes on the sink's side of the minimum cut that is nearest to the
  /// sink: of all minimum cuts that with the fewest nodes on this side. It is
  /// unique, so it depends on no order. Can be called once; some cut must cross
  /// no unlimited edge. Dinic's algorithm (1970).
  llvm::BitVector cutNearSink(unsigned source, unsigned sink);

private:
  /// An edge; the one with the opposite direction stands beside it.
  struct Edge {
    unsigned to;
    int64_t left; // what it can still carry
  };

  bool setLevels(unsigned source, unsigned sink);
  bool augment(unsigned source, unsigned sink);

  std::vector<Edge> edges;
  std::vector<llvm::SmallVector<unsigned, 4>> edgesOf;
  std::vector<int> levels;
  std::vector<unsigned> next; // the first edge of each node that may help
};

} // namespace piper

#endif // PIPER_PASSES_OUTLINE_MINCUT_H
