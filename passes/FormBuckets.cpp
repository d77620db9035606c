//===- FormBuckets.cpp - Group states, and pass them to chunks as flat operands
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

// States that the same chunks use, with one dtype and one set of facts, share
// buckets. A read in a chunk becomes an operand that is unpacked, a gradient
// becomes part of a packed result.

#include "passes/Facts.h"
#include "passes/Passes.h"

#include "dialect/Layouts.h"
#include "mlir/IR/Builders.h"
#include "mlir/IR/IRMapping.h"
#include "llvm/ADT/MapVector.h"
#include "llvm/ADT/SetVector.h"

using namespace mlir;

namespace piper {

#define GEN_PASS_DEF_FORMBUCKETSPASS
#include "passes/Passes.h.inc"

namespace {

constexpr int64_t defaultBucketBytes = 25'000'000;

/// What states must share to share a bucket.
struct Users {
  llvm::SmallSetVector<StringRef, 4> readers; // chunks of any pass, by name
  llvm::SmallVector<Operation *> writers;     // chunks, in module order
  Attribute facts;                            // dtype, kind, directives
  bool operator==(const Users &other) const {
    return readers == other.readers && writers == other.writers &&
           facts == other.facts;
  }
};

class BucketFormer {
public:
  explicit BucketFormer(ModuleOp module)
      : module(module), mesh(findMesh(module)), symbols(module),
        builder(module.getContext()) {}

  LogicalResult run() {
    if (failed(findUsers()))
      return failure();
    formBuckets();
    for (auto chunk : llvm::to_vector(module.getOps<ChunkOp>()))
      rewriteChunk(chunk);
    for (auto step : module.getOps<StepOp>())
      rewriteStep(step);
    return success();
  }

private:
  LogicalResult findUsers() {
    for (auto chunk : module.getOps<ChunkOp>())
      for (Operation &op : chunk.getBody().front()) {
        if (auto read = dyn_cast<ReadOp>(op))
          users[symbols.lookup(read.getSymbol())].readers.insert(
              chunk.getSymName().split('$').first);
        if (auto grad = dyn_cast<GradOp>(op)) {
          Users &of = users[symbols.lookup(grad.getState())];
          if (llvm::is_contained(of.writers, chunk))
            return grad.emitOpError("expected one gradient of ")
                   << grad.getStateAttr() << " per chunk, got two";
          of.writers.push_back(chunk);
        }
      }
    for (auto &[op, of] : users)
      of.facts = describe(cast<StateOp>(op));
    return success();
  }

  Attribute describe(StateOp state) {
    auto orNone = [&](Attribute attribute) {
      return attribute ? attribute : builder.getUnitAttr();
    };
    return builder.getArrayAttr(
        {TypeAttr::get(state.getTensorType().getElementType()),
         builder.getBoolAttr(state.isTrainable()), state.getKindAttr(),
         orNone(state.getLayoutAttr()), orNone(state.getReplicationAttr()),
         orNone(state.getOptimizationAttr())});
  }

  /// Fills buckets in the order in which states are declared.
  void formBuckets() {
    std::vector<std::pair<Users *, SmallVector<StateOp>>> open;
    auto limit = [](StateOp state) -> int64_t {
      auto fact = state.getReplicationAttr();
      return fact ? fact.getBucket() : defaultBucketBytes;
    };
    for (auto state : module.getOps<StateOp>()) {
      auto found = users.find(state);
      if (found == users.end())
        continue;
      auto bucket = llvm::find_if(
          open, [&](auto &entry) { return *entry.first == found->second; });
      if (bucket == open.end()) {
        open.push_back({&found->second, {state}});
        continue;
      }
      bucket->second.push_back(state);
      if (getBytes(bucket->second) > limit(state)) {
        bucket->second.pop_back();
        close(bucket->second);
        bucket->second = {state};
      }
    }
    for (auto &entry : open)
      close(entry.second);
  }

  int64_t getBytes(ArrayRef<StateOp> members) {
    int64_t bytes = 0;
    for (StateOp state : members)
      bytes += getNumBytes(RankedTensorType::get(
          localShape(state, mesh), state.getTensorType().getElementType()));
    return bytes;
  }

  void close(ArrayRef<StateOp> members) {
    StateOp first = members.front();
    int64_t elements = 0;
    SmallVector<Attribute> names;
    for (StateOp state : members) {
      elements += numElements(localShape(state, mesh));
      names.push_back(FlatSymbolRefAttr::get(state.getSymNameAttr()));
    }
    Type dtype = first.getTensorType().getElementType(), wide = dtype;
    if (auto fact = first.getReplicationAttr(); fact && fact.getDtype())
      wide = fact.getDtype();
    TypeAttr grad;
    if (!users[first].writers.empty())
      grad = TypeAttr::get(RankedTensorType::get(
          elements, wide, mesh.getManualLayout(Kind::Partial)));
    auto value = RankedTensorType::get(elements, dtype,
                                       mesh.getManualLayout(Kind::Replicated));
    builder.setInsertionPointAfter(lastState());
    auto bucket = BucketOp::create(
        builder, first.getLoc(),
        builder.getStringAttr(first.getSymName() + "$b"),
        builder.getArrayAttr(names), TypeAttr::get(value), TypeAttr(), grad);
    last = bucket;
    for (StateOp state : members)
      bucketOf[state.getSymNameAttr()] = bucket;
  }

  Operation *lastState() {
    if (!last)
      for (auto state : module.getOps<StateOp>())
        last = state;
    return last;
  }

