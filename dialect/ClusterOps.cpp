//===- ClusterOps.cpp - Rules of communication, sums and updates
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "dialect/Layouts.h"

using namespace mlir;
using namespace piper;

//===----------------------------------------------------------------------===//
// Transfers and local data movement
//===----------------------------------------------------------------------===//

LogicalResult TransferOp::verify() {
  if (getFrom() == getTo())
    return emitOpError("expected a destination other than the source, got ")
           << getTo();
  return success();
}

LogicalResult SliceOp::verify() {
  Type from = getValue().getType(), to = getResult().getType();
  if (getKind(from, getAxis()) != Kind::Replicated ||
      getKind(to, getAxis()) != Kind::Shard)
    return emitOpError("expected to make a shard of a replicated value on "
                       "axis '")
           << getAxis() << "', got " << from << " and " << to;
  return success();
}

LogicalResult ConvertOp::verify() {
  auto from = cast<RankedTensorType>(getValue().getType());
  auto to = cast<RankedTensorType>(getResult().getType());
  if (from.getShape() != to.getShape() ||
      from.getEncoding() != to.getEncoding())
    return emitOpError("expected only the dtype to differ, got ")
           << from << " and " << to;
  return success();
}

//===----------------------------------------------------------------------===//
// Collectives
//===----------------------------------------------------------------------===//

/// What every collective must satisfy: one result per operand, one coordinate
/// per operand in a cluster, and an event only in a program.
static LogicalResult verifyTakesPart(CollectiveOpInterface op) {
  if (op.getInputs().empty() || op->getNumResults() == 0)
    return op.emitOpError("expected at least one operand and one result");
  if (op.getTensors().size() != op.getInputs().size())
    return op.emitOpError("expected one result per operand, got ")
           << op.getTensors().size() << " for " << op.getInputs().size();
  std::optional<ArrayRef<int64_t>> at = op.getAt();
  if (at && at->size() != op.getInputs().size())
    return op.emitOpError("expected one coordinate per operand, got ")
           << at->size() << " for " << op.getInputs().size();
  llvm::SmallDenseSet<int64_t> seen;
  for (int64_t coordinate : at.value_or(ArrayRef<int64_t>()))
    if (!seen.insert(coordinate).second)
      return op.emitOpError("expected each coordinate once, got ")
             << coordinate << " twice";
  if (op.getInputs().size() > 1 && !op->hasAttr("across"))
    return op.emitOpError("expected `across` with operands of several "
                          "coordinates");
  return success();
}

/// Checks that on each axis of `over` the kinds change as the collective says.
static LogicalResult verifyKinds(CollectiveOpInterface op, Kind from, Kind to) {
  for (auto [input, result] : llvm::zip(op.getInputs(), op.getTensors()))
    for (auto axis : op.getOver().getAsRange<StringAttr>()) {
      Kind given = getKind(input.getType(), axis);
      Kind made = getKind(result.getType(), axis);
      if (given != from || made != to)
        return op.emitOpError("expected to turn ")
               << stringifyKind(from) << " into " << stringifyKind(to)
               << " on axis '" << axis.getValue() << "', got "
               << stringifyKind(given) << " and " << stringifyKind(made);
    }
  return success();
}

/// Checks that kinds on axes outside `over` stay.
static LogicalResult verifyOtherAxes(CollectiveOpInterface op) {
  for (auto [input, result] : llvm::zip(op.getInputs(), op.getTensors())) {
    LayoutAttr layout = getLayout(input.getType());
    if (!layout)
      continue;
    for (AxisKindAttr axis : layout.getAxes())
      if (!llvm::is_contained(op.getOver(), axis.getAxis()) &&
          axis.getKind() != getKind(result.getType(), axis.getAxis()))
        return op.emitOpError("expected the kind on axis '")
               << axis.getAxis().getValue() << "' to stay, got "
               << result.getType();
  }
  return success();
}

/// Checks that dim `dim` grows (or shrinks) by the number of ranks in `over`.
static LogicalResult verifyGrowth(CollectiveOpInterface op, int64_t dim,
                                  bool grows) {
  MeshOp mesh = findMesh(op);
  if (!mesh)
    return success();
  int64_t ranks = product(mesh, op.getOver());
  for (auto [input, result] : llvm::zip(op.getInputs(), op.getTensors())) {
    auto whole = cast<RankedTensorType>((grows ? result : input).getType());
    auto part = cast<RankedTensorType>((grows ? input : result).getType());
    if (dim >= whole.getRank() || dim >= part.getRank() ||
        whole.getDimSize(dim) != part.getDimSize(dim) * ranks)
      return op.emitOpError("expected dim ")
             << dim << " to " << (grows ? "grow" : "shrink") << " by " << ranks
             << ", got " << input.getType() << " and " << result.getType();
  }
  return success();
}

