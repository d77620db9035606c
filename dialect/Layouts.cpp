//===- Layouts.cpp - What kinds on axes mean for types
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "dialect/Layouts.h"

using namespace mlir;
using namespace piper;

LayoutAttr piper::getLayout(Type type) {
  auto tensor = dyn_cast<RankedTensorType>(type);
  return tensor ? dyn_cast_or_null<LayoutAttr>(tensor.getEncoding())
                : LayoutAttr();
}

Kind piper::getKind(Type type, StringRef axis) {
  LayoutAttr layout = getLayout(type);
  return layout ? layout.getKind(axis) : Kind::Replicated;
}

RankedTensorType piper::withLayout(Type type, LayoutAttr layout) {
  auto tensor = cast<RankedTensorType>(type);
  return RankedTensorType::get(tensor.getShape(), tensor.getElementType(),
                               layout);
}

RankedTensorType piper::withKinds(Type type, LayoutAttr kinds) {
  LayoutAttr old = getLayout(type);
  bool isBound = old && old.getBound();
  if (!kinds && !isBound)
    return withLayout(type, LayoutAttr());
  return withLayout(
      type, LayoutAttr::get(type.getContext(),
                            kinds ? kinds.getAxes() : ArrayRef<AxisKindAttr>(),
                            isBound ? old.getBound() : 0,
                            isBound ? old.getExpect() : 0));
}

RankedTensorType piper::kernelView(Type type, Type like) {
  LayoutAttr layout = getLayout(type), kept = getLayout(like);
  if (!layout || !kept)
    return withLayout(type, LayoutAttr());
  SmallVector<AxisKindAttr> axes;
  for (AxisKindAttr axis : layout.getAxes())
    if (llvm::any_of(kept.getAxes(), [&](AxisKindAttr other) {
          return other.getAxis() == axis.getAxis();
        }))
      axes.push_back(axis);
  return withLayout(type, LayoutAttr::get(type.getContext(), axes,
                                          kept.getBound(), kept.getExpect()));
}

LayoutAttr piper::dual(LayoutAttr layout, MeshOp mesh) {
  for (AxisKindAttr axis :
       layout ? layout.getAxes() : ArrayRef<AxisKindAttr>()) {
    AxisAttr known = mesh ? mesh.lookupAxis(axis.getAxis()) : AxisAttr();
    layout = layout.withKind(
        axis.getAxis(),
        dual(axis.getKind(), known ? known.getRole() : AxisRole::Manual),
        axis.getDim());
  }
  return layout;
}

Kind piper::dual(Kind kind, AxisRole role) {
  if (role == AxisRole::Auto)
    return kind;
  if (kind == Kind::Replicated)
    return Kind::Partial;
  return kind == Kind::Partial ? Kind::Replicated : kind;
}

MeshOp piper::findMesh(Operation *op) {
  auto module = dyn_cast<ModuleOp>(op);
  if (!module)
    module = op->getParentOfType<ModuleOp>();
  if (!module)
    return {};
  auto meshes = module.getOps<MeshOp>();
  return meshes.empty() ? MeshOp() : *meshes.begin();
}

int64_t piper::product(MeshOp mesh, ArrayAttr axes) {
  int64_t size = 1;
  for (auto name : axes.getAsRange<StringAttr>())
    if (AxisAttr axis = mesh.lookupAxis(name))
      size *= axis.getSize();
  return size;
}

SmallVector<int64_t> piper::localShape(StateOp state, MeshOp mesh) {
  SmallVector<int64_t> shape(state.getTensorType().getShape());
  if (LayoutAttr layout = state.getLayoutAttr())
    for (AxisKindAttr kind : layout.getAxes())
      if (AxisAttr axis = mesh.lookupAxis(kind.getAxis());
          axis && kind.getKind() == Kind::Shard)
        shape[kind.getDim()] =
            llvm::divideCeil(shape[kind.getDim()], axis.getSize());
  return shape;
}

int64_t piper::numElements(ArrayRef<int64_t> shape) {
  int64_t count = 1;
  for (int64_t size : shape)
    count *= size;
  return count;
}

int64_t piper::getNumBytes(Type type) {
  auto tensor = cast<RankedTensorType>(type);
  Type element = tensor.getElementType();
  int64_t parts = 1;
  if (auto complex = dyn_cast<ComplexType>(element)) {
    element = complex.getElementType();
    parts = 2;
  }
  int64_t bits = std::max(8u, element.getIntOrFloatBitWidth());
  SmallVector<int64_t> shape(tensor.getShape());
  for (int64_t &size : shape)
    if (ShapedType::isDynamic(size))
      size = getLayout(type).getExpect();
  return numElements(shape) * parts * bits / 8;
}

LayoutAttr piper::mixKinds(ValueRange operands, LayoutAttr replicated) {
  LayoutAttr layout = replicated;
  for (AxisKindAttr axis : replicated.getAxes())
    for (Value operand : operands)
      if (getKind(operand.getType(), axis.getAxis()) != Kind::Replicated)
        layout = layout.withKind(axis.getAxis(), Kind::Varying);
  return layout;
}
