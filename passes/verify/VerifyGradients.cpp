//===- VerifyGradients.cpp - Every contribution and every update once
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "passes/support/Coordinates.h"
#include "passes/verify/Verify.h"

#include "llvm/ADT/DenseSet.h"
#include "llvm/ADT/SetVector.h"

using namespace mlir;

namespace piper {

namespace {

/// What a value is made of by reducing, converting or slicing; null at the end.
Value getInput(Value value) {
  Operation *op = value.getDefiningOp();
  if (isa<AllReduceOp, ReduceScatterOp, AllGatherOp>(op))
    return cast<CollectiveOpInterface>(op)
        .getInputs()[cast<OpResult>(value).getResultNumber()];
  return isa<ConvertOp, SliceOp>(op) ? op->getOperand(0) : Value();
}

Value getSource(Value value) {
  while (Value input = getInput(value))
    value = input;
  return value;
}

/// The collective that joined several coordinates on the way to a value.
Operation *getJoin(Value value) {
  for (; value; value = getInput(value)) {
    auto collective = value.getDefiningOp<CollectiveOpInterface>();
    if (collective && collective.getInputs().size() > 1)
      return collective;
  }
  return nullptr;
}

/// A bucket at a coordinate.
using Place = std::pair<Attribute, int64_t>;

//===----------------------------------------------------------------------===//
// Conversions
//===----------------------------------------------------------------------===//

/// What is reduced or gathered has one dtype before and one behind, those of
/// the slots at its ends: a second conversion would lose precision in between.
LogicalResult verifyConversions(ClusterOp cluster) {
  for (auto convert : cluster.getBlock().getOps<ConvertOp>())
    for (Value value = convert.getValue(); value; value = getInput(value))
      if (auto other = value.getDefiningOp<ConvertOp>()) {
        InFlightDiagnostic error = convert.emitOpError(
            "expected a value that is not yet converted, got one that was");
        error.attachNote(other.getLoc()) << "it is converted here";
        return failure();
      }
  return success();
}

//===----------------------------------------------------------------------===//
// Contributions
//===----------------------------------------------------------------------===//

/// Checks that what runs contribute to buckets is summed, each once.
class ContributionVerifier {
public:
  ContributionVerifier(ClusterOp cluster, SymbolTable &symbols)
      : cluster(cluster), symbols(symbols) {}

  LogicalResult run() {
    for (Operation &op : cluster.getBlock()) {
      if (auto run = dyn_cast<RunOp>(op))
        for (Attribute bucket : getPacked(run))
          if (bucket)
            ++made[{bucket, *getCoordinate(run)}];
      if (auto sum = dyn_cast<SumOp>(op); sum && sum.getBucketAttr())
        for (Value input : sum.getInputs())
          if (failed(add(sum, sum.getBucketAttr(), input)))
            return failure();
      if (auto accumulate = dyn_cast<AccumulateOp>(op))
        if (failed(checkChain(accumulate)) ||
            failed(add(&op, accumulate.getBucketAttr(), accumulate.getValue())))
          return failure();
    }
    return checkCounts();
  }

private:
  /// The bucket that each result of a run contributes to, or null.
  ArrayRef<Attribute> getPacked(RunOp run) {
    auto [entry, fresh] = packed.try_emplace(run.getChunkAttr());
    if (fresh) {
      auto chunk = symbols.lookup<ChunkOp>(run.getChunk());
      for (Value value : chunk.getBody().front().back().getOperands()) {
        auto pack = value.getDefiningOp<PackOp>();
        entry->second.push_back(pack ? pack.getBucketAttr() : Attribute());
      }
    }
    return entry->second;
  }

  /// Notes a contribution, which some run made for this bucket.
  LogicalResult add(Operation *op, Attribute bucket, Value value) {
    auto source = cast<OpResult>(getSource(value));
    auto run = dyn_cast<RunOp>(source.getOwner());
    Attribute own =
        run ? getPacked(run)[source.getResultNumber()] : Attribute();
    if (own != bucket) {
      InFlightDiagnostic error = op->emitOpError("expected a contribution to ")
                                 << bucket << ", got ";
      if (own)
        error << "one to " << own;
      else
        error << "another value";
      error.attachNote(source.getLoc()) << "it is made here";
      return failure();
    }
    auto [entry, fresh] = added.try_emplace(source, op);
    if (!fresh) {
      InFlightDiagnostic error =
          op->emitOpError("expected each contribution once, got one twice");
      error.attachNote(entry->second->getLoc()) << "it is added here, too";
      return failure();
    }
    ++summed[{bucket, *getCoordinate(op)}];
    return success();
  }

