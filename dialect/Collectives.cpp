//===- Collectives.cpp - Rules of communication and local data movement
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "dialect/Symbols.h"

#include <set>

using namespace mlir;
using namespace piper;

//===----------------------------------------------------------------------===//
// Who takes part, and along which axes
//===----------------------------------------------------------------------===//

/// What every collective must satisfy: one result per operand, one coordinate
/// per operand in a cluster, and an event only in a program.
static LogicalResult verifyTakesPart(CollectiveOpInterface op) {
  if (op.getInputs().empty() || op->getNumResults() == 0)
    return op.emitOpError("expected at least one operand and one result");
  if (op.getTensors().size() != op.getInputs().size())
    return op.emitOpError("expected one result per operand, got ")
           << op.getTensors().size() << " for " << op.getInputs().size();
  for (Value result : op.getTensors())
    if (!isa<RankedTensorType>(result.getType()))
      return op.emitOpError("expected tensors, got ") << result.getType();
  std::optional<ArrayRef<int64_t>> at = op.getAt();
  if (at && at->size() != op.getInputs().size())
    return op.emitOpError("expected one coordinate per operand, got ")
           << at->size() << " for " << op.getInputs().size();
  std::set<int64_t> seen; // unlike a DenseSet takes any number
  for (int64_t coordinate : at.value_or(ArrayRef<int64_t>()))
    if (!seen.insert(coordinate).second)
      return op.emitOpError("expected each coordinate once, got ")
             << coordinate << " twice";
  if (op.getInputs().size() > 1 && !op->hasAttr("across"))
    return op.emitOpError("expected `across` with operands of several "
                          "coordinates");
  return success();
}

/// Checks stream and axes of a collective against the module.
static LogicalResult verifyUses(CollectiveOpInterface op,
                                SymbolTableCollection &symbols) {
  FailureOr<MeshOp> mesh = lookupMesh(op);
  if (failed(mesh))
    return failure();
  for (auto name : op.getOver().getAsRange<StringAttr>())
    if (failed(lookupRankAxis(op, *mesh, name)))
      return failure();
  AxisAttr unrolled = mesh->getUnrolledAxis();
  if (auto across = op->getAttrOfType<StringAttr>("across");
      across && (!unrolled || across != unrolled.getName()))
    return op.emitOpError("expected `across` to name the unrolled axis, got ")
           << across;
  return verifyStream(op, op->getAttrOfType<FlatSymbolRefAttr>("stream"),
                      symbols);
}

//===----------------------------------------------------------------------===//
// What changes in types
//===----------------------------------------------------------------------===//

namespace {

/// A kind, and the dim if it is a shard.
struct Held {
  Kind kind;
  int64_t dim = 0;
};

} // namespace

static Held getHeld(Type type, StringRef axis) {
  if (LayoutAttr layout = getLayout(type))
    for (AxisKindAttr entry : layout.getAxes())
      if (entry.getAxis().getValue() == axis)
        return {entry.getKind(), entry.getDim()};
  return {Kind::Replicated};
}

static std::string toString(Held held) {
  std::string text = stringifyKind(held.kind).str();
  if (held.kind == Kind::Shard)
    text += "(" + std::to_string(held.dim) + ")";
  return text;
}

static bool isHeld(Held held, Held wanted) {
  return held.kind == wanted.kind &&
         (held.kind != Kind::Shard || held.dim == wanted.dim);
}

/// Checks that on each of `axes` a value turns from one kind into another.
static LogicalResult verifyTurns(Operation *op, ArrayRef<Attribute> axes,
                                 Type input, Type result, Held from, Held to) {
  for (Attribute axis : axes) {
    StringRef name = cast<StringAttr>(axis).getValue();
    Held given = getHeld(input, name), made = getHeld(result, name);
    if (!isHeld(given, from) || !isHeld(made, to))
      return op->emitOpError("expected to turn ")
             << toString(from) << " into " << toString(to) << " on axis '"
             << name << "', got " << toString(given) << " and "
             << toString(made);
  }
  return success();
}

/// Checks that two types have kinds on the same axes, equal outside `axes`.
static LogicalResult verifyOtherAxes(Operation *op, ArrayRef<Attribute> axes,
                                     Type input, Type result) {
  ArrayRef<AxisKindAttr> before, after;
  if (LayoutAttr layout = getLayout(input))
    before = layout.getAxes();
  if (LayoutAttr layout = getLayout(result))
    after = layout.getAxes();
  auto isSameAxis = [](AxisKindAttr a, AxisKindAttr b) {
    return a.getAxis() == b.getAxis();
  };
  if (!llvm::equal(before, after, isSameAxis))
    return op->emitOpError("expected layouts that name the same axes, got ")
           << input << " and " << result;
  for (auto [given, made] : llvm::zip(before, after))
    if (given != made && !llvm::is_contained(axes, given.getAxis()))
      return op->emitOpError("expected the kind on axis '")
             << given.getAxis().getValue() << "' to stay, got " << result;
  return success();
}

