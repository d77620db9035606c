//===- ClusterOps.cpp - Rules of sums, updates and waits
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "dialect/Symbols.h"

using namespace mlir;
using namespace piper;

/// Whether two types have one shape and layout, and perhaps another dtype.
static bool sameUpToDtype(Type a, Type b) {
  auto first = cast<RankedTensorType>(a), second = cast<RankedTensorType>(b);
  return first.getShape() == second.getShape() &&
         first.getEncoding() == second.getEncoding();
}

LogicalResult ClusterOp::verifySymbolUses(SymbolTableCollection &symbols) {
  return verifyPlan(*this, getMeshAttr(), getOrderAttr(), symbols);
}

//===----------------------------------------------------------------------===//
// Sums
//===----------------------------------------------------------------------===//

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

LogicalResult SumOp::verifySymbolUses(SymbolTableCollection &symbols) {
  if (!getBucketAttr())
    return success();
  return verifySlot(*this, getBucketAttr(), Slot::Grad, getResult().getType(),
                    symbols);
}

LogicalResult AccumulateOp::verify() {
  if (!sameUpToDtype(getValue().getType(), getResult().getType()))
    return emitOpError("expected a contribution like the sum ")
           << getResult().getType() << ", got " << getValue().getType();
  if (getOnto() && getOnto().getType() != getResult().getType())
    return emitOpError("expected to continue a sum of type ")
           << getResult().getType() << ", got " << getOnto().getType();
  return success();
}

LogicalResult AccumulateOp::verifySymbolUses(SymbolTableCollection &symbols) {
  return verifySlot(*this, getBucketAttr(), Slot::Grad, getResult().getType(),
                    symbols);
}

//===----------------------------------------------------------------------===//
// The norm of gradients
//===----------------------------------------------------------------------===//

/// On one axis: the operands are whole, and so is the result, or they are
/// parts, and the result is a partial sum.
static LogicalResult verifySumsqKinds(SumsqOp op, StringRef axis) {
  size_t parts = llvm::count_if(op.getInputs(), [&](Value input) {
    return getKind(input.getType(), axis) != Kind::Replicated;
  });
  if (parts != 0 && parts != op.getInputs().size())
    return op.emitOpError("expected operands that are all whole or all parts "
                          "on axis '")
           << axis << "', got " << op.getInputs().getTypes();
  Kind expected = parts ? Kind::Partial : Kind::Replicated;
  if (getKind(op.getResult().getType(), axis) != expected)
    return op.emitOpError("expected a result that is ")
           << stringifyKind(expected) << " on axis '" << axis << "', got "
           << op.getResult().getType();
  return success();
}

LogicalResult SumsqOp::verify() {
  auto result = cast<RankedTensorType>(getResult().getType());
  if (result.getRank() != 0)
    return emitOpError("expected a scalar result, got ") << result;
  if (getInputs().empty())
    return success(); // zero is a partial sum of zero
  llvm::SetVector<StringRef> axes;
  auto collect = [&](Type type) {
    if (LayoutAttr layout = getLayout(type))
      for (AxisKindAttr axis : layout.getAxes())
        axes.insert(axis.getAxis().getValue());
  };
  collect(result);
  for (Value input : getInputs()) {
    collect(input.getType());
    for (StringRef axis : axes)
      if (getKind(input.getType(), axis) == Kind::Partial)
        return emitOpError("expected finished gradients, got ")
               << input.getType();
  }
  for (StringRef axis : axes)
    if (failed(verifySumsqKinds(*this, axis)))
      return failure();
  return success();
}

LogicalResult NonfiniteOp::verify() {
  auto value = cast<RankedTensorType>(getValue().getType());
  LayoutAttr layout = getLayout(value);
  bool isSame =
      !layout || llvm::all_of(layout.getAxes(), [](AxisKindAttr axis) {
        return axis.getKind() == Kind::Replicated;
      });
  if (value.getRank() != 0 || !isSame)
    return emitOpError("expected a scalar that is the same on all ranks, got ")
           << value;
  auto expected = RankedTensorType::get({}, IntegerType::get(getContext(), 1),
                                        value.getEncoding());
  if (getResult().getType() != expected)
    return emitOpError("expected a result of type ")
           << expected << ", got " << getResult().getType();
  return success();
}

//===----------------------------------------------------------------------===//
// Updates
//===----------------------------------------------------------------------===//

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

LogicalResult UpdateOp::verifySymbolUses(SymbolTableCollection &symbols) {
  FlatSymbolRefAttr bucket = getBucketAttr();
  FailureOr<RankedTensorType> grad =
      lookupSlot(*this, bucket, Slot::Grad, symbols);
  FailureOr<RankedTensorType> value =
      lookupSlot(*this, bucket, Slot::Value, symbols);
  if (failed(grad) || failed(value))
    return failure();
  auto expected = RankedTensorType::get(
      value->getShape(), grad->getElementType(), value->getEncoding());
  if (getGrad().getType() != expected)
    return emitOpError("expected a gradient of type ")
           << expected << ", as slots value and grad of " << bucket
           << " say, got " << getGrad().getType();
  return verifySlot(*this, bucket, Slot::Value, getResult().getType(), symbols);
}

//===----------------------------------------------------------------------===//
// Waits
//===----------------------------------------------------------------------===//

LogicalResult HostWaitOp::verify() {
  if (getCounts().size() != getResults().size())
    return emitOpError("expected one result per operand, got ")
           << getResults().size() << " for " << getCounts().size();
  for (Value count : getCounts())
    if (!cast<RankedTensorType>(count.getType()).getElementType().isInteger(64))
      return emitOpError("expected 64-bit integers, got ") << count.getType();
  return success();
}
