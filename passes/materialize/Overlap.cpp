//===- Overlap.cpp - In which order the pieces of two cells are issued
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

// The default policy takes turns, a piece of the backward cell first, since
// others wait for it. What a piece exchanges is issued right behind it. The
// host waits for counts when F1 is queued, which these do not need, and before
// it queues the next piece of the other cell: the buffer for rows is taken
// behind what is queued by then, and would else be there only after that piece.
//
//   compute   B          F        F1         B1          F2         B2 F3
//   exchange  B.dispatch F.counts F.dispatch B.collect   F.collect
//             beside F F1         beside B1  beside F2   beside B2
//
// Where the schedule takes a backward pass in halves, I and then W, nobody
// waits for pieces of W: they go behind what the piece of I before them
// exchanges, in front of the wait if there is one. Each comes behind the other
// half of its chunk, even if all that it uses is there before: gradients of
// inputs are what others wait for.
//
//   compute   I          F        F1 W       I1          W1 F2  ...
//   exchange  I.dispatch F.counts F.dispatch I.collect
//
// This is the overlap of DualPipe (DeepSeek-AI, "DeepSeek-V3 technical report",
// 2024, arXiv:2412.19437, figure 4).

#include "passes/materialize/Overlap.h"

#include "passes/support/ChunkBuilder.h"
#include "passes/support/Facts.h"

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
  return isExchange(op) ? findRunOfCell(op) : cast<RunOp>(op);
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

/// Whether an op uses what some of these make.
bool usesAny(Operation *op, const llvm::DenseSet<Operation *> &makers) {
  return llvm::any_of(op->getOperands(), [&](Value operand) {
    return makers.contains(operand.getDefiningOp());
  });
}

/// By runs of W, those of the other halves of their chunks.
using Halves = llvm::DenseMap<Operation *, Operation *>;

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

/// Runs and what is exchanged behind them. What is computed while the host
/// waits for counts is in the segment of these.
using Segment = Pieces;

/// Whether the host waits for counts in front of a piece.
bool waits(const Piece &piece) { return isa<HostWaitOp>(piece.ops.front()); }

/// Whether the host waits in front of an exchange for what a segment makes.
bool waitsFor(const Piece &exchange, const Segment &segment) {
  llvm::DenseSet<Operation *> makers;
  for (const Piece &piece : segment)
    makers.insert_range(piece.ops);
  return waits(exchange) && usesAny(exchange.ops.front(), makers);
}

SmallVector<Segment> getSegments(ArrayRef<Operation *> ops) {
  SmallVector<Segment> segments(1);
  Pieces pieces = getPieces(ops);
  for (auto [index, piece] : llvm::enumerate(pieces)) {
    const Segment &last = segments.back();
    if (!piece.isExchanged() && !last.empty() && last.back().isExchanged()) {
      auto next = std::find_if(pieces.begin() + index, pieces.end(),
                               std::mem_fn(&Piece::isExchanged));
      if (next == pieces.end() || !waitsFor(*next, last))
        segments.emplace_back();
    }
    segments.back().push_back(piece);
  }
  return segments;
}

/// Issues pieces by the default policy.
class PolicyMerger {
public:
  PolicyMerger(const Ops &forward, const Ops &backward, const Ops &weights,
               const Halves &halves)
      : halves(halves), first(getSegments(backward)),
        second(getSegments(forward)), deferred(getPieces(weights)) {
    for (const Ops *ops : {&backward, &weights})
      pending.insert_range(*ops);
  }

  Ops run() {
    for (size_t i = 0; i < std::max(first.size(), second.size()); ++i) {
      if (i < first.size())
        emit(first[i]);
      if (i >= second.size() || !llvm::any_of(second[i], waits))
        emitDeferred();
      if (i < second.size())
        emit(second[i]);
    }
    assert(deferred.empty() && "there is all behind the last backward segment");
    return std::move(merged);
  }

private:
  void emit(const Segment &segment) {
    for (const Piece &piece : segment) {
      if (waits(piece))
        emitDeferred();
      emit(piece);
    }
  }

  void emit(const Piece &piece) {
    for (Operation *op : piece.ops)
      pending.erase(op);
    llvm::append_range(merged, piece.ops);
  }

  /// Emits the gradients of weights for which all is there.
  void emitDeferred() {
    llvm::erase_if(deferred, [&](const Piece &piece) {
      Operation *op = piece.ops.front();
      if (usesAny(op, pending) || pending.contains(halves.lookup(op)))
        return false;
      emit(piece);
      return true;
    });
  }

  const Halves &halves;
  SmallVector<Segment> first, second; // of the backward and the forward cell
  Pieces deferred;
  llvm::DenseSet<Operation *> pending; // what deferred pieces may use
  Ops merged;
};

//===----------------------------------------------------------------------===//
// Templates
//===----------------------------------------------------------------------===//

