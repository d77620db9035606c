//===- VerifyMemory.cpp - Storages fit in memory
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

// What an allocator that serves the compute stream has handed out: a storage
// from where the host issues the instruction that makes it to where it issues
// its `free`. With one thread per stream a buffer may be taken later, never
// earlier. Storages count, not values: what is reduced or accumulated in place,
// and parts of the batch, are other names of storages that are there already.

#include "passes/lower/Frees.h"
#include "passes/verify/Verify.h"

#include "dialect/Layouts.h"
#include "llvm/ADT/DenseMap.h"
#include "llvm/ADT/DenseSet.h"
#include "llvm/ADT/SetVector.h"
#include "llvm/Support/MathExtras.h"

using namespace mlir;

namespace piper {

namespace {

/// How many storages an error lists.
constexpr size_t numListed = 5;

/// Bytes, what they are in words, and where that comes from.
struct Storage {
  uint64_t bytes;
  std::string name;
  Location loc;
};

/// Bytes of an element; less than one counts as one. Nothing for what is no
/// number.
std::optional<uint64_t> getElementBytes(Type element) {
  uint64_t parts = 1;
  if (auto complex = dyn_cast<ComplexType>(element)) {
    element = complex.getElementType();
    parts = 2;
  }
  if (isa<IndexType>(element))
    return 8;
  if (!element.isIntOrFloat())
    return std::nullopt;
  return parts * llvm::divideCeil(element.getIntOrFloatBitWidth(), 8);
}

/// Bytes of a tensor, with as many rows as the bound of its layout where dim 0
/// is dynamic. Nothing where they are not known.
std::optional<uint64_t> getBytes(Type type) {
  auto tensor = cast<RankedTensorType>(type);
  std::optional<uint64_t> bytes = getElementBytes(tensor.getElementType());
  if (!bytes)
    return std::nullopt;
  for (auto [dim, size] : llvm::enumerate(tensor.getShape())) {
    LayoutAttr layout = getLayout(type);
    if (ShapedType::isDynamic(size) && (dim != 0 || !layout))
      return std::nullopt;
    uint64_t rows = ShapedType::isDynamic(size) ? layout.getBound() : size;
    bytes = llvm::SaturatingMultiply(*bytes, rows);
  }
  return bytes;
}

/// The bytes of a tensor, or an error about `op`, which makes or holds it.
FailureOr<uint64_t> findBytes(Operation *op, Type type) {
  if (std::optional<uint64_t> bytes = getBytes(type))
    return *bytes;
  return op->emitOpError("expected a tensor of numbers whose dims are known, "
                         "dim 0 perhaps by the bound of its layout, got ")
         << type << ", whose memory is not known";
}

/// The storage that an instruction makes for a result, if it makes one. The
/// batch is there before its parts are taken.
bool makesStorage(Value value) {
  return ownsStorage(value) && !isa<InputOp>(value.getDefiningOp());
}

/// What lasts through a program, as far as symbols say it.
class Symbols {
public:
  Symbols(ModuleOp module, SymbolTable &symbols)
      : table(symbols), mesh(findMesh(module)) {
    for (auto bucket : module.getOps<BucketOp>()) {
      for (Attribute member : bucket.getMembers())
        bucketOf[member] = bucket;
      auto member = cast<FlatSymbolRefAttr>(bucket.getMembers()[0]);
      auto state = symbols.lookup<StateOp>(member.getValue());
      for (int64_t at : state.getHolders().value_or(ArrayRef<int64_t>()))
        held[at].push_back(bucket);
    }
  }

  FailureOr<std::vector<Storage>> collect(ProgramOp program) {
    storages.clear();
    if (failed(addSlots(program)) || failed(addBatch(program)))
      return failure();
    return std::move(storages);
  }

private:
  /// The slots of what the coordinate holds and of what the program names;
  /// gradients only if it writes them.
  LogicalResult addSlots(ProgramOp program) {
    llvm::SetVector<BucketOp> buckets;
    llvm::SetVector<StateOp> states;
    llvm::DenseSet<Operation *> trained;
    buckets.insert_range(held[program.getAt()]);
    for (Operation &op : program.getBlock())
      for (StringRef name : {"bucket", "symbol"}) {
        auto symbol = op.getAttrOfType<FlatSymbolRefAttr>(name);
        if (!symbol)
          continue;
        if (BucketOp bucket = findBucket(symbol)) {
          buckets.insert(bucket);
          if (isa<AccumulateOp, UpdateOp>(op))
            trained.insert(bucket);
        } else if (auto state = table.lookup<StateOp>(symbol.getValue())) {
          states.insert(state);
        }
      }
    for (BucketOp bucket : buckets)
      for (Slot slot : {Slot::Value, Slot::Compute, Slot::Grad})
        if (RankedTensorType type = bucket.getSlotType(slot))
          if (slot != Slot::Grad || trained.contains(bucket))
            if (failed(add(bucket, type, "slot " + stringifySlot(slot))))
              return failure();
    for (StateOp state : states)
      if (failed(
              add(state,
                  RankedTensorType::get(localShape(state, mesh),
                                        state.getTensorType().getElementType()),
                  "the state")))
        return failure();
    return success();
  }

