//===- Sharding.h - How ranks share out buckets
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef PIPER_PASSES_MATERIALIZE_SHARDING_H
#define PIPER_PASSES_MATERIALIZE_SHARDING_H

#include "dialect/Piper.h"
#include "mlir/IR/Builders.h"
#include "mlir/IR/SymbolTable.h"

namespace piper {

/// The slots of a bucket; null where it has none.
struct SlotTypes {
  mlir::RankedTensorType value, compute, grad;
};

/// The dtypes of a bucket: of its states, of what the optimizer updates, and of
/// its gradient.
struct SlotDtypes {
  mlir::Type state, master, grad;
};

/// The slots of a bucket of `elements`. The replication of its states may be
/// null: then every rank holds it whole. States that are gathered in each step
/// have no slot `compute` but for a master dtype of their own; it is a shard.
///
///   zero  value   compute  grad, reduced once  grad, each contribution
///   0     whole   -        partial             whole
///   1     shard   whole    partial             whole
///   2     shard   whole    partial             shard
///   3     shard   -        partial             shard
/// `held` is what ranks hold of the bucket before that: see getHeldLayout.
SlotTypes getSlotTypes(ReplicationAttr replication, MeshOp mesh,
                       LayoutAttr held, int64_t elements, SlotDtypes dtypes);

/// What a bucket of states is: replicated, and on axes of which ranks hold
/// parts of the states varying, as parts one behind the other are no part of
/// the whole. Null without manual axes.
LayoutAttr getHeldLayout(StateOp state, MeshOp mesh);

/// The replication of a bucket's states, or null.
ReplicationAttr getReplication(BucketOp bucket, mlir::SymbolTable &symbols);

/// The slot that chunks read.
Slot getReadSlot(BucketOp bucket);

/// A bucket as chunks see it: whole.
mlir::RankedTensorType getWholeType(BucketOp bucket, MeshOp mesh);

/// The axes of a type that have a kind, in mesh order.
mlir::SmallVector<mlir::Attribute> findAxes(mlir::Type type, Kind kind);

/// Makes the collectives of buckets, at one coordinate or, in a step, at none.
class Exchange {
public:
  Exchange(mlir::OpBuilder &builder, MeshOp mesh, mlir::SymbolTable &symbols)
      : builder(builder), mesh(mesh), symbols(symbols) {}

  /// The whole of a value of which ranks hold shards.
  mlir::Value gather(mlir::Location loc, mlir::Value shard,
                     mlir::DenseI64ArrayAttr at = {});

  /// The sum of a partial value over the ranks, as `slot` holds it: whole, or a
  /// shard.
  mlir::Value reduce(mlir::Location loc, mlir::Value partial,
                     mlir::RankedTensorType slot,
                     mlir::DenseI64ArrayAttr at = {});

  /// The sum of a partial value over the axes on which `slot` is sharded.
  mlir::Value scatter(mlir::Location loc, mlir::Value partial,
                      mlir::RankedTensorType slot,
                      mlir::DenseI64ArrayAttr at = {});

  /// The same value in the dtype of a slot.
  mlir::Value convert(mlir::Location loc, mlir::Value value,
                      mlir::RankedTensorType slot, mlir::IntegerAttr at = {});

private:
  mlir::OpBuilder &builder;
  MeshOp mesh;
  mlir::SymbolTable &symbols;
};

} // namespace piper

#endif // PIPER_PASSES_MATERIALIZE_SHARDING_H
