//===- Overlap.cpp - In which order the pieces of two cells are issued
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

// The default policy takes turns, a piece of the backward cell first, since
// others wait for it. What a piece exchanges is issued right behind it. The
// host waits for counts before it queues the next piece: the buffer for rows is
// taken behind what is queued by then, and would else be there only after that
// piece.
//
//   compute   B          F           B1           F1          B2         F2
//   exchange  B.dispatch F.counts F.dispatch  B.collect   F.collect
//             beside F            beside B1   beside F1   beside B2
//
// This is the overlap of DualPipe (DeepSeek-AI, "DeepSeek-V3 technical report",
// 2024, arXiv:2412.19437, figure 4).

#include "passes/Overlap.h"

#include "passes/ChunkBuilder.h"
#include "passes/Facts.h"

#include "llvm/ADT/DenseSet.h"
#include "llvm/ADT/StringExtras.h"
#include "llvm/ADT/StringMap.h"

using namespace mlir;

namespace piper {

using Ops = Overlap::Ops;

namespace {

//===----------------------------------------------------------------------===//
// Pieces
//===----------------------------------------------------------------------===//

/// The run itself, or the run whose results an op exchanges.
RunOp getRun(Operation *op) {
  return isExchange(op) ? findRun(op->getOperand(0)) : cast<RunOp>(op);
}

/// `layer.0` of a run of `layer.0$F1` and of what it exchanges.
StringRef getChunk(Operation *op) {
  return getRun(op).getChunk().split('$').first;
}

/// What a template moves: a run, or an exchange with the wait for its sizes.
struct Piece {
  std::string name; // `F1`, `F.dispatch`
  Ops ops;

