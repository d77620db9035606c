//===- SymbolOps.cpp - Rules of meshes, states and buckets
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "dialect/Symbols.h"

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

SmallVector<AxisAttr> MeshOp::getRankAxes() {
  SmallVector<AxisAttr> axes;
  for (auto axis : getAxes().getAsRange<AxisAttr>())
    if (axis.getRole() != AxisRole::Unrolled)
      axes.push_back(axis);
  return axes;
}

LayoutAttr MeshOp::getRankLayout(Kind kind) {
  SmallVector<AxisKindAttr> kinds;
  for (AxisAttr axis : getRankAxes())
    kinds.push_back(AxisKindAttr::get(
        getContext(), axis.getName(),
        axis.getRole() == AxisRole::Auto ? Kind::Replicated : kind, 0));
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
      (getFrozen() || getReplicationAttr() || getOptimizationAttr()))
    return emitOpError("expected only a parameter to be frozen, replicated or "
                       "optimized, got a ")
           << stringifyStateKind(getKind());
  llvm::SmallDenseSet<Attribute> names = {getSymNameAttr()};
  for (Attribute alias :
       getAliases() ? getAliases()->getValue() : ArrayRef<Attribute>())
    if (!names.insert(alias).second)
      return emitOpError("expected each name once, got ") << alias << " twice";
  if (LayoutAttr layout = getLayoutAttr())
    return layout.verifyEncoding(getTensorType().getShape(),
                                 getTensorType().getElementType(),
                                 [&] { return emitOpError(); });
  return success();
}

LogicalResult StateOp::verifySymbolUses(SymbolTableCollection &) {
  LayoutAttr layout = getLayoutAttr();
  if (!layout)
    return success();
  FailureOr<MeshOp> mesh = lookupMesh(*this);
  if (failed(mesh))
    return failure();
  // Parts may have padding along one auto axis.
  SmallVector<int64_t> ranks(getTensorType().getRank(), 1);
  SmallVector<bool> isPadded(ranks.size());
  for (AxisKindAttr kind : layout.getAxes()) {
    FailureOr<AxisAttr> axis = lookupRankAxis(*this, *mesh, kind.getAxis());
    if (failed(axis))
      return failure();
    if (kind.getKind() != Kind::Shard)
      continue;
    isPadded[kind.getDim()] =
        axis->getRole() == AxisRole::Auto && ranks[kind.getDim()] == 1;
    ranks[kind.getDim()] *= axis->getSize();
  }
  for (auto [dim, size] : llvm::enumerate(getTensorType().getShape()))
    if (size % ranks[dim] != 0 && !isPadded[dim])
      return emitOpError("expected dim ")
             << dim << " to be a multiple of the " << ranks[dim]
             << " ranks that shard it, got " << size;
  return success();
}

//===----------------------------------------------------------------------===//
// Bucket
//===----------------------------------------------------------------------===//

/// How many ranks share out a slot of this type.
static int64_t countShards(RankedTensorType type, MeshOp mesh) {
  int64_t ranks = 1;
  if (LayoutAttr layout = getLayout(type))
    for (AxisKindAttr kind : layout.getAxes())
      if (AxisAttr axis = mesh.lookupAxis(kind.getAxis());
          axis && kind.getKind() == Kind::Shard)
        ranks *= axis.getSize();
  return ranks;
}

RankedTensorType BucketOp::getSlotType(Slot slot) {
  std::optional<Type> type = slot == Slot::Value     ? getValue()
                             : slot == Slot::Compute ? getCompute()
                                                     : getGrad();
  return type ? cast<RankedTensorType>(*type) : RankedTensorType();
}

SmallVector<StringAttr> BucketOp::getShardAxes() {
  SmallVector<StringAttr> axes;
  if (LayoutAttr layout = piper::getLayout(getValue()))
    for (AxisKindAttr axis : layout.getAxes())
      if (axis.getKind() == Kind::Shard)
        axes.push_back(axis.getAxis());
  return axes;
}

