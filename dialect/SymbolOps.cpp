//===- SymbolOps.cpp - Rules of meshes, states and buckets
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "dialect/Layouts.h"

using namespace mlir;
using namespace piper;

//===----------------------------------------------------------------------===//
// Mesh
//===----------------------------------------------------------------------===//

LogicalResult MeshOp::verify() {
  llvm::SmallDenseSet<Attribute> names;
  int64_t unrolled = 0;
  for (auto axis : getAxes().getAsRange<AxisAttr>()) {
    if (!names.insert(axis.getName()).second)
      return emitOpError("expected distinct axis names, got '")
             << axis.getName().getValue() << "' twice";
    unrolled += axis.getRole() == AxisRole::Unrolled;
  }
  if (unrolled > 1)
    return emitOpError("expected at most one unrolled axis, got ") << unrolled;
  if (!getViews())
    return success();
  for (NamedAttribute view : *getViews()) {
    auto factors = dyn_cast<ArrayAttr>(view.getValue());
    if (!factors)
      return emitOpError("expected a list of axes for view '")
             << view.getName().getValue() << "'";
    for (Attribute factor : factors)
      if (!names.contains(factor))
        return emitOpError("expected the factors of view '")
               << view.getName().getValue() << "' to be axes, got " << factor;
    if (names.contains(view.getName()))
      return emitOpError("expected a view to differ from every axis, got '")
             << view.getName().getValue() << "'";
  }
  return success();
}

SmallVector<AxisAttr> MeshOp::getAxesWithRole(AxisRole role) {
  SmallVector<AxisAttr> axes;
  for (auto axis : getAxes().getAsRange<AxisAttr>())
    if (axis.getRole() == role)
      axes.push_back(axis);
  return axes;
}

AxisAttr MeshOp::lookupAxis(StringRef name) {
  for (auto axis : getAxes().getAsRange<AxisAttr>())
    if (axis.getName().getValue() == name)
      return axis;
  return {};
}

AxisAttr MeshOp::getUnrolledAxis() {
  SmallVector<AxisAttr> axes = getAxesWithRole(AxisRole::Unrolled);
  return axes.empty() ? AxisAttr() : axes.front();
}

int64_t MeshOp::getNumCoordinates() {
  AxisAttr axis = getUnrolledAxis();
  return axis ? axis.getSize() : 1;
}

LayoutAttr MeshOp::getManualLayout(Kind kind) {
  SmallVector<AxisKindAttr> kinds;
  for (AxisAttr axis : getAxesWithRole(AxisRole::Manual))
    kinds.push_back(AxisKindAttr::get(getContext(), axis.getName(), kind, 0));
  return kinds.empty() ? LayoutAttr()
                       : LayoutAttr::get(getContext(), kinds, 0, 0);
}

//===----------------------------------------------------------------------===//
// State
//===----------------------------------------------------------------------===//

LogicalResult StateOp::verify() {
  if (getTensorType().getEncoding())
    return emitOpError("expected the type of the whole tensor, without an "
                       "encoding; the layout is stated apart");
  if (!getTensorType().hasStaticShape())
    return emitOpError("expected a static shape, got ") << getTensorType();
  if (getKind() != StateKind::Parameter &&
      (getFrozen() || getOptimizationAttr()))
    return emitOpError("expected only a parameter to be frozen or optimized, "
                       "got a ")
           << stringifyStateKind(getKind());
  llvm::SmallDenseSet<Attribute> names = {getSymNameAttr()};
  for (Attribute alias :
       getAliases() ? getAliases()->getValue() : ArrayRef<Attribute>())
    if (!names.insert(alias).second)
      return emitOpError("expected each name once, got ") << alias << " twice";
  return success();
}

//===----------------------------------------------------------------------===//
// Bucket
//===----------------------------------------------------------------------===//

RankedTensorType BucketOp::getSlotType(Slot slot) {
  std::optional<Type> type = slot == Slot::Value     ? getValue()
                             : slot == Slot::Compute ? getCompute()
                                                     : getGrad();
  return type ? cast<RankedTensorType>(*type) : RankedTensorType();
}

LogicalResult BucketOp::verify() {
  if (getMembers().empty())
    return emitOpError("expected at least one member");
  for (Slot slot : {Slot::Value, Slot::Compute, Slot::Grad})
    if (RankedTensorType type = getSlotType(slot); type && type.getRank() != 1)
      return emitOpError("expected slot ")
             << stringifySlot(slot) << " to be flat, got " << type;
  return success();
}

/// The number of elements that one rank needs in a slot of this type.
static int64_t slotSize(RankedTensorType type, int64_t elements, MeshOp mesh) {
  int64_t ranks = 1;
  if (LayoutAttr layout = getLayout(type))
    for (AxisKindAttr kind : layout.getAxes())
      if (AxisAttr axis = mesh.lookupAxis(kind.getAxis());
          axis && kind.getKind() == Kind::Shard)
        ranks *= axis.getSize();
  return (elements + ranks - 1) / ranks;
}

LogicalResult BucketOp::verifySymbolUses(SymbolTableCollection &symbols) {
  MeshOp mesh = findMesh(*this);
  if (!mesh)
    return emitOpError("expected a mesh in the module");
  int64_t elements = 0;
  for (auto member : getMembers().getAsRange<FlatSymbolRefAttr>()) {
    auto state = symbols.lookupNearestSymbolFrom<StateOp>(*this, member);
    if (!state)
      return emitOpError("expected members to be states, got ") << member;
    elements += numElements(localShape(state, mesh));
  }
  for (Slot slot : {Slot::Value, Slot::Compute, Slot::Grad}) {
    RankedTensorType type = getSlotType(slot);
    if (!type)
      continue;
    int64_t size = slotSize(type, elements, mesh);
    if (type.getDimSize(0) != size)
      return emitOpError("expected slot ")
             << stringifySlot(slot) << " to hold " << size
             << " elements per rank, got " << type;
  }
  return success();
}