  bool isExchanged() const { return isExchange(ops.back()); }
};
using Pieces = SmallVector<Piece>;

/// The pieces of ops given in data order.
Pieces getPieces(ArrayRef<Operation *> ops) {
  Pieces pieces;
  Ops waits;
  for (Operation *op : ops) {
    if (isa<HostWaitOp>(op)) {
      waits.push_back(op);
      continue;
    }
    std::string name = getRun(op).getChunk().split('$').second.str();
    if (auto label = op->getAttrOfType<StringAttr>("label"))
      name = (Twine(name[0]) + "." + label.getValue().split(' ').second).str();
    Piece &piece = pieces.emplace_back();
    piece.name = name;
    if (isExchange(op))
      piece.ops = std::exchange(waits, {});
    piece.ops.push_back(op);
  }
  return pieces;
}

/// Pieces of consecutive ops of one chunk.
struct Group {
  StringRef chunk;
  Pieces pieces;
};

SmallVector<Group> getGroups(ArrayRef<Operation *> ops) {
  SmallVector<Group> groups;
  while (!ops.empty()) {
    StringRef chunk = getChunk(ops.front());
    ArrayRef<Operation *> own =
        ops.take_while([&](Operation *op) { return getChunk(op) == chunk; });
    groups.push_back({chunk, getPieces(own)});
    ops = ops.drop_front(own.size());
  }
  return groups;
}

//===----------------------------------------------------------------------===//
// The default policy
//===----------------------------------------------------------------------===//

/// Runs, and what is exchanged behind them.
struct Segment {
  Pieces runs, exchanges;
};

SmallVector<Segment> getSegments(ArrayRef<Operation *> ops) {
  SmallVector<Segment> segments(1);
  for (Piece &piece : getPieces(ops)) {
    bool exchanged = piece.isExchanged();
    if (!exchanged && !segments.back().exchanges.empty())
      segments.emplace_back();
    Segment &last = segments.back();
    (exchanged ? last.exchanges : last.runs).push_back(std::move(piece));
  }
  return segments;
}

Ops mergeByPolicy(const Ops &forward, const Ops &backward) {
  Ops merged;
  auto emit = [&](const Pieces &pieces) {
    for (const Piece &piece : pieces)
      llvm::append_range(merged, piece.ops);
  };
  SmallVector<Segment> first = getSegments(backward),
                       second = getSegments(forward);
  for (size_t i = 0; i < std::max(first.size(), second.size()); ++i)
    for (const auto *segments : {&first, &second})
      if (i < segments->size()) {
        emit((*segments)[i].runs);
        emit((*segments)[i].exchanges);
      }
  return merged;
}

//===----------------------------------------------------------------------===//
// Templates
//===----------------------------------------------------------------------===//

/// Interleaves the pieces of two chunks as a directive says.
LogicalResult mergeByTemplate(DoOverlapOp overlap, const Group &forward,
                              const Group &backward, Ops &merged) {
  llvm::StringMap<const Piece *> byName;
  SmallVector<StringRef> names;
  for (const Group *group : {&backward, &forward})
    for (const Piece &piece : group->pieces) {
      byName[piece.name] = &piece;
      names.push_back(piece.name);
    }
  llvm::DenseSet<Operation *> pending;
  for (const Group *group : {&forward, &backward})
    for (const Piece &piece : group->pieces)
      pending.insert_range(piece.ops);
  SmallVector<StringRef> left = names;
  for (auto name : overlap.getOrder().getAsRange<StringAttr>()) {
    auto found = llvm::find(left, name.getValue());
    if (found == left.end())
      return overlap.emitOpError("expected each piece of chunks '")
             << forward.chunk << "' and '" << backward.chunk
             << "' once, which are " << llvm::join(names, ", ") << ", got "
             << name << (byName.contains(name.getValue()) ? " twice" : "");
    left.erase(found);
    for (Operation *op : byName[name.getValue()]->ops) {
      for (Value operand : op->getOperands())
        if (pending.contains(operand.getDefiningOp()))
          return overlap.emitOpError("expected ")
                 << name << " behind what it uses, which comes later";
      pending.erase(op);
      merged.push_back(op);
    }
  }
  if (left.empty())
    return success();
  return overlap.emitOpError("expected each piece of chunks '")
         << forward.chunk << "' and '" << backward.chunk << "' once, got no "
         << llvm::join(left, ", ");
}

/// Emits groups up to the next one that a directive selects; returns that one,
/// or null at the end.
const Group *emitUntil(ArrayRef<Group> &groups, SelectAttr select,
                       Ops &merged) {
  while (!groups.empty()) {
    const Group &group = groups.front();
    groups = groups.drop_front();
    if (select.matchesChunk(group.chunk))
      return &group;
    for (const Piece &piece : group.pieces)
      llvm::append_range(merged, piece.ops);
  }
  return nullptr;
}

void emitAll(const Group &group, Ops &merged) {
  for (const Piece &piece : group.pieces)
    llvm::append_range(merged, piece.ops);
}

/// Pairs the selected chunks of both cells in the order in which they run: in
/// the backward cell the last one first.
FailureOr<Ops> mergeChunks(DoOverlapOp overlap, ArrayRef<Group> forward,
                           ArrayRef<Group> backward) {
  Ops merged;
  while (!forward.empty() || !backward.empty()) {
    const Group *second = emitUntil(backward, overlap.getSelect(), merged);
    const Group *first = emitUntil(forward, overlap.getSelect(), merged);
    if (first && second) {
      if (failed(mergeByTemplate(overlap, *first, *second, merged)))
        return failure();
    } else if (first || second) {
      emitAll(first ? *first : *second, merged);
    }
  }
  return merged;
}

bool selectsAny(SelectAttr select, ArrayRef<Group> groups) {
  return llvm::any_of(groups, [&](const Group &group) {
    return select.matchesChunk(group.chunk);
  });
}

} // namespace

Overlap::Overlap(ModuleOp module) {
  for (auto overlap : findDirectives<DoOverlapOp>(module))
    directives.push_back({overlap, false});
}

FailureOr<Ops> Overlap::merge(const Ops &forward, const Ops &backward) {
  SmallVector<Group> first = getGroups(forward), second = getGroups(backward);
  for (auto &[overlap, used] : directives)
    if (selectsAny(overlap.getSelect(), first) &&
        selectsAny(overlap.getSelect(), second)) {
      used = true;
      return mergeChunks(overlap, first, second);
    }
  return mergeByPolicy(forward, backward);
}

LogicalResult Overlap::checkUsed() {
  for (auto [overlap, used] : directives)
    if (!used)
      return DoOverlapOp(overlap).emitOpError(
                 "selects no chunks that may overlap: expected a pair of cells "
                 "such as (0F1;0B0)OVERLAP_F_B in the schedule and chunks in "
                 "both, between whose pieces ranks exchange values, got ")
             << DoOverlapOp(overlap).getSelect();
  return success();
}

} // namespace piper
