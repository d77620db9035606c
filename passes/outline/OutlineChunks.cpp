//===- OutlineChunks.cpp - From a captured step to chunks and kernels
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

// An op's tag says which chunk and pass it belongs to. Ops of pass P, which
// depend on inputs and buffers alone, are cut into connected pieces, so that a
// coordinate makes only the masks and tables that its chunks need. Where ranks
// exchange values within a chunk, it is cut into pieces, one behind the other:
// see Pieces. The exchange itself is an op of the step.

#include "passes/Passes.h"
#include "passes/outline/Cotangents.h"
#include "passes/outline/Pieces.h"
#include "passes/support/ChunkBuilder.h"

#include "mlir/IR/IRMapping.h"
#include "llvm/ADT/EquivalenceClasses.h"

#include <queue>

using namespace mlir;

namespace piper {

#define GEN_PASS_DEF_OUTLINECHUNKSPASS
#include "passes/Passes.h.inc"

namespace {

/// Erases torch ops that nothing needs, last first.
void eraseDeadOps(StepOp step) {
  for (Operation &op :
       llvm::make_early_inc_range(llvm::reverse(step.getBlock())))
    if (isa<TorchOp, ReadOp>(op) && isOpTriviallyDead(&op))
      op.erase();
}

/// Of a captured step the outlined one keeps what chunks do, what ranks
/// exchange between these, tangents and reports.
LogicalResult checkOp(Operation *op) {
  if (isa<ReadOp, TangentOp, OutputOp>(op))
    return success();
  if (!isa<TorchOp, GradOp, HostWaitOp, CollectiveOpInterface>(op))
    return op->emitOpError("is not expected in a step of phase captured");
  if (isa<CollectiveOpInterface>(op) && !op->hasAttr("label"))
    return op->emitOpError("expected a label in a step of phase captured: it "
                           "names what ranks exchange within a chunk");
  TagAttr tag = getChunkTag(op);
  if (!tag)
    return op->emitOpError("expected a tag: every op belongs to a chunk");
  if (isExchange(op) && tag.getPass() == Pass::P)
    return op->emitOpError("expected a tag of pass F or B, as ranks exchange "
                           "nothing in a preamble, got ")
           << tag;
  return success();
}

/// What is not in a chunk takes what chunks make; tangents may count inputs.
LogicalResult checkOperands(Operation *op) {
  if (isa<TorchOp, GradOp>(op))
    return success();
  auto output = dyn_cast<OutputOp>(op);
  for (Value operand : op->getOperands()) {
    Operation *maker = operand.getDefiningOp();
    bool isMade = maker && (isa<TorchOp>(maker) || isExchange(maker));
    bool isScale = output && operand != output.getValue() &&
                   isa_and_nonnull<TangentOp>(maker);
    if (isMade || isScale || (isa<TangentOp>(op) && !maker))
      continue;
    InFlightDiagnostic error =
        op->emitOpError("expected operands that a chunk makes, got ");
    if (maker)
      return error << "a result of '" << maker->getName() << "'";
    return error << "an input of the step";
  }
  return success();
}

/// Outlines one step.
class StepOutliner {
public:
  StepOutliner(StepOp step, KernelTable &kernels)
      : step(step), kernels(kernels), builder(step) {}

  LogicalResult run() {
    eraseDeadOps(step);
    for (Operation &op : step.getBlock())
      if (failed(checkOp(&op)) || failed(checkOperands(&op)))
        return failure();
    group();
    findResults();
    if (failed(sortChunks()))
      return failure();
    // Of a piece that is nothing but views, others make these again.
    llvm::erase_if(order, [&](size_t index) { return isEmpty(chunks[index]); });
    for (size_t index : order)
      if (!chunks[index].exchange)
        buildChunk(chunks[index], getSymbol(chunks[index]), kernels, builder);
    if (failed(linkBackward()))
      return failure();
    rebuildStep();
    return success();
  }

private:
  /// Gives every tagged op its chunk.
  void group() {
    Pieces pieces(step);
    llvm::EquivalenceClasses<Operation *> preamble = connectPreamble();
    llvm::DenseMap<Operation *, size_t> byLeader;
    for (Operation &op : step.getBlock()) {
      TagAttr tag = getChunkTag(&op);
      if (!tag)
        continue;
      size_t next = chunks.size(), piece = pieces.lookup(&op);
      size_t index = next;
      if (tag.getPass() == Pass::P)
        index = byLeader.try_emplace(preamble.getLeaderValue(&op), next)
                    .first->second;
      else if (!isExchange(&op))
        index = byPiece.try_emplace({tag, piece}, next).first->second;
      if (index == next)
        chunks.push_back({tag.getChunk().str(),
                          tag.getPass(),
                          piece,
                          {},
                          {},
                          {},
                          {},
                          nullptr});
      if (isExchange(&op))
        chunks[index].exchange = &op;
      chunks[index].ops.push_back(&op);
      chunkOf[&op] = index;
    }
  }

