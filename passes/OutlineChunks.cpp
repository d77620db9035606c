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
// ops are in the first piece in which all that they use is there. The exchange
// itself is an op of the step.

#include "passes/ChunkBuilder.h"
#include "passes/Cotangents.h"
#include "passes/Passes.h"

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

TagAttr getTag(Operation *op) {
  if (auto torch = dyn_cast<TorchOp>(op))
    return torch.getTagAttr();
  if (auto grad = dyn_cast<GradOp>(op))
    return grad.getTagAttr();
  return isExchange(op) ? op->getAttrOfType<TagAttr>("tag") : TagAttr();
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
  TagAttr tag = getTag(op);
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
    llvm::EquivalenceClasses<Operation *> pieces = connectPreamble();
    llvm::DenseMap<std::pair<Attribute, size_t>, size_t> byTag;
    llvm::DenseMap<Operation *, size_t> byPiece;
    for (Operation &op : step.getBlock()) {
      TagAttr tag = getTag(&op);
      if (!tag)
        continue;
      size_t next = chunks.size(), piece = findPiece(&op, tag);
      size_t index = next;
      if (tag.getPass() == Pass::P)
        index =
            byPiece.try_emplace(pieces.getLeaderValue(&op), next).first->second;
      else if (!isExchange(&op))
        index = byTag.try_emplace({tag, piece}, next).first->second;
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

  /// The number of exchanges of its chunk that an op waits for, one after the
  /// other: exchanges that go on at once count as one.
  size_t findPiece(Operation *op, TagAttr tag) {
    size_t piece = 0;
    for (Value operand : op->getOperands()) {
      Operation *maker = operand.getDefiningOp();
      if (!maker || getTag(maker) != tag)
        continue;
      bool crosses = isa<CollectiveOpInterface>(maker) && !isExchange(op);
      piece = std::max(piece, chunks[chunkOf.lookup(maker)].piece + crosses);
    }
    return piece;
  }

  /// Joins ops of pass P that use each other's results.
  llvm::EquivalenceClasses<Operation *> connectPreamble() {
    llvm::EquivalenceClasses<Operation *> pieces;
    auto isPreamble = [](Operation *op) {
      return op && getTag(op) && getTag(op).getPass() == Pass::P;
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
    Operation *last = &block.back();
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

  /// Names the forward chunk of every backward chunk, and what are duals. The
  /// pieces of a backward pass go back through those of the forward pass.
  LogicalResult linkBackward() {
    llvm::StringMap<SmallVector<const Outlined *>> forward;
    for (size_t index : order)
      if (Outlined &outlined = chunks[index]; outlined.pass == Pass::F)
        if (!outlined.exchange)
          forward[outlined.name].push_back(&outlined);
    Cotangents cotangents(step);
    llvm::StringMap<size_t> numBackward;
    for (size_t index : order) {
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