/// Checks that dtype, rank and all dims but one stay.
static LogicalResult verifyOtherDims(Operation *op, int64_t dim, Type input,
                                     Type result) {
  auto from = cast<RankedTensorType>(input);
  auto to = cast<RankedTensorType>(result);
  bool same = from.getElementType() == to.getElementType() &&
              from.getRank() == to.getRank() && dim < from.getRank();
  for (int64_t i = 0; same && i < from.getRank(); ++i)
    same = i == dim || from.getDimSize(i) == to.getDimSize(i);
  if (!same)
    return op->emitOpError("expected only dim ")
           << dim << " to change, got " << from << " and " << to;
  return success();
}

/// Checks that a dim of `part` is that of `whole`, divided by `ranks`. What is
/// not static is known at run time only.
static LogicalResult verifyRatio(Operation *op, int64_t dim, Type whole,
                                 Type part, int64_t ranks, StringRef how) {
  int64_t all = cast<RankedTensorType>(whole).getDimSize(dim);
  int64_t own = cast<RankedTensorType>(part).getDimSize(dim);
  if (!ShapedType::isDynamic(all) && !ShapedType::isDynamic(own) &&
      all != own * ranks)
    return op->emitOpError("expected dim ")
           << dim << " to " << how << " by " << ranks << ", got "
           << (how == "grow" ? part : whole) << " and "
           << (how == "grow" ? whole : part);
  return success();
}

/// Whether the types of a collective say what ranks hold: in a step they do not
/// before kinds are assigned.
static bool haveKinds(CollectiveOpInterface op) {
  auto says = [](Type type) {
    LayoutAttr layout = getLayout(type);
    return layout && !layout.getAxes().empty();
  };
  return !isa<StepOp>(op->getParentOp()) ||
         llvm::any_of(op.getInputs().getTypes(), says) ||
         llvm::any_of(op.getTensors().getTypes(), says);
}

/// Checks how a collective changes kinds.
static LogicalResult verifyKinds(CollectiveOpInterface op, Held from, Held to) {
  if (!haveKinds(op))
    return success();
  ArrayRef<Attribute> over = op.getOver().getValue();
  for (auto [input, result] : llvm::zip(op.getInputs(), op.getTensors()))
    if (failed(verifyTurns(op, over, input.getType(), result.getType(), from,
                           to)) ||
        failed(verifyOtherAxes(op, over, input.getType(), result.getType())))
      return failure();
  return success();
}

static LogicalResult verifySameShape(CollectiveOpInterface op) {
  for (auto [input, result] : llvm::zip(op.getInputs(), op.getTensors()))
    if (withLayout(input.getType(), {}) != withLayout(result.getType(), {}))
      return op.emitOpError("expected shape and dtype to stay, got ")
             << input.getType() << " and " << result.getType();
  return success();
}

static LogicalResult verifyOtherDims(CollectiveOpInterface op, int64_t dim) {
  for (auto [input, result] : llvm::zip(op.getInputs(), op.getTensors()))
    if (failed(verifyOtherDims(op, dim, input.getType(), result.getType())))
      return failure();
  return success();
}

//===----------------------------------------------------------------------===//
// Collectives
//===----------------------------------------------------------------------===//

LogicalResult AllReduceOp::verify() {
  return failure(
      failed(verifyTakesPart(*this)) ||
      failed(verifyKinds(*this, {Kind::Partial}, {Kind::Replicated})) ||
      failed(verifySameShape(*this)));
}

LogicalResult AllGatherOp::verify() {
  Held shard = {Kind::Shard, int64_t(getDim())};
  return failure(failed(verifyTakesPart(*this)) ||
                 failed(verifyKinds(*this, shard, {Kind::Replicated})) ||
                 failed(verifyOtherDims(*this, getDim())));
}

LogicalResult ReduceScatterOp::verify() {
  Held shard = {Kind::Shard, int64_t(getDim())};
  return failure(failed(verifyTakesPart(*this)) ||
                 failed(verifyKinds(*this, {Kind::Partial}, shard)) ||
                 failed(verifyOtherDims(*this, getDim())));
}