  /// Turns reads into an operand per bucket and gradients into a result.
  void rewriteChunk(ChunkOp chunk) {
    Block &block = chunk.getBody().front();
    llvm::MapVector<Operation *, llvm::DenseMap<Attribute, Value>> packed;
    for (Operation &op : llvm::make_early_inc_range(block)) {
      if (auto read = dyn_cast<ReadOp>(op)) {
        Value member = unpack(chunk, read);
        read.getResult().replaceAllUsesWith(member);
        read.erase();
      } else if (auto grad = dyn_cast<GradOp>(op)) {
        packed[bucketOf[grad.getStateAttr().getAttr()]][grad.getStateAttr()] =
            grad.getValue();
        grad.erase();
      }
    }
    auto returned = cast<ReturnOp>(block.back());
    builder.setInsertionPoint(returned);
    SmallVector<Value> results(returned.getValues());
    for (auto &[op, gradients] : packed) {
      auto bucket = cast<BucketOp>(op);
      SmallVector<Value> members;
      for (Attribute member : bucket.getMembers())
        members.push_back(gradients.lookup(member));
      auto dtype = cast<RankedTensorType>(members.front().getType());
      auto type = RankedTensorType::get(
          bucket.getSlotType(Slot::Grad).getShape(), dtype.getElementType(),
          mesh.getManualLayout(Kind::Partial));
      results.push_back(PackOp::create(
          builder, members.front().getLoc(), type,
          FlatSymbolRefAttr::get(bucket.getSymNameAttr()), members));
      written[chunk].push_back(bucket);
    }
    returned.getValuesMutable().assign(results);
    chunk.setFunctionType(builder.getFunctionType(
        block.getArgumentTypes(), ValueRange(results).getTypes()));
  }

  /// The member's value inside a chunk; the first read of a bucket adds the
  /// operand and unpacks it whole.
  Value unpack(ChunkOp chunk, ReadOp read) {
    BucketOp bucket = bucketOf[read.getSymbolAttr().getAttr()];
    UnpackOp &op = unpacks[{chunk, bucket}];
    if (!op) {
      Block &block = chunk.getBody().front();
      Value flat = block.addArgument(bucket.getValue(), bucket.getLoc());
      SmallVector<Type> types;
      for (auto name : bucket.getMembers().getAsRange<FlatSymbolRefAttr>()) {
        auto state = symbols.lookup<StateOp>(name.getValue());
        types.push_back(RankedTensorType::get(
            localShape(state, mesh), state.getTensorType().getElementType(),
            mesh.getManualLayout(Kind::Replicated)));
      }
      builder.setInsertionPointToStart(&block);
      op = UnpackOp::create(builder, read.getLoc(), types,
                            FlatSymbolRefAttr::get(bucket.getSymNameAttr()),
                            flat);
      this->read[chunk].push_back(bucket);
    }
    for (auto [index, member] : llvm::enumerate(bucket.getMembers()))
      if (member == read.getSymbolAttr())
        return op.getMembers()[index];
    llvm_unreachable("a state is a member of its bucket");
  }

  /// Passes buckets to runs, and leaves the contributions as gradients.
  void rewriteStep(StepOp step) {
    llvm::MapVector<Operation *, Value> values;
    for (auto run :
         llvm::make_early_inc_range(step.getBlock().getOps<RunOp>())) {
      auto chunk = symbols.lookup<ChunkOp>(run.getChunk());
      SmallVector<Value> inputs(run.getInputs());
      for (BucketOp bucket : read[chunk]) {
        Value &value = values[bucket];
        if (!value) {
          builder.setInsertionPointToStart(&step.getBlock());
          value = ReadOp::create(
              builder, bucket.getLoc(), bucket.getValue(),
              FlatSymbolRefAttr::get(bucket.getSymNameAttr()),
              SlotAttr::get(builder.getContext(), Slot::Value), IntegerAttr());
        }
        inputs.push_back(value);
      }
      builder.setInsertionPoint(run);
      auto type = cast<FunctionType>(chunk.getFunctionType());
      auto passed = RunOp::create(builder, run.getLoc(), type.getResults(),
                                  run.getChunkAttr(), inputs, IntegerAttr(),
                                  IntegerAttr(), ValueRange());
      size_t kept = run.getNumResults();
      run.replaceAllUsesWith(passed.getResults().take_front(kept));
      for (auto [index, bucket] : llvm::enumerate(written[chunk]))
        SumOp::create(builder, passed.getLoc(),
                      withDtype(passed.getResult(kept + index), bucket),
                      FlatSymbolRefAttr::get(bucket.getSymNameAttr()),
                      ValueRange(passed.getResult(kept + index)), IntegerAttr(),
                      ValueRange());
      run.erase();
    }
    step.setPhase(Phase::Bucketed);
  }

  /// The type of a sum of contributions: in the dtype of the gradient slot.
  Type withDtype(Value contribution, BucketOp bucket) {
    auto type = cast<RankedTensorType>(contribution.getType());
    return RankedTensorType::get(
        type.getShape(), bucket.getSlotType(Slot::Grad).getElementType(),
        type.getEncoding());
  }

  ModuleOp module;
  MeshOp mesh;
  SymbolTable symbols;
  OpBuilder builder;
  llvm::MapVector<Operation *, Users> users;
  Operation *last = nullptr;
  llvm::DenseMap<Attribute, BucketOp> bucketOf;
  llvm::DenseMap<std::pair<Operation *, Operation *>, UnpackOp> unpacks;
  llvm::DenseMap<Operation *, SmallVector<BucketOp>> read, written;
};

class FormBucketsPass : public impl::FormBucketsPassBase<FormBucketsPass> {
  void runOnOperation() override {
    if (failed(BucketFormer(getOperation()).run()))
      signalPassFailure();
  }
};

} // namespace
} // namespace piper