static LogicalResult verifySameShape(CollectiveOpInterface op) {
  for (auto [input, result] : llvm::zip(op.getInputs(), op.getTensors()))
    if (withLayout(input.getType(), {}) != withLayout(result.getType(), {}))
      return op.emitOpError("expected shape and dtype to stay, got ")
             << input.getType() << " and " << result.getType();
  return success();
}

LogicalResult AllReduceOp::verify() {
  return failure(failed(verifyTakesPart(*this)) ||
                 failed(verifyKinds(*this, Kind::Partial, Kind::Replicated)) ||
                 failed(verifyOtherAxes(*this)) ||
                 failed(verifySameShape(*this)));
}

LogicalResult AllGatherOp::verify() {
  return failure(failed(verifyTakesPart(*this)) ||
                 failed(verifyKinds(*this, Kind::Shard, Kind::Replicated)) ||
                 failed(verifyOtherAxes(*this)) ||
                 failed(verifyGrowth(*this, getDim(), /*grows=*/true)));
}

LogicalResult ReduceScatterOp::verify() {
  return failure(failed(verifyTakesPart(*this)) ||
                 failed(verifyKinds(*this, Kind::Partial, Kind::Shard)) ||
                 failed(verifyOtherAxes(*this)) ||
                 failed(verifyGrowth(*this, getDim(), /*grows=*/false)));
}

LogicalResult AllToAllOp::verify() {
  if (bool(getSendSizes()) != bool(getRecvSizes()))
    return emitOpError("expected both sizes or neither");
  return failure(failed(verifyTakesPart(*this)) ||
                 failed(verifyKinds(*this, Kind::Varying, Kind::Varying)) ||
                 failed(verifyOtherAxes(*this)));
}

LogicalResult PermuteOp::verify() {
  if (failed(verifyTakesPart(*this)))
    return failure();
  for (auto [input, result] : llvm::zip(getInputs(), getTensors()))
    if (input.getType() != result.getType())
      return emitOpError("expected the type to stay, got ")
             << input.getType() << " and " << result.getType();
  return success();
}

LogicalResult BroadcastOp::verify() {
  return failure(failed(verifyTakesPart(*this)) ||
                 failed(verifyKinds(*this, Kind::Varying, Kind::Replicated)) ||
                 failed(verifyOtherAxes(*this)) ||
                 failed(verifySameShape(*this)));
}

//===----------------------------------------------------------------------===//
// Sums and updates
//===----------------------------------------------------------------------===//

/// Whether two types have one shape and layout, and perhaps another dtype.
static bool sameUpToDtype(Type a, Type b) {
  auto first = cast<RankedTensorType>(a), second = cast<RankedTensorType>(b);
  return first.getShape() == second.getShape() &&
         first.getEncoding() == second.getEncoding();
}

LogicalResult SumOp::verify() {
  if (getInputs().empty())
    return emitOpError("expected at least one contribution");
  for (Value input : getInputs())
    if (input.getType() != getInputs().front().getType() ||
        !sameUpToDtype(input.getType(), getResult().getType()))
      return emitOpError("expected contributions like the result ")
             << getResult().getType() << ", got " << input.getType();
  return success();
}

LogicalResult AccumulateOp::verify() {
  if (!sameUpToDtype(getValue().getType(), getResult().getType()))
    return emitOpError("expected a contribution like the sum ")
           << getResult().getType() << ", got " << getValue().getType();
  return success();
}

LogicalResult SumsqOp::verify() {
  auto result = cast<RankedTensorType>(getResult().getType());
  if (result.getRank() != 0)
    return emitOpError("expected a scalar result, got ") << result;
  for (Value input : getInputs()) {
    LayoutAttr layout = getLayout(input.getType());
    if (!layout)
      continue;
    for (AxisKindAttr axis : layout.getAxes()) {
      if (axis.getKind() == Kind::Partial)
        return emitOpError("expected finished gradients, got ")
               << input.getType();
      bool whole = axis.getKind() == Kind::Replicated;
      if (!whole && getKind(result, axis.getAxis()) != Kind::Partial)
        return emitOpError("expected a result that is partial on axis '")
               << axis.getAxis().getValue() << "', got " << result;
    }
  }
  return success();
}

LogicalResult UpdateOp::verify() {
  if (LayoutAttr layout = getLayout(getGrad().getType()))
    for (AxisKindAttr axis : layout.getAxes())
      if (axis.getKind() == Kind::Partial)
        return emitOpError("expected a gradient that is reduced over axis '")
               << axis.getAxis().getValue() << "', got " << getGrad().getType();
  if (getClip() && !getNorm())
    return emitOpError("expected a norm to clip by");
  return success();
}

LogicalResult HostWaitOp::verify() {
  if (getCounts().size() != getResults().size())
    return emitOpError("expected one result per operand, got ")
           << getResults().size() << " for " << getCounts().size();
  for (Value count : getCounts())
    if (!cast<RankedTensorType>(count.getType()).getElementType().isInteger(64))
      return emitOpError("expected 64-bit integers, got ") << count.getType();
  return success();
}