  /// Joins ops of pass P that use each other's results.
  llvm::EquivalenceClasses<Operation *> connectPreamble() {
    llvm::EquivalenceClasses<Operation *> pieces;
    auto isPreamble = [](Operation *op) {
      return op && getChunkTag(op) && getChunkTag(op).getPass() == Pass::P;
    };
    for (Operation &op : step.getBlock()) {
      if (!isPreamble(&op))
        continue;
      pieces.insert(&op);
      for (Value operand : op.getOperands())
        if (isPreamble(operand.getDefiningOp()))
          pieces.unionSets(&op, operand.getDefiningOp());
    }
    return pieces;
  }

  static bool isEmpty(const Outlined &chunk) {
    return chunk.results.empty() && llvm::all_of(chunk.ops, [](Operation *op) {
             auto torch = dyn_cast<TorchOp>(op);
             return torch && torch.isView();
           });
  }

  /// What an op takes of a value: a chunk takes what owns memory and rebuilds
  /// views, the step itself takes the value.
  Value getTaken(Operation *user, Value operand) {
    bool isInChunk = chunkOf.contains(user) && !isExchange(user);
    return isInChunk ? getRoot(operand) : operand;
  }

  /// A value that another chunk or the step itself uses is a result of the
  /// chunk that makes what it looks at.
  void findResults() {
    SmallVector<llvm::SetVector<Value>> results(chunks.size());
    for (Operation &op : step.getBlock()) {
      auto user = chunkOf.find(&op);
      for (Value operand : op.getOperands()) {
        Value root = getTaken(&op, operand);
        auto found = chunkOf.find(root.getDefiningOp());
        if (found == chunkOf.end() ||
            (user != chunkOf.end() && user->second == found->second))
          continue;
        results[found->second].insert(root);
      }
    }
    for (auto [chunk, values] : llvm::zip(chunks, results)) {
      chunk.results = llvm::to_vector(values);
      llvm::stable_sort(chunk.results, [](Value a, Value b) {
        Operation *first = a.getDefiningOp(), *second = b.getDefiningOp();
        if (first != second)
          return first->isBeforeInBlock(second);
        return cast<OpResult>(a).getResultNumber() <
               cast<OpResult>(b).getResultNumber();
      });
    }
  }

  /// Orders chunks by their dependences, the earliest captured first. A chunk
  /// that both feeds another and waits for it cannot run as one.
  LogicalResult sortChunks() {
    SmallVector<llvm::SmallSetVector<size_t, 4>> users(chunks.size());
    SmallVector<size_t> missing(chunks.size());
    for (auto [index, chunk] : llvm::enumerate(chunks))
      for (Operation *op : chunk.ops)
        for (Value operand : op->getOperands())
          if (auto maker = chunkOf.find(getTaken(op, operand).getDefiningOp());
              maker != chunkOf.end() && maker->second != index)
            missing[index] += users[maker->second].insert(index);
    addTangentEdges(users, missing);
    addWaitEdges(users, missing);
    std::priority_queue<size_t, std::vector<size_t>, std::greater<>> ready;
    for (size_t index = 0; index < chunks.size(); ++index)
      if (missing[index] == 0)
        ready.push(index);
    while (!ready.empty()) {
      size_t index = ready.top();
      ready.pop();
      order.push_back(index);
      for (size_t user : users[index])
        if (--missing[user] == 0)
          ready.push(user);
    }
    return order.size() == chunks.size() ? success() : reportCycle(missing);
  }

  /// What uses a tangent runs after the count that the tangent divides by.
  void addTangentEdges(MutableArrayRef<llvm::SmallSetVector<size_t, 4>> users,
                       MutableArrayRef<size_t> missing) {
    for (auto tangent : step.getBlock().getOps<TangentOp>()) {
      if (!tangent.getCount())
        continue;
      auto maker = chunkOf.find(tangent.getCount().getDefiningOp());
      if (maker == chunkOf.end())
        continue;
      for (Operation *user : tangent.getResult().getUsers())
        if (auto found = chunkOf.find(user); found != chunkOf.end())
          missing[found->second] += users[maker->second].insert(found->second);
    }
  }

  /// The piece that is issued right before a wait of the host: what the counts
  /// it waits for do not need. None if they need all.
  std::optional<size_t> findMeanwhile(const Outlined &chunk) {
    if (!isa_and_nonnull<HostWaitOp>(chunk.exchange))
      return std::nullopt;
    auto found = byPiece.find({getChunkTag(chunk.exchange), chunk.piece});
    if (found == byPiece.end())
      return std::nullopt;
    return found->second;
  }

