//===- FormBuckets.cpp - Group states, and pass them to chunks as flat operands
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

// States that the same chunks use, with one dtype and one set of facts, share
// buckets. A read in a chunk becomes an operand that is unpacked, a gradient
// becomes part of a packed result.

#include "passes/Passes.h"
#include "passes/materialize/Sharding.h"
#include "passes/support/Facts.h"

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
        builder(module.getContext()), exchange(builder, mesh, symbols),
        replicate(findDirective<DoReplicateOp>(module)) {}

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
    ReplicationAttr fact = first.getReplicationAttr();
    OptimizationAttr update = first.getOptimizationAttr();
    Type dtype = first.getTensorType().getElementType();
    Type master = update && update.getMaster() ? update.getMaster() : dtype;
    Type wide = fact && fact.getDtype() ? fact.getDtype() : dtype;
    SlotTypes slots = getSlotTypes(fact, mesh, getHeldLayout(first, mesh),
                                   elements, {dtype, master, wide});
    bool isTrained = !users[first].writers.empty();
    auto orNone = [](Type type) {
      return type ? TypeAttr::get(type) : TypeAttr();
    };
    builder.setInsertionPointAfter(lastState());
    auto bucket = BucketOp::create(
        builder, first.getLoc(),
        builder.getStringAttr(first.getSymName() + "$b"),
        builder.getArrayAttr(names), TypeAttr::get(slots.value),
        orNone(slots.compute), isTrained ? orNone(slots.grad) : TypeAttr());
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
    Operation *forward =
        chunk.getOf() ? symbols.lookup(*chunk.getOf()) : nullptr;
    SmallVector<int64_t> duals(
        chunk.getDualOperands().value_or(ArrayRef<int64_t>()));
    duals.resize(results.size(), ChunkOp::noDual);
    for (auto &[op, gradients] : packed) {
      auto bucket = cast<BucketOp>(op);
      SmallVector<Value> members;
      for (Attribute member : bucket.getMembers())
        members.push_back(gradients.lookup(member));
      auto dtype = cast<RankedTensorType>(members.front().getType());
      auto type = RankedTensorType::get(getWholeType(bucket, mesh).getShape(),
                                        dtype.getElementType(),
                                        getContributionLayout(bucket));
      results.push_back(PackOp::create(
          builder, members.front().getLoc(), type,
          FlatSymbolRefAttr::get(bucket.getSymNameAttr()), members));
      written[chunk].push_back(bucket);
      duals.push_back(getOperand(forward, bucket));
    }
    if (forward)
      chunk.setDuals(chunk.getDualResults().value_or(ArrayRef<int64_t>()),
                     duals);
    returned.getValuesMutable().assign(results);
    chunk.setFunctionType(builder.getFunctionType(
        block.getArgumentTypes(), ValueRange(results).getTypes()));
  }

  /// The operand of a forward chunk that is a bucket; `noDual` if it reads none
  /// of its members. Forward chunks are rewritten before backward ones.
  int64_t getOperand(Operation *forward, BucketOp bucket) {
    UnpackOp op = unpacks.lookup({forward, bucket});
    return op ? cast<BlockArgument>(op.getValue()).getArgNumber()
              : ChunkOp::noDual;
  }

  /// A contribution is a share of the sum where ranks hold the same states, and
  /// the whole of it where they hold their own.
  LayoutAttr getContributionLayout(BucketOp bucket) {
    auto member = cast<FlatSymbolRefAttr>(bucket.getMembers()[0]);
    auto state = symbols.lookup<StateOp>(member.getValue());
    return dual(getHeldLayout(state, mesh), mesh);
  }

  /// The member's value inside a chunk; the first read of a bucket adds the
  /// operand and unpacks it whole.
  Value unpack(ChunkOp chunk, ReadOp read) {
    BucketOp bucket = bucketOf[read.getSymbolAttr().getAttr()];
    UnpackOp &op = unpacks[{chunk, bucket}];
    if (!op) {
      Block &block = chunk.getBody().front();
      Value flat =
          block.addArgument(getWholeType(bucket, mesh), bucket.getLoc());
      SmallVector<Type> types;
      for (auto name : bucket.getMembers().getAsRange<FlatSymbolRefAttr>()) {
        auto state = symbols.lookup<StateOp>(name.getValue());
        LayoutAttr layout = state.getLayoutAttr();
        types.push_back(RankedTensorType::get(
            localShape(state, mesh), state.getTensorType().getElementType(),
            layout ? layout : mesh.getRankLayout(Kind::Replicated)));
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
    llvm::MapVector<Operation *, Value> values, gathered;
    for (auto run :
         llvm::make_early_inc_range(step.getBlock().getOps<RunOp>())) {
      auto chunk = symbols.lookup<ChunkOp>(run.getChunk());
      SmallVector<Value> inputs(run.getInputs());
      for (BucketOp bucket : read[chunk]) {
        Value &value = values[bucket];
        if (!value) {
          builder.setInsertionPointToStart(&step.getBlock());
          Slot slot = getReadSlot(bucket);
          value = ReadOp::create(
              builder, bucket.getLoc(), bucket.getSlotType(slot),
              FlatSymbolRefAttr::get(bucket.getSymNameAttr()),
              SlotAttr::get(builder.getContext(), slot), IntegerAttr());
        }
        builder.setInsertionPoint(run);
        inputs.push_back(gather(bucket, value, run, gathered));
      }
      builder.setInsertionPoint(run);
      auto type = cast<FunctionType>(chunk.getFunctionType());
      auto passed = RunOp::create(builder, run.getLoc(), type.getResults(),
                                  run.getChunkAttr(), inputs, IntegerAttr(),
                                  IntegerAttr(), ValueRange());
      size_t kept = run.getNumResults();
      run.replaceAllUsesWith(passed.getResults().take_front(kept));
      for (auto [index, bucket] : llvm::enumerate(written[chunk]))
        sum(bucket, passed.getResult(kept + index));
      run.erase();
    }
    step.setPhase(Phase::Bucketed);
  }

  /// A bucket whole, for one run or, if it is kept for the step, for all.
  Value gather(BucketOp bucket, Value read, RunOp run,
               llvm::MapVector<Operation *, Value> &gathered) {
    ReplicationAttr replication = getReplication(bucket, symbols);
    bool isKept = replication && replication.getGather() == "step";
    Value known = isKept ? gathered.lookup(bucket) : Value();
    if (!known)
      known = exchange.gather(withDirective(run.getLoc(), replicate), read);
    gathered[bucket] = known;
    return known;
  }

  /// Adds a contribution to the gradient of a bucket, reduced if each of them
  /// is.
  void sum(BucketOp bucket, Value contribution) {
    RankedTensorType slot = bucket.getSlotType(Slot::Grad);
    if (findAxes(slot, Kind::Partial).empty()) {
      Location loc = withDirective(contribution.getLoc(), replicate);
      Value wide = exchange.convert(loc, contribution, slot);
      contribution = exchange.reduce(loc, wide, slot);
    }
    SumOp::create(builder, contribution.getLoc(), slot,
                  FlatSymbolRefAttr::get(bucket.getSymNameAttr()), contribution,
                  IntegerAttr(), ValueRange());
  }

  ModuleOp module;
  MeshOp mesh;
  SymbolTable symbols;
  OpBuilder builder;
  Exchange exchange;
  Operation *replicate;
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