int64_t BucketOp::getWholeSize(int64_t elements, MeshOp mesh) {
  int64_t shards = countShards(getSlotType(Slot::Value), mesh);
  return (elements + shards - 1) / shards * shards;
}

LogicalResult BucketOp::verify() {
  if (getMembers().empty())
    return emitOpError("expected at least one member");
  for (Slot slot : {Slot::Value, Slot::Compute, Slot::Grad})
    if (RankedTensorType type = getSlotType(slot); type && type.getRank() != 1)
      return emitOpError("expected slot ")
             << stringifySlot(slot) << " to be flat, got " << type;
  llvm::SmallDenseSet<Attribute> seen;
  for (Attribute member : getMembers())
    if (!seen.insert(member).second)
      return emitOpError("expected each member once, got ")
             << member << " twice";
  return success();
}

/// Checks that no two buckets of a module have a member in common.
static LogicalResult verifyOneBucketEach(ModuleOp module) {
  llvm::DenseMap<Attribute, BucketOp> owners;
  for (auto bucket : module.getOps<BucketOp>())
    for (Attribute member : bucket.getMembers()) {
      auto [owner, fresh] = owners.try_emplace(member, bucket);
      if (fresh)
        continue;
      InFlightDiagnostic error =
          bucket.emitOpError("expected each state in one bucket, got ")
          << member << " in two";
      error.attachNote(owner->second.getLoc()) << "the other bucket is here";
      return error;
    }
  return success();
}

/// Checks that a bucket has states as members, of one dtype and layout, and
/// returns how many elements a rank holds of them.
static FailureOr<int64_t> countElements(BucketOp bucket, MeshOp mesh,
                                        SymbolTableCollection &symbols) {
  int64_t elements = 0;
  StateOp first;
  for (auto member : bucket.getMembers().getAsRange<FlatSymbolRefAttr>()) {
    auto state = symbols.lookupNearestSymbolFrom<StateOp>(bucket, member);
    if (!state)
      return bucket.emitOpError("expected members to be states, got ")
             << member;
    if (!first)
      first = state;
    if (state.getTensorType().getElementType() !=
            first.getTensorType().getElementType() ||
        state.getLayoutAttr() != first.getLayoutAttr())
      return bucket.emitOpError("expected members of one dtype and layout, "
                                "unlike @")
             << first.getSymName() << " and " << member;
    elements += numElements(localShape(state, mesh));
  }
  return elements;
}

LogicalResult BucketOp::verifySymbolUses(SymbolTableCollection &symbols) {
  FailureOr<MeshOp> mesh = lookupMesh(*this);
  if (failed(mesh))
    return failure();
  FailureOr<int64_t> elements = countElements(*this, *mesh, symbols);
  if (failed(elements))
    return failure();
  for (Slot slot : {Slot::Value, Slot::Compute, Slot::Grad}) {
    RankedTensorType type = getSlotType(slot);
    if (!type)
      continue;
    int64_t whole = getWholeSize(*elements, *mesh);
    int64_t shards = countShards(type, *mesh);
    int64_t size = (whole + shards - 1) / shards;
    if (type.getDimSize(0) != size)
      return emitOpError("expected slot ")
             << stringifySlot(slot) << " to hold " << size
             << " elements per rank, got " << type;
  }
  // Buckets stand side by side: the first of a row checks for all of them.
  if (isa_and_nonnull<BucketOp>((*this)->getPrevNode()))
    return success();
  return verifyOneBucketEach((*this)->getParentOfType<ModuleOp>());
}

//===----------------------------------------------------------------------===//
// Communicators
//===----------------------------------------------------------------------===//

LogicalResult CommOp::verifySymbolUses(SymbolTableCollection &symbols) {
  FailureOr<MeshOp> mesh = lookupMesh(*this);
  if (failed(mesh))
    return failure();
  for (auto name : getAxes().getAsRange<StringAttr>())
    if (failed(lookupRankAxis(*this, *mesh, name)))
      return failure();
  if (!symbols.lookupNearestSymbolFrom<StreamOp>(*this, getStreamAttr()))
    return emitOpError("expected a stream, got ") << getStreamAttr();
  return success();
}