  /// Accumulations of a bucket continue each other.
  LogicalResult checkChain(AccumulateOp op) {
    Place place(op.getBucketAttr(), *op.getAt());
    AccumulateOp &last = lastOf[place];
    if (op.getOnto() != (last ? last.getResult() : Value())) {
      InFlightDiagnostic error =
          op.emitOpError("expected to continue the sum of ")
          << place.first << " at coordinate " << place.second
          << " so far, got another `onto`";
      if (last)
        error.attachNote(last.getLoc()) << "the last addition is here";
      return failure();
    }
    last = op;
    return success();
  }

  LogicalResult checkCounts() {
    for (auto &[place, count] : summed)
      made.insert({place, 0});
    for (auto &[place, count] : made)
      if (count != summed.lookup(place))
        return cluster.emitOpError("expected ")
               << count << " contributions to " << place.first
               << " at coordinate " << place.second << ", got "
               << summed.lookup(place);
    return success();
  }

  ClusterOp cluster;
  SymbolTable &symbols;
  llvm::DenseMap<Attribute, SmallVector<Attribute>> packed; // by chunk
  llvm::MapVector<Place, int64_t> made, summed;
  llvm::DenseMap<Value, Operation *> added;
  llvm::DenseMap<Place, AccumulateOp> lastOf;
};

//===----------------------------------------------------------------------===//
// Updates
//===----------------------------------------------------------------------===//

/// Checks updates against what directives recorded on states.
class UpdateVerifier {
public:
  UpdateVerifier(ClusterOp cluster, SymbolTable &symbols)
      : cluster(cluster), symbols(symbols) {}

  LogicalResult run() {
    for (Operation &op : cluster.getBlock()) {
      if (auto run = dyn_cast<RunOp>(op))
        trains |=
            symbols.lookup<ChunkOp>(run.getChunk()).getOfAttr() != nullptr;
      if (auto read = dyn_cast<ReadOp>(op))
        used.insert(read.getSymbolAttr());
      if (auto sum = dyn_cast<SumOp>(op); sum && sum.getBucketAttr())
        used.insert(sum.getBucketAttr());
      if (auto accumulate = dyn_cast<AccumulateOp>(op))
        used.insert(accumulate.getBucketAttr());
      if (auto update = dyn_cast<UpdateOp>(op); update && failed(check(update)))
        return failure();
    }
    return trains ? checkComplete() : success();
  }

private:
  SmallVector<StateOp> getMembers(BucketOp bucket) {
    SmallVector<StateOp> states;
    for (auto name : bucket.getMembers().getAsRange<FlatSymbolRefAttr>())
      states.push_back(symbols.lookup<StateOp>(name.getValue()));
    return states;
  }

  LogicalResult check(UpdateOp update) {
    auto bucket = symbols.lookup<BucketOp>(update.getBucket());
    for (StateOp state : getMembers(bucket))
      if (failed(checkMember(update, state)))
        return failure();
    auto [entry, fresh] =
        updates.insert({{update.getBucketAttr(), *update.getAt()}, update});
    if (!fresh) {
      InFlightDiagnostic error = update.emitOpError("expected one update of ")
                                 << update.getBucketAttr() << " at coordinate "
                                 << *update.getAt() << ", got a second";
      error.attachNote(entry->second.getLoc()) << "the other update is here";
      return failure();
    }
    return failure(failed(checkGradient(update)) ||
                   failed(checkJoins(update)) || failed(checkTwins(update)));
  }