  /// That piece comes before the wait, and behind what the host waits for.
  void addWaitEdges(MutableArrayRef<llvm::SmallSetVector<size_t, 4>> users,
                    MutableArrayRef<size_t> missing) {
    for (auto [index, chunk] : llvm::enumerate(chunks)) {
      std::optional<size_t> meanwhile = findMeanwhile(chunk);
      if (!meanwhile)
        continue;
      missing[index] += users[*meanwhile].insert(index);
      for (Value operand : chunk.exchange->getOperands()) {
        Operation *maker = operand.getDefiningOp();
        if (getChunkTag(maker) == getChunkTag(chunk.exchange))
          missing[*meanwhile] +=
              users[chunkOf.lookup(maker)].insert(*meanwhile);
      }
    }
  }

  /// An op of a stuck chunk and the op of another stuck chunk that it waits
  /// for.
  std::pair<Operation *, Operation *> findWait(size_t index,
                                               ArrayRef<size_t> missing) {
    for (Operation *op : chunks[index].ops)
      for (Value operand : op->getOperands()) {
        Operation *maker = getTaken(op, operand).getDefiningOp();
        auto found = chunkOf.find(maker);
        if (found != chunkOf.end() && found->second != index &&
            missing[found->second] != 0)
          return {op, maker};
      }
    std::optional<size_t> meanwhile = findMeanwhile(chunks[index]);
    if (meanwhile && missing[*meanwhile] != 0)
      return {chunks[index].exchange, chunks[*meanwhile].ops.front()};
    return {};
  }

  /// Follows what stuck chunks wait for: the first that comes again lies on a
  /// cycle.
  LogicalResult reportCycle(ArrayRef<size_t> missing) {
    size_t index =
        llvm::find_if(missing, [](size_t count) { return count != 0; }) -
        missing.begin();
    llvm::SmallDenseSet<size_t> seen;
    auto [op, maker] = findWait(index, missing);
    while (maker && seen.insert(index).second) {
      index = chunkOf.lookup(maker);
      std::tie(op, maker) = findWait(index, missing);
    }
    // Its pieces wait for each other without a cycle: another chunk is on it.
    for (size_t left = chunks.size(); maker && left > 0; --left) {
      size_t next = chunkOf.lookup(maker);
      if (chunks[next].name != chunks[index].name)
        break;
      index = next;
      std::tie(op, maker) = findWait(index, missing);
    }
    if (maker) {
      const Outlined &chunk = chunks[index];
      InFlightDiagnostic error =
          op->emitError("chunk '")
          << chunk.name << "' is not convex: pass " << stringifyPass(chunk.pass)
          << " needs a value of chunk '" << chunks[chunkOf.lookup(maker)].name
          << "', which in turn needs this chunk; annotate them as one";
      error.attachNote(maker->getLoc()) << "the value is made here";
      return failure();
    }
    for (auto tangent : step.getBlock().getOps<TangentOp>())
      if (Value count = tangent.getCount())
        if (auto maker = chunkOf.find(count.getDefiningOp());
            maker != chunkOf.end() && missing[maker->second] != 0)
          return tangent.emitOpError("expected a count that does not wait for "
                                     "what uses the tangent");
    llvm_unreachable("chunks wait for each other in a cycle");
  }

  /// `layer.0$F`; a preamble is named by its kernel and inputs when built, so
  /// here by its place.
  std::string getSymbol(const Outlined &outlined) {
    std::string symbol =
        outlined.name + "$" + stringifyPass(outlined.pass).str();
    if (outlined.pass == Pass::P)
      symbol += std::to_string(numPreambles++);
    else if (size_t number = numPieces[symbol]++)
      symbol += std::to_string(number);
    if (step.getSymName() != "train")
      symbol += "." + step.getSymName().str();
    return symbol;
  }

