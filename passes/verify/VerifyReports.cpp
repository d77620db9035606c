//===- VerifyReports.cpp - Counts, losses and the norm are of everything, once
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

// The count that a tangent divides by, and each loss that is reported, is the
// sum of one value of the step over every microbatch; the norm is that of every
// gradient, although several coordinates may hold it.

#include "passes/support/StepValues.h"
#include "passes/verify/Verify.h"

#include "dialect/Layouts.h"
#include "llvm/ADT/DenseSet.h"
#include "llvm/ADT/SetVector.h"

using namespace mlir;

namespace piper {

namespace {

/// The values that add up to a value, at all coordinates that it joins; at most
/// one more than `limit`, which is too many.
SmallVector<Value> findTerms(Value value, size_t limit) {
  SmallVector<Value> terms, queue = {value};
  while (!queue.empty() && terms.size() <= limit) {
    Value next = skipTransfers(queue.pop_back_val());
    auto reduction = next.getDefiningOp<AllReduceOp>();
    auto sum = next.getDefiningOp<SumOp>();
    if (reduction)
      llvm::append_range(queue, reduction.getInputs());
    else if (sum && !sum.getBucketAttr())
      llvm::append_range(queue, sum.getInputs());
    else
      terms.push_back(next);
  }
  return terms;
}

/// The bucket whose gradient a value is, perhaps reduced or converted; or null.
Attribute getGradient(Value value) {
  auto result = cast<OpResult>(value);
  Operation *op = result.getOwner();
  if (auto collective = dyn_cast<CollectiveOpInterface>(op))
    return getGradient(collective.getInputs()[result.getResultNumber()]);
  if (isa<ConvertOp, SliceOp>(op))
    return getGradient(op->getOperand(0));
  if (auto sum = dyn_cast<SumOp>(op))
    return sum.getBucketAttr();
  auto accumulate = dyn_cast<AccumulateOp>(op);
  return accumulate ? accumulate.getBucketAttr() : Attribute();
}

//===----------------------------------------------------------------------===//
// Counts and losses
//===----------------------------------------------------------------------===//

class ReportVerifier {
public:
  ReportVerifier(ClusterOp cluster, SymbolTable &symbols)
      : cluster(cluster),
        values(symbols.lookup<StepOp>(cluster.getOf()), symbols),
        numMicrobatches(cluster.getMicrobatches()) {
    StepOp step = values.getStep();
    for (auto tangent : step.getBlock().getOps<TangentOp>())
      tangents[tangent.getLossAttr()] = tangent;
    for (auto output : step.getBlock().getOps<OutputOp>())
      outputs[output.getNameAttr()] = output;
  }

  LogicalResult run() {
    for (Operation &op : cluster.getBlock()) {
      auto tangent = dyn_cast<TangentOp>(op);
      auto sum = dyn_cast<SumOp>(op);
      if ((tangent && failed(checkTangent(tangent))) ||
          (sum && failed(checkSum(sum))))
        return failure();
    }
    // Before, sums are those of each coordinate alone.
    return cluster.getPhase() < Phase::Reduced ? success() : checkReports();
  }

private:
  /// What is reported keeps its dtype; only gradients may be summed in another.
  LogicalResult checkSum(SumOp op) {
    Type given = op.getInputs().front().getType();
    if (op.getBucketAttr() || given == op.getResult().getType())
      return success();
    return op.emitOpError("expected a sum of type ")
           << given << ", as its operands are, got "
           << op.getResult().getType();
  }

  LogicalResult checkTangent(TangentOp op) {
    TangentOp tangent = tangents.lookup(op.getLossAttr());
    if (!tangent)
      return op.emitOpError("expected a loss of ")
             << cluster.getOfAttr() << ", got " << op.getLossAttr();
    double coefficient = tangent.getCoeff().convertToDouble();
    if (std::optional<uint64_t> examples = tangent.getExamples())
      coefficient /= double(*examples) * numMicrobatches *
                     product(findMesh(cluster), values.getStep().getAxesAttr());
    if (op.getCoeff().convertToDouble() != coefficient)
      return op.emitOpError("expected coefficient ")
             << coefficient << ", got " << op.getCoeff().convertToDouble();
    if (bool(op.getCount()) != bool(tangent.getCount()))
      return op.emitOpError("expected ")
             << (tangent.getCount() ? "a count" : "no count") << ", as in "
             << cluster.getOfAttr();
    if (!op.getCount() || cluster.getPhase() < Phase::Reduced)
      return success();
    return checkTotal(op, op.getCount(), tangent.getCount(), tangent);
  }

  /// A value is the sum of one of the step over all microbatches.
  LogicalResult checkTotal(Operation *op, Value total, Value wanted,
                           Operation *like) {
    SmallVector<bool> seen(numMicrobatches);
    auto report = [&]() {
      InFlightDiagnostic error = op->emitOpError("expected the sum of ");
      error << values.describe(wanted) << " over every microbatch once, got ";
      return error;
    };
    auto fail = [&](InFlightDiagnostic error) -> LogicalResult {
      error.attachNote(like->getLoc()) << cluster.getOfAttr() << " has it here";
      return failure();
    };
    for (Value term : findTerms(total, numMicrobatches)) {
      auto run = term.getDefiningOp<RunOp>();
      bool fits =
          run && run.getMb() && values.standsFor(term, wanted, *run.getMb());
      if (!fits || std::exchange(seen[*run.getMb()], true))
        return fail(report() << (fits ? "again " : "") << describe(term));
    }
    for (int64_t mb = 0; mb < numMicrobatches; ++mb)
      if (!seen[mb])
        return fail(report() << "none for microbatch " << mb);
    return success();
  }

