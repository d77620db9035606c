//===- StateUses.cpp - Rules of ops that use states and buckets as values
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "dialect/Symbols.h"

using namespace mlir;
using namespace piper;

//===----------------------------------------------------------------------===//
// States by name
//===----------------------------------------------------------------------===//

/// Checks that a value may be that of a state: whole, or what a rank holds.
static LogicalResult verifyState(Operation *op, FlatSymbolRefAttr name,
                                 Type type, SymbolTableCollection &symbols) {
  auto state = symbols.lookupNearestSymbolFrom<StateOp>(op, name);
  if (!state)
    return op->emitOpError("expected a state, got ") << name;
  auto tensor = cast<RankedTensorType>(type);
  RankedTensorType whole = state.getTensorType();
  MeshOp mesh = findMesh(op);
  bool fits =
      tensor.getShape() == whole.getShape() ||
      (mesh && tensor.getShape() == ArrayRef<int64_t>(localShape(state, mesh)));
  if (!fits || tensor.getElementType() != whole.getElementType())
    return op->emitOpError("expected dtype and shape of ")
           << name << ", which is " << whole << ", got " << type;
  return success();
}

/// Checks the symbol of a read or write.
template <typename UseOp>
static LogicalResult verifyUse(UseOp op, Type type,
                               SymbolTableCollection &symbols) {
  if (std::optional<Slot> slot = op.getSlot())
    return verifySlot(op, op.getSymbolAttr(), *slot, type, symbols);
  return verifyState(op, op.getSymbolAttr(), type, symbols);
}

LogicalResult ReadOp::verifySymbolUses(SymbolTableCollection &symbols) {
  return verifyUse(*this, getResult().getType(), symbols);
}

LogicalResult WriteOp::verifySymbolUses(SymbolTableCollection &symbols) {
  return verifyUse(*this, getValue().getType(), symbols);
}

LogicalResult GradOp::verifySymbolUses(SymbolTableCollection &symbols) {
  return verifyState(*this, getStateAttr(), getValue().getType(), symbols);
}

//===----------------------------------------------------------------------===//
// Buckets in chunks
//===----------------------------------------------------------------------===//

namespace {

/// What a bucket consists of.
struct Members {
  MeshOp mesh;
  BucketOp bucket;
  StateOp first; // all members agree in dtype and layout

  /// What the states of the bucket hold on an axis.
  Kind getStateKind(StringRef axis) {
    LayoutAttr layout = first.getLayoutAttr();
    return layout ? layout.getKind(axis) : Kind::Replicated;
  }
};

} // namespace

/// Checks that `types` are the members of a bucket, as one rank holds them, and
/// that the flat tensor has the size of all.
static FailureOr<Members> verifyMembers(Operation *op, FlatSymbolRefAttr name,
                                        Type flat, TypeRange types,
                                        SymbolTableCollection &symbols) {
  FailureOr<MeshOp> mesh = lookupMesh(op);
  if (failed(mesh))
    return failure();
  FailureOr<BucketOp> bucket = lookupBucket(op, name, symbols);
  if (failed(bucket))
    return failure();
  Members members = {*mesh, *bucket, StateOp()};
  if (bucket->getMembers().size() != types.size())
    return op->emitOpError("expected ")
           << bucket->getMembers().size() << " members, got " << types.size();
  auto whole = cast<RankedTensorType>(flat);
  int64_t elements = 0;
  for (auto [member, type] :
       llvm::zip(bucket->getMembers().getAsRange<FlatSymbolRefAttr>(), types)) {
    auto state = symbols.lookupNearestSymbolFrom<StateOp>(op, member);
    if (!state)
      return op->emitOpError("expected a state, got ") << member;
    SmallVector<int64_t> shape = localShape(state, members.mesh);
    auto tensor = cast<RankedTensorType>(type);
    if (tensor.getShape() != ArrayRef<int64_t>(shape) ||
        tensor.getElementType() != whole.getElementType())
      return op->emitOpError("expected ")
             << member << " of dtype " << whole.getElementType()
             << " and its shape on one rank, got " << type;
    elements += numElements(shape);
    if (!members.first)
      members.first = state;
  }
  int64_t size = bucket->getWholeSize(elements, members.mesh);
  if (whole.getRank() != 1 || whole.getDimSize(0) != size)
    return op->emitOpError("expected a flat tensor of ")
           << size << " elements, got " << flat;
  return members;
}

LogicalResult UnpackOp::verifySymbolUses(SymbolTableCollection &symbols) {
  Type type = getValue().getType();
  FailureOr<Members> members = verifyMembers(*this, getBucketAttr(), type,
                                             getMembers().getTypes(), symbols);
  if (failed(members))
    return failure();
  Type dtype = cast<RankedTensorType>(type).getElementType();
  auto hasDtype = [&](Slot slot) {
    RankedTensorType held = members->bucket.getSlotType(slot);
    return held && held.getElementType() == dtype;
  };
  if (!hasDtype(Slot::Value) && !hasDtype(Slot::Compute))
    return emitOpError("expected the dtype of slot value or compute of ")
           << getBucketAttr() << ", got " << type;
  if (LayoutAttr layout = getLayout(type))
    for (AxisKindAttr axis : layout.getAxes())
      if (axis.getKind() == Kind::Shard || axis.getKind() == Kind::Partial)
        return emitOpError("expected a replicated or varying value on axis '")
               << axis.getAxis().getValue() << "', got " << type;
  return success();
}

/// Checks a packed gradient on one axis: of states that ranks share it is a
/// partial sum, of states of its own a rank has the whole gradient.
static LogicalResult verifyPacked(PackOp op, Members &members,
                                  AxisAttr rankAxis) {
  StringRef axis = rankAxis.getName();
  Kind held = members.getStateKind(axis);
  for (Value member : op.getMembers()) {
    Kind kind = getKind(member.getType(), axis);
    if (kind == Kind::Partial || (kind == Kind::Shard && kind != held))
      return op.emitOpError("expected replicated or varying members on axis '")
             << axis << "', got " << member.getType();
  }
  Kind expected =
      held == Kind::Replicated ? dual(held, rankAxis.getRole()) : Kind::Varying;
  if (getKind(op.getResult().getType(), axis) != expected)
    return op.emitOpError("expected a contribution that is ")
           << stringifyKind(expected) << " on axis '" << axis << "', got "
           << op.getResult().getType();
  return success();
}

LogicalResult PackOp::verifySymbolUses(SymbolTableCollection &symbols) {
  FailureOr<Members> members =
      verifyMembers(*this, getBucketAttr(), getResult().getType(),
                    getMembers().getTypes(), symbols);
  if (failed(members))
    return failure();
  for (AxisAttr axis : members->mesh.getRankAxes())
    if (failed(verifyPacked(*this, *members, axis)))
      return failure();
  return success();
}

LogicalResult RelabelOp::verify() {
  if (withLayout(getValue().getType(), {}) !=
      withLayout(getResult().getType(), {}))
    return emitOpError("expected only kinds to differ, got ")
           << getValue().getType() << " and " << getResult().getType();
  return success();
}