  /// The bucket of this name, or that of a state of this name; or null.
  BucketOp findBucket(FlatSymbolRefAttr name) {
    auto bucket = table.lookup<BucketOp>(name.getValue());
    return bucket ? bucket : bucketOf.lookup(name);
  }

  /// The batch of the step: what is split is there for every microbatch.
  LogicalResult addBatch(ProgramOp program) {
    auto cluster = table.lookup<ClusterOp>(program.getOf());
    auto step = cluster ? table.lookup<StepOp>(cluster.getOf()) : StepOp();
    if (!step)
      return success();
    for (auto [argument, name, dim] :
         llvm::zip(step.getBlock().getArguments(),
                   step.getInputs().getAsRange<StringAttr>(), step.getDims()))
      if (failed(add(step, argument.getType(),
                     "input '" + name.getValue() + "'",
                     dim < 0 ? 1 : cluster.getMicrobatches())))
        return failure();
    return success();
  }

  /// Adds `count` tensors of one type that a symbol stands for.
  LogicalResult add(Operation *symbol, Type type, const Twine &part,
                    uint64_t count = 1) {
    FailureOr<uint64_t> bytes = findBytes(symbol, type);
    if (failed(bytes))
      return failure();
    StringRef name = SymbolTable::getSymbolName(symbol).getValue();
    storages.push_back({llvm::SaturatingMultiply(*bytes, count),
                        (part + " of @" + name).str(), symbol->getLoc()});
    return success();
  }

  SymbolTable &table;
  MeshOp mesh;
  std::map<int64_t, SmallVector<BucketOp>> held; // by coordinate
  llvm::DenseMap<Attribute, BucketOp> bucketOf;  // by member
  std::vector<Storage> storages;                 // of the program
};

/// Follows the storages of one program.
class Sweep {
public:
  Sweep(ProgramOp program, std::vector<Storage> lasting)
      : program(program), lasting(std::move(lasting)) {}

  LogicalResult run(uint64_t limit) {
    for (const Storage &storage : lasting)
      alive = llvm::SaturatingAdd(alive, storage.bytes);
    uint64_t peak = alive;
    Operation *where = nullptr;
    for (Operation &op : program.getBlock()) {
      if (failed(step(&op)))
        return failure();
      if (alive > peak) {
        peak = alive;
        where = &op;
      }
    }
    return success(peak <= limit || succeeded(report(where, peak, limit)));
  }

private:
  /// Issues an instruction.
  LogicalResult step(Operation *op) {
    if (auto free = dyn_cast<FreeOp>(op)) {
      for (Value value : free.getValues())
        if (makesStorage(value))
          alive -= *getBytes(value.getType());
      return success();
    }
    for (Value value : op->getResults()) {
      if (!makesStorage(value))
        continue;
      FailureOr<uint64_t> bytes = findBytes(op, value.getType());
      if (failed(bytes))
        return failure();
      alive = llvm::SaturatingAdd(alive, *bytes);
    }
    return success();
  }

  /// Says what is alive at the peak, once `where` is issued; null if nothing is
  /// issued yet.
  LogicalResult report(Operation *where, uint64_t peak, uint64_t limit) {
    InFlightDiagnostic error =
        where ? where->emitOpError() : emitContainerError(program);
    error << "expected @" << program.getSymName() << " to hold at most "
          << limit << " bytes at once, got " << peak << " bytes ";
    if (where)
      error << "at " << describe(where);
    else
      error << "before its first instruction";
    std::vector<Storage> storages = collect(where);
    for (const Storage &storage : ArrayRef(storages).take_front(numListed))
      error.attachNote(storage.loc)
          << storage.bytes << " bytes are " << storage.name;
    if (storages.size() > numListed) {
      uint64_t rest = 0;
      for (const Storage &storage : ArrayRef(storages).drop_front(numListed))
        rest = llvm::SaturatingAdd(rest, storage.bytes);
      error.attachNote(program.getLoc())
          << "smaller storages take " << rest << " bytes";
    }
    return failure();
  }

  /// What is alive at the peak, the largest first.
  std::vector<Storage> collect(Operation *where) {
    std::vector<Value> made;
    llvm::DenseSet<Value> released;
    if (where)
      for (Operation &op : llvm::make_range(program.getBlock().begin(),
                                            std::next(where->getIterator()))) {
        if (auto free = dyn_cast<FreeOp>(op))
          released.insert_range(free.getValues());
        llvm::copy_if(op.getResults(), std::back_inserter(made), makesStorage);
      }
    std::vector<Storage> storages = lasting;
    for (Value value : made)
      if (!released.contains(value))
        storages.push_back(
            {*getBytes(value.getType()), describe(value), value.getLoc()});
    llvm::stable_sort(storages, [](const Storage &a, const Storage &b) {
      return a.bytes > b.bytes;
    });
    return storages;
  }

  ProgramOp program;
  std::vector<Storage> lasting;
  uint64_t alive = 0;
};

} // namespace

LogicalResult verifyMemory(ModuleOp module, SymbolTable &symbols,
                           uint64_t limit) {
  Symbols lasting(module, symbols);
  for (auto program : module.getOps<ProgramOp>()) {
    FailureOr<std::vector<Storage>> storages = lasting.collect(program);
    if (failed(storages) ||
        failed(Sweep(program, std::move(*storages)).run(limit)))
      return failure();
  }
  return success();
}

} // namespace piper
