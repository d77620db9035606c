//===- Verify.h - What must hold of clusters and programs
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef PIPER_PASSES_VERIFY_VERIFY_H
#define PIPER_PASSES_VERIFY_VERIFY_H

#include "dialect/Piper.h"
#include "mlir/IR/BuiltinOps.h"
#include "llvm/ADT/DenseSet.h"
#include "llvm/ADT/MapVector.h"

#include <map>

namespace piper {

/// Values arise where they are used, and every chunk runs once per microbatch,
/// at its home, forward before backward.
mlir::LogicalResult verifyCluster(ClusterOp cluster,
                                  mlir::SymbolTable &symbols);

/// Every contribution to a gradient is added once, and every optimized state is
/// updated once per holder, with its own gradient.
mlir::LogicalResult verifyGradients(ClusterOp cluster,
                                    mlir::SymbolTable &symbols);

/// Runs, which are those of the cluster's step, take what the step says, and
/// exchanges are those of the step.
mlir::LogicalResult verifyDataflow(ClusterOp cluster,
                                   mlir::SymbolTable &symbols);

/// Along auto axes kernels make what types say, by the rules of their ops, and
/// exchanges, gradients and reports get the kind that they need.
mlir::LogicalResult verifyKernels(mlir::ModuleOp module,
                                  mlir::SymbolTable &symbols);

/// In outlined steps rows that ranks exchange have the sizes of counts that
/// they exchanged over the same axes, on the way back swapped, and ops on rows
/// take the counts by which these came.
mlir::LogicalResult verifyRows(mlir::ModuleOp module,
                               mlir::SymbolTable &symbols);

/// Counts and losses are sums over every microbatch, the norm is of every
/// gradient; losses and norm are reported.
mlir::LogicalResult verifyReports(ClusterOp cluster,
                                  mlir::SymbolTable &symbols);

/// The buckets, by name, from whose value something is derived: slot `compute`,
/// or what is gathered from its shards.
using DerivedBuckets = llvm::DenseMap<mlir::Attribute, BucketOp>;
DerivedBuckets findDerivedBuckets(mlir::ModuleOp module);

/// Derived slots are written behind every update, from what it returned; in
/// issue order nothing older is used behind it.
mlir::LogicalResult verifyDerived(ClusterOp cluster,
                                  const DerivedBuckets &derived);
mlir::LogicalResult verifyDerived(ProgramOp program,
                                  const DerivedBuckets &derived);

/// In one program, what crosses streams is awaited, and storage is used by
/// nobody once it is released.
mlir::LogicalResult verifyProgram(ProgramOp program);

/// The instructions of each communicator, by coordinate, in issue order.
using Queues =
    llvm::MapVector<mlir::Attribute,
                    std::map<int64_t, std::vector<mlir::Operation *>>>;
Queues collectQueues(llvm::ArrayRef<ProgramOp> programs);

/// Both ends of every communicator of one cluster's programs agree.
mlir::LogicalResult verifyMessages(llvm::ArrayRef<ProgramOp> programs,
                                   mlir::SymbolTable &symbols);

/// No instructions of one cluster's programs, whose messages agree, wait for
/// each other in a cycle. With `singleQueue` all communication of a rank shares
/// one queue.
mlir::LogicalResult verifyProgress(llvm::ArrayRef<ProgramOp> programs,
                                   bool singleQueue);

/// Communicators that join the same coordinates are issued in one order there.
mlir::LogicalResult verifyIssueOrder(llvm::ArrayRef<ProgramOp> programs);

/// No coordinate is a member of more communicators than the limit.
mlir::LogicalResult verifyCommunicatorCount(mlir::ModuleOp module,
                                            size_t limit);

/// No program has more than `limit` bytes of storages alive at once.
mlir::LogicalResult verifyMemory(mlir::ModuleOp module,
                                 mlir::SymbolTable &symbols, uint64_t limit);

/// Communication of no program holds more than `limit` SMs at once.
mlir::LogicalResult verifyStreams(mlir::ModuleOp module,
                                  mlir::SymbolTable &symbols, uint64_t limit);

/// What a program makes is freed.
mlir::LogicalResult verifyFrees(ProgramOp program);

/// The programs, whose messages agree, do what the cluster says.
mlir::LogicalResult verifyProjection(ClusterOp cluster,
                                     llvm::ArrayRef<ProgramOp> programs,
                                     mlir::SymbolTable &symbols);

/// An error about a cluster or program as a whole, which is not printed along
/// with it.
mlir::InFlightDiagnostic emitContainerError(mlir::Operation *op);

/// An instruction in words: `'piper.run' of @a.0$F for microbatch 0`.
std::string describe(mlir::Operation *op);

/// A result in words: `result 0 of 'piper.run' of @a.0$F for microbatch 0`.
std::string describe(mlir::Value value);

/// The communicator that an instruction occupies; null for compute.
mlir::FlatSymbolRefAttr getCommunicator(mlir::Operation *op);

} // namespace piper

#endif // PIPER_PASSES_VERIFY_VERIFY_H