  /// Everything that the step reports is, once at a coordinate; and the norm.
  LogicalResult checkReports() {
    llvm::DenseSet<std::pair<Attribute, int64_t>> reported;
    llvm::DenseSet<Attribute> names;
    for (auto output : cluster.getBlock().getOps<OutputOp>()) {
      if (!reported.insert({output.getNameAttr(), *output.getAt()}).second)
        return output.emitOpError("expected one output of ")
               << output.getNameAttr() << " at a coordinate, got a second";
      names.insert(output.getNameAttr());
      OutputOp like = outputs.lookup(output.getNameAttr());
      if (failed(like ? checkOutput(output, like)
                      : checkNorm(output, output.getValue())))
        return failure();
    }
    for (auto &[name, output] : outputs)
      if (!names.contains(name)) {
        InFlightDiagnostic error = emitContainerError(cluster);
        error << "expected an output of " << name << ", got none";
        error.attachNote(output->getLoc())
            << cluster.getOfAttr() << " has it here";
        return failure();
      }
    bool reportsNorm = names.size() > outputs.size();
    for (auto update : cluster.getBlock().getOps<UpdateOp>()) {
      if ((update.getNorm() || update.getSkip()) && !reportsNorm)
        return update.emitOpError("expected its norm to be an output, too");
      if (update.getNorm() && failed(checkNorm(update, update.getNorm())))
        return failure();
      if (update.getSkip() && failed(checkSkip(update)))
        return failure();
    }
    return success();
  }

  /// A step is skipped by what all ranks agree on: that the norm of all
  /// gradients is not finite.
  LogicalResult checkSkip(UpdateOp update) {
    auto skip = update.getSkip().getDefiningOp<NonfiniteOp>();
    if (!skip)
      return update.emitOpError("expected to skip by whether the norm of all "
                                "gradients is finite, got ")
             << describe(update.getSkip());
    return checkNorm(skip, skip.getValue());
  }

  LogicalResult checkOutput(OutputOp output, OutputOp like) {
    bool isScaled = bool(like.getScale());
    if (bool(output.getScale()) != isScaled ||
        (isScaled && !values.standsFor(output.getScale(), like.getScale(), 0)))
      return output.emitOpError("expected the scale that ")
             << cluster.getOfAttr() << " gives " << output.getNameAttr();
    return checkTotal(output, output.getValue(), like.getValue(), like);
  }

  //===--------------------------------------------------------------------===//
  // The norm
  //===--------------------------------------------------------------------===//

  /// A value is the sum of the squares of every gradient, each once although
  /// several coordinates may hold it.
  LogicalResult checkNorm(Operation *op, Value norm) {
    collectGradients();
    if (!norms.insert(norm).second)
      return success(); // checked before
    llvm::DenseSet<Attribute> counted;
    size_t numCoordinates = findMesh(cluster).getNumCoordinates();
    // Whole and sharded gradients are added up apart.
    size_t limit = numCoordinates * std::max<size_t>(gradients.size(), 1);
    for (Value term : findTerms(norm, limit)) {
      auto squares = term.getDefiningOp<SumsqOp>();
      if (!squares)
        return op->emitOpError("expected the sum of squares of gradients, got ")
               << describe(term);
      for (Value input : squares.getInputs()) {
        Attribute bucket = getGradient(input);
        if (!bucket || !finished.contains(input))
          return squares.emitOpError("expected gradients as updates take them, "
                                     "got ")
                 << describe(input);
        if (!counted.insert(bucket).second)
          return op->emitOpError("expected each gradient once in the norm, got "
                                 "that of ")
                 << bucket << " again";
      }
    }
    for (Attribute bucket : gradients)
      if (!counted.contains(bucket))
        return op->emitOpError("expected each gradient once in the norm, got "
                               "none of ")
               << bucket;
    return success();
  }

  /// Finds the gradients of the cluster, and the values that nothing is added
  /// to or reduces any more.
  void collectGradients() {
    if (!finished.empty())
      return;
    for (Operation &op : cluster.getBlock())
      for (Value value : op.getResults()) {
        if (!isa<AccumulateOp, SumOp, CollectiveOpInterface, SliceOp>(op))
          continue;
        Attribute bucket = getGradient(value);
        bool goesOn = llvm::any_of(value.getUsers(), [&](Operation *user) {
          return isa<AccumulateOp, CollectiveOpInterface, SliceOp>(user);
        });
        if (!bucket || goesOn)
          continue;
        gradients.insert(bucket);
        finished.insert(value);
      }
  }

  ClusterOp cluster;
  StepValues values;
  int64_t numMicrobatches;
  llvm::DenseMap<Attribute, TangentOp> tangents;
  llvm::MapVector<Attribute, OutputOp> outputs;
  llvm::SetVector<Attribute> gradients; // buckets that have one
  llvm::DenseSet<Value> finished;
  llvm::DenseSet<Value> norms; // that were checked
};

} // namespace

LogicalResult verifyReports(ClusterOp cluster, SymbolTable &symbols) {
  return ReportVerifier(cluster, symbols).run();
}

} // namespace piper