  LogicalResult checkMember(UpdateOp update, StateOp state) {
    auto fact = state.getOptimizationAttr();
    auto own = OptimizationAttr::get(
        update.getContext(), update.getOptimizerAttr(), update.getClipAttr(),
        fact ? fact.getMaster() : Type(),
        update.getSkip() ? UnitAttr::get(update.getContext()) : UnitAttr());
    if (!state.isTrainable() || fact != own) {
      InFlightDiagnostic error = update.emitOpError("expected ");
      if (fact && state.isTrainable())
        error << "optimization " << fact;
      else
        error << "no update";
      error << " of @" << state.getSymName() << ", got " << own;
      error.attachNote(state.getLoc()) << "the state is here";
      return failure();
    }
    auto holders = state.getHolders().value_or(ArrayRef<int64_t>());
    if (!llvm::is_contained(holders, int64_t(*update.getAt())))
      return update.emitOpError("expected a coordinate that holds @")
             << state.getSymName() << ", got " << *update.getAt();
    return success();
  }

  /// The gradient is that of the bucket's own contributions.
  LogicalResult checkGradient(UpdateOp update) {
    Value source = getSource(update.getGrad());
    Operation *maker = source.getDefiningOp();
    Attribute bucket;
    if (auto sum = dyn_cast<SumOp>(maker))
      bucket = sum.getBucketAttr();
    else if (auto accumulate = dyn_cast<AccumulateOp>(maker))
      bucket = accumulate.getBucketAttr();
    if (bucket == update.getBucketAttr())
      return success();
    InFlightDiagnostic error = update.emitOpError("expected the gradient of ")
                               << update.getBucketAttr() << ", got ";
    if (bucket)
      error << "that of " << bucket;
    else
      error << "another value";
    error.attachNote(maker->getLoc()) << "it is made here";
    return failure();
  }

  /// What is summed across coordinates was not yet: kinds do not tell, since
  /// types say nothing about the unrolled axis.
  LogicalResult checkJoins(UpdateOp update) {
    Operation *join = getJoin(update.getGrad());
    if (!join)
      return success();
    for (Value input : cast<CollectiveOpInterface>(join).getInputs())
      if (Operation *other = getJoin(input)) {
        InFlightDiagnostic error =
            join->emitOpError("expected gradients of ")
            << update.getBucketAttr()
            << " that are not yet summed across coordinates, got one that is";
        error.attachNote(other->getLoc()) << "it is summed here";
        return failure();
      }
    return success();
  }

  /// Holders of one bucket are updated with one sum, so that they stay equal.
  LogicalResult checkTwins(UpdateOp update) {
    auto [entry, fresh] = firstOf.try_emplace(update.getBucketAttr(), update);
    if (fresh)
      return success();
    Operation *join = getJoin(update.getGrad());
    if (join && join == getJoin(entry->second.getGrad()))
      return success();
    InFlightDiagnostic error =
        update.emitOpError("expected one reduction across all holders "
                           "of ")
        << update.getBucketAttr() << ", got a gradient of another";
    error.attachNote(entry->second.getLoc()) << "the other update is here";
    return failure();
  }

  /// What the cluster uses and a directive optimizes is updated everywhere.
  LogicalResult checkComplete() {
    for (Attribute name : used) {
      auto bucket =
          symbols.lookup<BucketOp>(cast<FlatSymbolRefAttr>(name).getValue());
      if (!bucket)
        continue; // a read of a state by name
      for (StateOp state : getMembers(bucket))
        for (int64_t at : state.getHolders().value_or(ArrayRef<int64_t>()))
          if (state.getOptimizationAttr() && !updates.contains({name, at})) {
            InFlightDiagnostic error =
                cluster.emitOpError("expected an update of ")
                << name << " at coordinate " << at << ", got none";
            error.attachNote(state.getLoc()) << "the state is here";
            return failure();
          }
    }
    return success();
  }

  ClusterOp cluster;
  SymbolTable &symbols;
  bool trains = false;
  llvm::SetVector<Attribute> used; // buckets
  llvm::MapVector<Place, UpdateOp> updates;
  llvm::DenseMap<Attribute, UpdateOp> firstOf;
};

} // namespace

LogicalResult verifyGradients(ClusterOp cluster, SymbolTable &symbols) {
  if (failed(verifyConversions(cluster)) ||
      failed(ContributionVerifier(cluster, symbols).run()))
    return failure();
  if (cluster.getPhase() < Phase::Reduced)
    return success();
  return UpdateVerifier(cluster, symbols).run();
}

} // namespace piper
