//===- Partition.h - Compute with the parts of states that a rank holds
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef PIPER_PASSES_OUTLINE_PARTITION_H
#define PIPER_PASSES_OUTLINE_PARTITION_H

#include "dialect/Piper.h"
#include "mlir/IR/SymbolTable.h"

namespace piper {

/// Lets ranks along a manual axis, which have different tokens, hold different
/// experts: rows are sent to the ranks of their experts, and back.
mlir::LogicalResult partitionExperts(StepOp step, AxisAttr axis,
                                     DoShardOp shard,
                                     mlir::SymbolTable &symbols);

/// Lets ranks along an auto axis, which have the same tokens, compute parts of
/// what ops make: each value is whole, a part of one dim, or an unfinished sum.
/// With a sequence directive, unless it is null, sums are left as parts of the
/// sequence.
mlir::LogicalResult partitionTensors(StepOp step, AxisAttr axis,
                                     DoShardOp shard, DoSequenceOp sequence,
                                     mlir::SymbolTable &symbols);

/// Lets ranks along a manual axis have parts of the sequence: attention gathers
/// keys and values. Fails if another op sees several positions at once.
mlir::LogicalResult partitionSequence(StepOp step, AxisAttr axis,
                                      DoSequenceOp sequence,
                                      mlir::SymbolTable &symbols);

/// Lets what ranks exchange, which partitioning may have put into the preamble,
/// belong to the chunks that use it, and take what these make.
void tagExchanges(StepOp step);

/// An error about an op that computes with what ranks hold parts of, with the
/// directive that says so; whoever calls it goes on with "but ...".
mlir::InFlightDiagnostic emitPartError(TorchOp op, AxisAttr axis,
                                       mlir::Operation *shard);

/// A rank's position along the axis, as a tensor of one element: its part of
/// the constant 0, 1, 2 and so on, read at the start of the step.
mlir::Value readRankIndex(StepOp step, AxisAttr axis,
                          mlir::SymbolTable &symbols);

} // namespace piper

#endif // PIPER_PASSES_OUTLINE_PARTITION_H
