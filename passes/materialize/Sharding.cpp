//===- Sharding.cpp - How ranks share out buckets
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

// ZeRO (Rajbhandari et al., 2020) as types: what a slot of a bucket is on each
// axis says which collectives its values need. Nothing else knows the stages.

#include "passes/materialize/Sharding.h"

#include "passes/support/Streams.h"

#include "dialect/Layouts.h"

using namespace mlir;

namespace piper {

//===----------------------------------------------------------------------===//
// Slots
//===----------------------------------------------------------------------===//

/// The same with another kind wherever it is `from`.
static LayoutAttr turn(LayoutAttr layout, Kind from, Kind to) {
  if (!layout)
    return layout;
  for (AxisKindAttr axis : layout.getAxes())
    if (axis.getKind() == from)
      layout = layout.withKind(axis.getAxis(), to);
  return layout;
}

LayoutAttr getHeldLayout(StateOp state, MeshOp mesh) {
  LayoutAttr own = state.getLayoutAttr();
  return own ? turn(own, Kind::Shard, Kind::Varying)
             : mesh.getRankLayout(Kind::Replicated);
}

SlotTypes getSlotTypes(ReplicationAttr replication, MeshOp mesh,
                       LayoutAttr whole, int64_t elements, SlotDtypes dtypes) {
  LayoutAttr partial = dual(whole, mesh);
  int64_t zero = replication ? replication.getZero() : 0, shards = 1;
  bool each = replication && replication.reducesEach();
  LayoutAttr shard = whole;
  if (zero > 0)
    for (auto axis : replication.getShard().getAsRange<StringAttr>()) {
      shard = shard.withKind(axis, Kind::Shard);
      shards *= mesh.lookupAxis(axis).getSize();
    }
  int64_t part = (elements + shards - 1) / shards;
  auto type = [&](LayoutAttr layout, Type element) {
    return RankedTensorType::get(layout == shard ? part : part * shards,
                                 element, layout);
  };
  bool isGathered = replication && replication.gathersInStep();
  bool isDerived = (zero > 0 && !isGathered) || dtypes.master != dtypes.state;
  return {type(shard, dtypes.master),
          isDerived ? type(isGathered ? shard : whole, dtypes.state)
                    : RankedTensorType(),
          type(!each      ? partial
               : zero > 1 ? shard
                          : whole,
               dtypes.grad)};
}

ReplicationAttr getReplication(BucketOp bucket, SymbolTable &symbols) {
  auto member = cast<FlatSymbolRefAttr>(bucket.getMembers()[0]);
  return symbols.lookup<StateOp>(member.getValue()).getReplicationAttr();
}

Slot getReadSlot(BucketOp bucket) {
  return bucket.getCompute() ? Slot::Compute : Slot::Value;
}

RankedTensorType getWholeType(BucketOp bucket, MeshOp mesh) {
  RankedTensorType type = bucket.getSlotType(getReadSlot(bucket));
  int64_t shards = 1;
  for (Attribute axis : findAxes(type, Kind::Shard))
    shards *= mesh.lookupAxis(cast<StringAttr>(axis)).getSize();
  return RankedTensorType::get(
      type.getDimSize(0) * shards, type.getElementType(),
      turn(getLayout(type), Kind::Shard, Kind::Replicated));
}

SmallVector<Attribute> findAxes(Type type, Kind kind) {
  SmallVector<Attribute> axes;
  if (LayoutAttr layout = getLayout(type))
    for (AxisKindAttr axis : layout.getAxes())
      if (axis.getKind() == kind)
        axes.push_back(axis.getAxis());
  return axes;
}

//===----------------------------------------------------------------------===//
// Collectives
//===----------------------------------------------------------------------===//

Value Exchange::gather(Location loc, Value shard, DenseI64ArrayAttr at) {
  SmallVector<Attribute> axes = findAxes(shard.getType(), Kind::Shard);
  if (axes.empty())
    return shard;
  auto type = cast<RankedTensorType>(shard.getType());
  int64_t size = type.getDimSize(0);
  for (Attribute axis : axes)
    size *= mesh.lookupAxis(cast<StringAttr>(axis)).getSize();
  auto whole = RankedTensorType::get(
      size, type.getElementType(),
      turn(getLayout(type), Kind::Shard, Kind::Replicated));
  auto first = cast<StringAttr>(axes.front());
  auto stream = builder.getStringAttr(first.getValue() + ".gather");
  return AllGatherOp::create(builder, loc, TypeRange(whole), shard, at,
                             builder.getArrayAttr(axes), StringAttr(),
                             StringAttr(), IntegerAttr(),
                             declareStream(symbols, stream), ValueRange(),
                             /*dim=*/0)
      .getResults()
      .front();
}

Value Exchange::reduce(Location loc, Value partial, RankedTensorType slot,
                       DenseI64ArrayAttr at) {
  Value value = scatter(loc, partial, slot, at);
  SmallVector<Attribute> axes = findAxes(value.getType(), Kind::Partial);
  if (axes.empty())
    return value;
  LayoutAttr layout = getLayout(value.getType());
  for (Attribute axis : axes)
    layout = layout.withKind(cast<StringAttr>(axis), Kind::Replicated);
  return AllReduceOp::create(
             builder, loc, TypeRange(withLayout(value.getType(), layout)),
             value, at, builder.getArrayAttr(axes), StringAttr(), StringAttr(),
             IntegerAttr(),
             declareStream(symbols, cast<StringAttr>(axes.front())),
             ValueRange())
      .getResults()
      .front();
}

Value Exchange::scatter(Location loc, Value partial, RankedTensorType slot,
                        DenseI64ArrayAttr at) {
  SmallVector<Attribute> axes = findAxes(slot, Kind::Shard);
  if (axes.empty())
    return partial;
  LayoutAttr layout = getLayout(partial.getType());
  for (Attribute axis : axes)
    layout = layout.withKind(cast<StringAttr>(axis), Kind::Shard);
  auto dtype = cast<RankedTensorType>(partial.getType()).getElementType();
  auto type = RankedTensorType::get(slot.getShape(), dtype, layout);
  return ReduceScatterOp::create(
             builder, loc, TypeRange(type), partial, at,
             builder.getArrayAttr(axes), StringAttr(), StringAttr(),
             IntegerAttr(),
             declareStream(symbols, cast<StringAttr>(axes.front())),
             ValueRange(), /*dim=*/0)
      .getResults()
      .front();
}

Value Exchange::convert(Location loc, Value value, RankedTensorType slot,
                        IntegerAttr at) {
  auto type = cast<RankedTensorType>(value.getType());
  if (type.getElementType() == slot.getElementType())
    return value;
  auto wanted = RankedTensorType::get(type.getShape(), slot.getElementType(),
                                      type.getEncoding());
  return ConvertOp::create(builder, loc, wanted, value, at, ValueRange());
}

} // namespace piper
