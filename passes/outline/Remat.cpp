//===- Remat.cpp - Compute again what a backward pass would have to keep
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

// At L1 a chunk is a tag and no op, so what directives say of chunks is
// recorded in a map by name, not as attributes.
//
// A sort of rows and its copy get one number, `again`: a chunk may sort the
// same choices several times, of which pass B repeats some in an order of its
// own, and piper-partition has to know which is which.

#include "passes/Passes.h"
#include "passes/outline/Recompute.h"
#include "passes/support/ChunkBuilder.h"
#include "passes/support/Facts.h"

#include "mlir/IR/IRMapping.h"
#include "llvm/ADT/StringExtras.h"

using namespace mlir;

namespace piper {

#define GEN_PASS_DEF_REMATPASS
#include "passes/Passes.h.inc"

namespace {

//===----------------------------------------------------------------------===//
// What directives say
//===----------------------------------------------------------------------===//

/// `layer` of `layer.0`.
StringRef tagOf(const ChunkPair &pair) {
  return pair.name.getValue().rsplit('.').first;
}

/// The policy of each chunk.
class Policies {
public:
  LogicalResult record(DoRematOp remat, ArrayRef<ChunkPair> pairs) {
    SmallVector<const ChunkPair *> selected;
    llvm::SmallSetVector<StringRef, 8> tags;
    for (const ChunkPair &pair : pairs) {
      tags.insert(tagOf(pair));
      if (remat.getSelect().matchesChunk(pair.name))
        selected.push_back(&pair);
    }
    if (pairs.empty())
      return remat.emitOpError("expected a step with a backward pass");
    if (selected.empty())
      return remat.emitOpError("selects no chunk that has a backward pass: "
                               "expected a tag of ")
             << llvm::join(tags, ", ") << ", got " << remat.getSelect();
    FailureOr<RematPolicy> policy = getPolicy(remat, selected);
    if (failed(policy))
      return failure();
    policies.push_back(std::make_unique<RematPolicy>(std::move(*policy)));
    for (const ChunkPair *pair : selected)
      if (failed(record(remat, *pair)))
        return failure();
    return success();
  }

  const RematPolicy &lookup(const ChunkPair &pair) const {
    auto found = byChunk.find(pair.name);
    return found == byChunk.end() ? standard : *found->second.policy;
  }

private:
  struct Entry {
    DoRematOp remat;
    const RematPolicy *policy;
  };

  LogicalResult record(DoRematOp remat, const ChunkPair &pair) {
    auto [found, fresh] =
        byChunk.try_emplace(pair.name, Entry{remat, policies.back().get()});
    DoRematOp other = found->second.remat;
    if (fresh || (other.getPolicyAttr() == remat.getPolicyAttr() &&
                  other.getOpsAttr() == remat.getOpsAttr()))
      return success();
    InFlightDiagnostic error = remat.emitOpError("sets the policy of chunk ");
    error << pair.name << " to " << describe(remat)
          << ", which another directive sets to " << describe(other);
    error.attachNote(other.getLoc()) << "the other directive is here";
    return failure();
  }

  static std::string describe(DoRematOp remat) {
    std::string text;
    llvm::raw_string_ostream os(text);
    os << remat.getPolicyAttr();
    if (remat.getOpsAttr())
      os << " of ops " << remat.getOpsAttr();
    return text;
  }

  /// Reads a directive; each of its globs matches an op that it may have
  /// computed again.
  static FailureOr<RematPolicy>
  getPolicy(DoRematOp remat, ArrayRef<const ChunkPair *> selected) {
    RematPolicy policy;
    policy.name = remat.getPolicy();
    if (!remat.getOps())
      return policy;
    llvm::SmallSetVector<StringRef, 16> names;
    for (const ChunkPair *pair : selected)
      for (TorchOp op : pair->forward)
        if (op.getFacts().getEffect() == Effect::Pure && !op.getRecompute() &&
            policy.allows(op))
          names.insert(op.getOpName());
    policy.ops.emplace();
    for (auto text : remat.getOpsAttr().getAsRange<StringAttr>()) {
      llvm::Expected<llvm::GlobPattern> glob =
          llvm::GlobPattern::create(text.getValue());
      if (!glob)
        return remat.emitOpError("expected a glob, got ")
               << text << ": " << llvm::toString(glob.takeError());
      if (llvm::none_of(names, [&](StringRef op) { return glob->match(op); }))
        return remat.emitOpError("names no op that it could have computed "
                                 "again: expected one of ")
               << llvm::join(names, ", ") << ", got " << text;
      policy.ops->push_back(std::move(*glob));
    }
    if (policy.ops->empty())
      return remat.emitOpError("expected at least one glob for ops");
    return policy;
  }

