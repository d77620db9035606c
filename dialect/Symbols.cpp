//===- Symbols.cpp - Checks of the symbols that ops name
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "dialect/Symbols.h"

using namespace mlir;
using namespace piper;

FailureOr<MeshOp> piper::lookupMesh(Operation *op) {
  if (MeshOp mesh = findMesh(op))
    return mesh;
  return op->emitOpError("expected a mesh in the module");
}

FailureOr<AxisAttr> piper::lookupRankAxis(Operation *op, MeshOp mesh,
                                          StringAttr name) {
  AxisAttr axis = mesh.lookupAxis(name);
  if (axis && axis.getRole() != AxisRole::Unrolled)
    return axis;
  return op->emitOpError("expected a manual or auto axis of the mesh, got ")
         << name;
}

FailureOr<BucketOp> piper::lookupBucket(Operation *op, FlatSymbolRefAttr name,
                                        SymbolTableCollection &symbols) {
  if (auto bucket = symbols.lookupNearestSymbolFrom<BucketOp>(op, name))
    return bucket;
  return op->emitOpError("expected a bucket, got ") << name;
}

FailureOr<RankedTensorType> piper::lookupSlot(Operation *op,
                                              FlatSymbolRefAttr name, Slot slot,
                                              SymbolTableCollection &symbols) {
  FailureOr<BucketOp> bucket = lookupBucket(op, name, symbols);
  if (failed(bucket))
    return failure();
  if (RankedTensorType type = bucket->getSlotType(slot))
    return type;
  return op->emitOpError("expected a bucket with slot ")
         << stringifySlot(slot) << ", got " << name;
}

LogicalResult piper::verifySlot(Operation *op, FlatSymbolRefAttr name,
                                Slot slot, Type type,
                                SymbolTableCollection &symbols) {
  FailureOr<RankedTensorType> wanted = lookupSlot(op, name, slot, symbols);
  if (failed(wanted))
    return failure();
  if (type != *wanted)
    return op->emitOpError("expected ")
           << *wanted << ", the type of slot " << stringifySlot(slot) << " of "
           << name << ", got " << type;
  return success();
}

LogicalResult piper::verifyPlan(Operation *op, FlatSymbolRefAttr mesh,
                                FlatSymbolRefAttr order,
                                SymbolTableCollection &symbols) {
  if (!symbols.lookupNearestSymbolFrom<MeshOp>(op, mesh))
    return op->emitOpError("expected a mesh, got ") << mesh;
  if (order && !symbols.lookupNearestSymbolFrom<ScheduleOp>(op, order))
    return op->emitOpError("expected a schedule, got ") << order;
  return success();
}

LogicalResult piper::verifyStream(Operation *op, FlatSymbolRefAttr name,
                                  SymbolTableCollection &symbols) {
  if (!name || isa_and_nonnull<StreamOp, CommOp>(
                   symbols.lookupNearestSymbolFrom(op, name)))
    return success();
  return op->emitOpError("expected a stream or communicator, got ") << name;
}
