//===- VerifyDerived.cpp - What is derived from a value is never stale
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

// A slot `compute` holds what the value was when the slot was written. An
// update changes the value, so from there to the next write the slot is stale,
// and so is, for good, what was read or gathered from it or from the shards of
// the value.

#include "passes/support/Coordinates.h"
#include "passes/verify/Verify.h"

#include "llvm/ADT/DenseMap.h"

using namespace mlir;

namespace piper {

DerivedBuckets findDerivedBuckets(ModuleOp module) {
  DerivedBuckets derived;
  for (auto bucket : module.getOps<BucketOp>())
    if (bucket.getCompute() || !bucket.getShardAxes().empty())
      derived[FlatSymbolRefAttr::get(bucket.getSymNameAttr())] = bucket;
  return derived;
}

namespace {

/// A bucket at a coordinate.
using Place = std::pair<Attribute, int64_t>;

/// The operand that a value is the same as, up to dtype and layout; or null.
Value getSame(OpResult value) {
  Operation *op = value.getOwner();
  if (auto gather = dyn_cast<AllGatherOp>(op)) // an event comes last
    return value.getResultNumber() < gather.getInputs().size()
               ? gather.getInputs()[value.getResultNumber()]
               : Value();
  return isa<ConvertOp, SliceOp>(op) ? op->getOperand(0) : Value();
}

class DerivedVerifier {
public:
  /// In a cluster that is not ordered yet, only data say what comes first.
  DerivedVerifier(Operation *container, const DerivedBuckets &derived,
                  bool ordered)
      : container(container), derived(derived), ordered(ordered) {}

  LogicalResult run() {
    Block &block = container->getRegion(0).front();
    if (!ordered)
      for (auto update : block.getOps<UpdateOp>())
        note(update);
    for (Operation &op : block)
      if (failed(step(&op)))
        return failure();
    for (auto &[place, update] : updates)
      if (BucketOp(derived.lookup(place.first)).getCompute() &&
          written.lookup(place) != update)
        return report(place, update);
    return success();
  }

private:
  LogicalResult step(Operation *op) {
    auto write = dyn_cast<WriteOp>(op);
    if (write &&
        (write.getSlot() != Slot::Compute || !isDerived(write.getSymbolAttr())))
      write = {};
    if (ordered && !write && failed(checkUses(op)))
      return failure();
    for (OpResult value : op->getResults())
      if (Value same = getSame(value))
        if (Value source = sources.lookup(same))
          sources[value] = source;
    if (auto update = dyn_cast<UpdateOp>(op))
      note(update);
    if (auto read = dyn_cast<ReadOp>(op))
      note(read);
    return write ? check(write) : success();
  }

  bool isDerived(Attribute bucket) const { return derived.contains(bucket); }

  Place getPlace(Operation *op, Attribute bucket) const {
    return {bucket, getCoordinate(op).value_or(0)}; // a program has but one
  }

  void note(UpdateOp update) {
    if (!isDerived(update.getBucketAttr()))
      return;
    updates[getPlace(update, update.getBucketAttr())] = update;
    sources[update.getResult()] = update.getResult();
  }

  /// What is read from the value is as new as the last update, what is read
  /// from the slot as the last write.
  void note(ReadOp read) {
    if (!isDerived(read.getSymbolAttr()))
      return;
    Place place = getPlace(read, read.getSymbolAttr());
    sources[read.getResult()] = read.getResult();
    readBehind[read] = read.getSlot() == Slot::Compute ? written.lookup(place)
                                                       : updates.lookup(place);
  }

  /// No operand is older than the last update. To free it is no use.
  LogicalResult checkUses(Operation *op) {
    if (isa<FreeOp>(op))
      return success();
    for (OpOperand &operand : op->getOpOperands()) {
      Value source = sources.lookup(operand.get());
      auto read = source ? source.getDefiningOp<ReadOp>() : ReadOp();
      if (!read || read.getSlot() == Slot::Grad)
        continue;
      UpdateOp update = updates.lookup(getPlace(read, read.getSymbolAttr()));
      if (readBehind.lookup(read) == update)
        continue;
      InFlightDiagnostic error =
          op->emitOpError("expected slot ")
          << stringifySlot(*read.getSlot()) << " of " << read.getSymbolAttr()
          << " as it is behind the last update, got operand "
          << operand.getOperandNumber() << " from before";
      error.attachNote(read.getLoc()) << "it is read here";
      error.attachNote(update.getLoc()) << "the value is updated here";
      return failure();
    }
    return success();
  }

  /// What is written is the value as it is by then.
  LogicalResult check(WriteOp write) {
    Place place = getPlace(write, write.getSymbolAttr());
    UpdateOp update = updates.lookup(place);
    Value source = sources.lookup(write.getValue());
    if (update ? source == update.getResult()
               : isValue(source, write.getSymbolAttr())) {
      written[place] = update;
      return success();
    }
    InFlightDiagnostic error =
        write.emitOpError("expected what ")
        << (update ? "the last update" : "slot value") << " of " << place.first
        << " gives, perhaps converted, gathered or sliced, got another value";
    if (update)
      error.attachNote(update.getLoc()) << "the value is updated here";
    return failure();
  }

  /// Whether a value was read from slot `value` of a bucket.
  static bool isValue(Value source, Attribute bucket) {
    auto read = source ? source.getDefiningOp<ReadOp>() : ReadOp();
    return read && read.getSymbolAttr() == bucket &&
           read.getSlot() == Slot::Value;
  }

  LogicalResult report(const Place &place, UpdateOp update) {
    InFlightDiagnostic error = update.emitOpError("expected slot compute of ")
                               << place.first << " to be written behind it";
    if (isa<ClusterOp>(container))
      error << " at coordinate " << place.second;
    return error << ", got no write: the slot would be stale";
  }

  Operation *container;
  const DerivedBuckets &derived;
  bool ordered;
  llvm::MapVector<Place, UpdateOp> updates;    // the last so far
  llvm::DenseMap<Place, UpdateOp> written;     // what the slot was made from
  llvm::DenseMap<ReadOp, UpdateOp> readBehind; // the same when it was read
  llvm::DenseMap<Value, Value> sources;        // the read or update behind it
};

} // namespace

LogicalResult verifyDerived(ClusterOp cluster, const DerivedBuckets &derived) {
  if (derived.empty() || cluster.getPhase() < Phase::Reduced)
    return success();
  bool ordered = cluster.getPhase() >= Phase::Ordered;
  return DerivedVerifier(cluster, derived, ordered).run();
}

LogicalResult verifyDerived(ProgramOp program, const DerivedBuckets &derived) {
  if (derived.empty())
    return success();
  return DerivedVerifier(program, derived, /*ordered=*/true).run();
}

} // namespace piper