LogicalResult AllToAllOp::verify() {
  if (bool(getSendSizes()) != bool(getRecvSizes()))
    return emitOpError("expected both sizes or neither");
  return failure(failed(verifyTakesPart(*this)) ||
                 failed(verifyKinds(*this, {Kind::Varying}, {Kind::Varying})) ||
                 failed(verifyOtherDims(*this, getDim())));
}

LogicalResult PermuteOp::verify() {
  if (failed(verifyTakesPart(*this)))
    return failure();
  for (auto [input, result] : llvm::zip(getInputs(), getTensors())) {
    if (input.getType() != result.getType())
      return emitOpError("expected the type to stay, got ")
             << input.getType() << " and " << result.getType();
    for (auto axis : getOver().getAsRange<StringAttr>())
      if (Kind kind = getKind(input.getType(), axis);
          kind != Kind::Varying && kind != Kind::Shard)
        return emitOpError("expected a varying or sharded value on axis '")
               << axis.getValue() << "', got " << input.getType();
  }
  return success();
}

LogicalResult BroadcastOp::verify() {
  return failure(
      failed(verifyTakesPart(*this)) ||
      failed(verifyKinds(*this, {Kind::Varying}, {Kind::Replicated})) ||
      failed(verifySameShape(*this)));
}

LogicalResult AllReduceOp::verifySymbolUses(SymbolTableCollection &symbols) {
  return verifyUses(*this, symbols);
}

LogicalResult AllGatherOp::verifySymbolUses(SymbolTableCollection &symbols) {
  if (failed(verifyUses(*this, symbols)))
    return failure();
  int64_t ranks = product(findMesh(*this), getOver());
  for (auto [input, result] : llvm::zip(getInputs(), getTensors()))
    if (failed(verifyRatio(*this, getDim(), result.getType(), input.getType(),
                           ranks, "grow")))
      return failure();
  return success();
}

LogicalResult
ReduceScatterOp::verifySymbolUses(SymbolTableCollection &symbols) {
  if (failed(verifyUses(*this, symbols)))
    return failure();
  int64_t ranks = product(findMesh(*this), getOver());
  for (auto [input, result] : llvm::zip(getInputs(), getTensors()))
    if (failed(verifyRatio(*this, getDim(), input.getType(), result.getType(),
                           ranks, "shrink")))
      return failure();
  return success();
}

LogicalResult AllToAllOp::verifySymbolUses(SymbolTableCollection &symbols) {
  return verifyUses(*this, symbols);
}

LogicalResult PermuteOp::verifySymbolUses(SymbolTableCollection &symbols) {
  return verifyUses(*this, symbols);
}

LogicalResult BroadcastOp::verifySymbolUses(SymbolTableCollection &symbols) {
  return verifyUses(*this, symbols);
}

//===----------------------------------------------------------------------===//
// Transfers and local data movement
//===----------------------------------------------------------------------===//

LogicalResult TransferOp::verify() {
  if (getFrom() == getTo())
    return emitOpError("expected a destination other than the source, got ")
           << getTo();
  if (!getValue().getType().hasStaticShape())
    return emitOpError("expected a value whose size is known before it is "
                       "sent, got ")
           << getValue().getType();
  return success();
}

LogicalResult TransferOp::verifySymbolUses(SymbolTableCollection &symbols) {
  return verifyStream(*this, getStreamAttr(), symbols);
}

LogicalResult SliceOp::verify() {
  Type from = getValue().getType(), to = getResult().getType();
  Attribute axis = getAxisAttr();
  return failure(failed(verifyTurns(*this, axis, from, to, {Kind::Replicated},
                                    {Kind::Shard, int64_t(getDim())})) ||
                 failed(verifyOtherAxes(*this, axis, from, to)) ||
                 failed(verifyOtherDims(*this, getDim(), from, to)));
}

LogicalResult SliceOp::verifySymbolUses(SymbolTableCollection &) {
  FailureOr<MeshOp> mesh = lookupMesh(*this);
  if (failed(mesh))
    return failure();
  FailureOr<AxisAttr> axis = lookupRankAxis(*this, *mesh, getAxisAttr());
  if (failed(axis))
    return failure();
  return verifyRatio(*this, getDim(), getValue().getType(),
                     getResult().getType(), axis->getSize(), "shrink");
}

LogicalResult AxisIndexOp::verifySymbolUses(SymbolTableCollection &) {
  FailureOr<MeshOp> mesh = lookupMesh(*this);
  return failure(failed(mesh) ||
                 failed(lookupRankAxis(*this, *mesh, getAxisAttr())));
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