  /// Replaces the body by runs of the chunks.
  void rebuildStep() {
    OpBuilder body(step.getContext());
    Block &block = step.getBlock();
    body.setInsertionPointToEnd(&block);
    IRMapping mapping;
    auto lookup = [&](Value value) { return mapping.lookupOrDefault(value); };
    llvm::DenseSet<Operation *> done;
    auto emitTangents = [&](Value value) {
      auto tangent = value.getDefiningOp<TangentOp>();
      if (tangent && done.insert(tangent).second)
        body.clone(*tangent, mapping)->removeAttr("cotangents");
    };
    Operation *last = block.empty() ? nullptr : &block.back();
    for (size_t index : order) {
      Outlined &outlined = chunks[index];
      for (Value operand : outlined.operands)
        emitTangents(operand);
      if (outlined.exchange) {
        body.clone(*outlined.exchange, mapping)->removeAttr("tag");
        continue;
      }
      SmallVector<Value> inputs =
          llvm::map_to_vector(outlined.operands, lookup);
      auto type = cast<FunctionType>(outlined.chunk.getFunctionType());
      auto run =
          RunOp::create(body, outlined.chunk.getLoc(), type.getResults(),
                        FlatSymbolRefAttr::get(outlined.chunk.getSymNameAttr()),
                        inputs, IntegerAttr(), IntegerAttr(), ValueRange());
      mapping.map(outlined.results, run.getResults());
    }
    for (auto output : llvm::make_early_inc_range(block.getOps<OutputOp>())) {
      if (output->isBeforeInBlock(last) || output == last) {
        if (output.getScale())
          emitTangents(output.getScale());
        body.clone(*output, mapping);
      }
    }
    SmallVector<Operation *> old;
    for (Operation &op : block) {
      old.push_back(&op);
      if (&op == last)
        break;
    }
    for (Operation *op : llvm::reverse(old))
      op->erase();
    step.setPhase(Phase::Outlined);
  }

  /// The pieces that are cut off because the host waits. A forward pass is cut
  /// in two, what leads to counts and what is computed meanwhile, of which the
  /// smaller one counts as cut off; a backward pass that does not wait is not
  /// cut. One that exchanges counts again begins with what leads to them.
  llvm::DenseSet<size_t> findCutOff() {
    llvm::DenseSet<size_t> found;
    for (const Outlined &chunk : chunks) {
      std::optional<size_t> meanwhile = findMeanwhile(chunk);
      if (!meanwhile)
        continue;
      auto before =
          byPiece.find({getChunkTag(chunk.exchange), chunk.piece - 1});
      bool isFirst =
          before != byPiece.end() &&
          (chunk.pass == Pass::B ||
           chunks[before->second].ops.size() < chunks[*meanwhile].ops.size());
      if (isFirst || chunk.pass == Pass::F)
        found.insert(isFirst ? before->second : *meanwhile);
    }
    return found;
  }

  /// Names the forward chunk of every backward chunk, and what are duals. The
  /// pieces of a backward pass go back through those of the forward pass, first
  /// through those that are in both.
  LogicalResult linkBackward() {
    llvm::DenseSet<size_t> cutOff = findCutOff();
    SmallVector<size_t> sorted(order);
    std::stable_partition(sorted.begin(), sorted.end(), [&](size_t index) {
      return cutOff.contains(index) == (chunks[index].pass == Pass::F);
    });
    llvm::StringMap<SmallVector<const Outlined *>> forward;
    for (size_t index : sorted)
      if (Outlined &outlined = chunks[index]; outlined.pass == Pass::F)
        if (!outlined.exchange)
          forward[outlined.name].push_back(&outlined);
    Cotangents cotangents(step);
    llvm::StringMap<size_t> numBackward;
    for (size_t index : sorted) {
      Outlined &outlined = chunks[index];
      if (outlined.pass != Pass::B || outlined.exchange)
        continue;
      ArrayRef<const Outlined *> pieces = forward[outlined.name];
      if (pieces.empty())
        return outlined.chunk.emitOpError("expected a forward chunk '")
               << outlined.name << "' for its backward";
      size_t back = std::min(numBackward[outlined.name]++, pieces.size() - 1);
      const Outlined &of = *pieces[pieces.size() - 1 - back];
      ChunkOp whole = of.chunk;
      outlined.chunk.setOfAttr(FlatSymbolRefAttr::get(whole.getSymNameAttr()));
      cotangents.writeDuals(outlined, of);
    }
    return success();
  }

  StepOp step;
  KernelTable &kernels;
  OpBuilder builder;
  std::vector<Outlined> chunks;
  llvm::DenseMap<Operation *, size_t> chunkOf;
  llvm::DenseMap<std::pair<Attribute, size_t>, size_t> byPiece; // and tag
  SmallVector<size_t> order;
  llvm::StringMap<size_t> numPieces; // by name and pass
  size_t numPreambles = 0;
};

class OutlineChunksPass
    : public impl::OutlineChunksPassBase<OutlineChunksPass> {
  void runOnOperation() override {
    KernelTable kernels(getOperation());
    for (auto step :
         llvm::make_early_inc_range(getOperation().getOps<StepOp>()))
      if (step.getPhase() == Phase::Captured &&
          failed(StepOutliner(step, kernels).run()))
        return signalPassFailure();
    OpBuilder builder = OpBuilder::atBlockBegin(getOperation().getBody());
    if (!getOperation().lookupSymbol("compute"))
      StreamOp::create(builder, getOperation().getLoc(), "compute",
                       IntegerAttr(), IntegerAttr());
  }
};

} // namespace
} // namespace piper