/// Interleaves the pieces of groups as a directive says. A name that stands
/// more than once is that of the pieces of this name in data order.
class TemplateMerger {
public:
  TemplateMerger(DoOverlapOp overlap, ArrayRef<const Group *> groups,
                 const Halves &halves)
      : overlap(overlap), groups(groups), halves(halves) {
    for (const Group *group : groups)
      for (const Piece &piece : group->pieces) {
        names.push_back(piece.name);
        byName[piece.name].push_back(&piece);
        pending.insert_range(piece.ops);
      }
  }

  LogicalResult run(Ops &merged) {
    SmallVector<StringRef> left = names;
    llvm::StringMap<size_t> taken;
    for (auto name : overlap.getOrder().getAsRange<StringAttr>()) {
      auto found = llvm::find(left, name.getValue());
      if (found == left.end())
        return emitError() << ", which are " << llvm::join(names, ", ")
                           << ", got " << name
                           << (byName.contains(name) ? " once more" : "");
      left.erase(found);
      for (Operation *op : byName[name][taken[name]++]->ops) {
        if (usesAny(op, pending))
          return overlap.emitOpError("expected ")
                 << name << " behind what it uses, which comes later";
        if (pending.contains(halves.lookup(op)))
          return overlap.emitOpError("expected ")
                 << name
                 << " behind the gradients of inputs of its chunk, which come "
                    "later";
        pending.erase(op);
        merged.push_back(op);
      }
    }
    if (left.empty())
      return success();
    return emitError() << ", got no " << llvm::join(left, ", ");
  }

private:
  InFlightDiagnostic emitError() {
    return overlap.emitOpError("expected each piece of chunks '")
           << groups.back()->chunk << "' and '" << groups.front()->chunk
           << "' once";
  }

  DoOverlapOp overlap;
  ArrayRef<const Group *> groups; // that of the forward cell is last
  const Halves &halves;
  SmallVector<StringRef> names;
  llvm::StringMap<SmallVector<const Piece *>> byName;
  llvm::DenseSet<Operation *> pending;
};

void emitAll(const Group &group, Ops &merged) {
  for (const Piece &piece : group.pieces)
    llvm::append_range(merged, piece.ops);
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
    emitAll(group, merged);
  }
  return nullptr;
}

/// Whether a template says where gradients of weights are computed.
bool namesWeights(DoOverlapOp overlap) {
  return llvm::any_of(
      overlap.getOrder().getAsRange<StringAttr>(),
      [](StringAttr name) { return name.getValue().starts_with("W"); });
}

/// Pairs the selected chunks of both cells in the order in which they run: in
/// the backward cell the last one first. Gradients of weights are computed at
/// the end where the template does not say when.
FailureOr<Ops> mergeChunks(DoOverlapOp overlap, ArrayRef<Group> forward,
                           ArrayRef<Group> backward, ArrayRef<Group> weights,
                           const Halves &halves) {
  Ops merged;
  llvm::DenseSet<const Group *> placed;
  while (!forward.empty() || !backward.empty()) {
    const Group *second = emitUntil(backward, overlap.getSelect(), merged);
    const Group *first = emitUntil(forward, overlap.getSelect(), merged);
    if (!first || !second) {
      if (first || second)
        emitAll(first ? *first : *second, merged);
      continue;
    }
    SmallVector<const Group *> groups = {second};
    if (namesWeights(overlap))
      for (const Group &group : weights)
        if (group.chunk == second->chunk) {
          groups.push_back(&group);
          placed.insert(&group);
        }
    groups.push_back(first);
    if (failed(TemplateMerger(overlap, groups, halves).run(merged)))
      return failure();
  }
  for (const Group &group : weights)
    if (!placed.contains(&group))
      emitAll(group, merged);
  return merged;
}

FlatSymbolRefAttr getReference(ChunkOp chunk) {
  return FlatSymbolRefAttr::get(chunk.getSymNameAttr());
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
  llvm::DenseMap<Attribute, Attribute> byForward;
  for (auto chunk : module.getOps<ChunkOp>())
    if (chunk.getPass() == Pass::I)
      byForward[chunk.getOfAttr()] = getReference(chunk);
  for (auto chunk : module.getOps<ChunkOp>())
    if (chunk.getPass() == Pass::W)
      inputHalves[getReference(chunk)] = byForward.lookup(chunk.getOfAttr());
}

FailureOr<Ops> Overlap::merge(const Ops &forward, const Ops &backward,
                              const Ops &weights) {
  llvm::DenseMap<Attribute, Operation *> byChunk;
  for (Operation *op : backward)
    if (auto run = dyn_cast<RunOp>(op))
      byChunk[run.getChunkAttr()] = op;
  Halves halves;
  for (Operation *op : weights)
    if (auto run = dyn_cast<RunOp>(op))
      halves[op] = byChunk.lookup(inputHalves.lookup(run.getChunkAttr()));
  SmallVector<Group> first = getGroups(forward), second = getGroups(backward);
  for (auto &[overlap, used] : directives)
    if (selectsAny(overlap.getSelect(), first) &&
        selectsAny(overlap.getSelect(), second)) {
      used = true;
      return mergeChunks(overlap, first, second, getGroups(weights), halves);
    }
  return PolicyMerger(forward, backward, weights, halves).run();
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