  RematPolicy standard;
  SmallVector<std::unique_ptr<RematPolicy>> policies;
  llvm::DenseMap<StringAttr, Entry> byChunk;
};

//===----------------------------------------------------------------------===//
// Computing again
//===----------------------------------------------------------------------===//

/// Makes pass B of a chunk compute values again, each right before its first
/// use.
class Repeater {
public:
  Repeater(const ChunkPair &pair, llvm::DenseSet<Value> values)
      : pair(pair), values(std::move(values)), builder(pair.name.getContext()),
        tag(TagAttr::get(pair.name.getContext(), pair.name, Pass::B)) {
    for (auto [index, op] : llvm::enumerate(pair.forward))
      positions[op] = index;
  }

  void run() {
    for (Operation *op : pair.backward) {
      auto torch = dyn_cast<TorchOp>(op);
      if (torch && torch.isView())
        continue; // made again by what looks through it
      builder.setInsertionPoint(op);
      repeatFor(op);
      for (OpOperand &operand : op->getOpOperands())
        operand.set(getAgain(operand.get()));
    }
  }

private:
  /// Clones what `user` needs and is not there yet, in the order of pass F.
  void repeatFor(Operation *user) {
    SmallVector<TorchOp> needed;
    auto need = [&](Operation *op) {
      for (Value operand : op->getOperands())
        if (Value root = getRoot(operand);
            values.contains(root) &&
            started.insert(root.getDefiningOp()).second)
          needed.push_back(root.getDefiningOp<TorchOp>());
    };
    need(user);
    for (size_t i = 0; i < needed.size(); ++i) // grows meanwhile
      need(needed[i]);
    llvm::sort(needed, [&](TorchOp a, TorchOp b) {
      return positions.lookup(a) < positions.lookup(b);
    });
    for (TorchOp op : needed) {
      Operation *copy = clone(op);
      for (auto [old, made] : llvm::zip(op.getResults(), copy->getResults()))
        if (values.contains(old))
          mapping.map(old, made);
    }
  }

  /// What pass B uses for a value: the value, or what it has computed again and
  /// the views that look at it.
  Value getAgain(Value value) {
    if (!values.contains(getRoot(value)))
      return value;
    if (!mapping.contains(value)) {
      auto view = value.getDefiningOp<TorchOp>();
      mapping.map(view.getResults(), clone(view)->getResults());
    }
    return mapping.lookup(value);
  }

  Operation *clone(TorchOp op) {
    SmallVector<Value> inputs;
    for (Value input : op.getInputs())
      inputs.push_back(getAgain(input));
    auto copy = cast<TorchOp>(builder.clone(*op));
    copy.getInputsMutable().assign(inputs);
    copy.setTagAttr(tag);
    if (op.getOpName() == "piper.moe_sort.default")
      for (TorchOp sort : {op, copy})
        sort->setAttr("again", builder.getIndexAttr(positions.lookup(op)));
    return copy;
  }

  const ChunkPair &pair;
  llvm::DenseSet<Value> values;
  OpBuilder builder;
  TagAttr tag;
  IRMapping mapping;
  llvm::DenseMap<Operation *, size_t> positions;
  llvm::DenseSet<Operation *> started;
};

/// Erases views that nothing looks through any more, and the model's marks,
/// which have had their effect.
void cleanUp(StepOp step) {
  for (Operation &op :
       llvm::make_early_inc_range(llvm::reverse(step.getBlock()))) {
    auto torch = dyn_cast<TorchOp>(op);
    if (!torch)
      continue;
    torch.removeRecomputeAttr();
    if (torch.isView() && isOpTriviallyDead(torch))
      torch.erase();
  }
}

class RematPass : public impl::RematPassBase<RematPass> {
  void runOnOperation() override {
    SmallVector<StepOp> steps;
    SmallVector<ChunkPair> pairs;
    llvm::DenseSet<Value> written;
    for (auto step : getOperation().getOps<StepOp>())
      if (step.getPhase() == Phase::Captured) {
        steps.push_back(step);
        findPairs(step, pairs);
        findWritten(step, written);
      }
    Policies policies;
    if (!steps.empty())
      for (auto remat : findDirectives<DoRematOp>(getOperation()))
        if (failed(policies.record(remat, pairs)))
          return signalPassFailure();
    for (const ChunkPair &pair : pairs)
      Repeater(pair, chooseRecomputed(pair, policies.lookup(pair), written))
          .run();
    for (StepOp step : steps)
      cleanUp(step);
  }
};

} // namespace
} // namespace piper
