//===- ChunkBuilder.h - Turn the ops of one chunk into a kernel and a chunk
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef PIPER_PASSES_SUPPORT_CHUNKBUILDER_H
#define PIPER_PASSES_SUPPORT_CHUNKBUILDER_H

#include "dialect/Piper.h"
#include "llvm/ADT/MapVector.h"
#include "llvm/ADT/SetVector.h"
#include "llvm/ADT/StringMap.h"

namespace piper {

/// Whether an op exchanges values between ranks within a chunk, which its label
/// names, or waits for their sizes: in a step it stands between the runs of the
/// chunk's pieces.
bool isExchange(mlir::Operation *op);

/// The run that made a value, perhaps before ranks exchanged or converted it;
/// or null.
RunOp findRun(mlir::Value value);

/// A run in whose cell an exchange is: the one that made what is exchanged; or,
/// if that is of pass F, and the backward pass of its chunk alone uses what
/// comes, the first run that does. So nothing is held from the one to the
/// other.
RunOp findRunOfCell(mlir::Operation *exchange);

/// The value that a chain of views looks at: an input, a read, a tangent or the
/// result of an op that is no view.
mlir::Value getRoot(mlir::Value value);

/// A copy of a value in a kernel: contiguous, and an alias of nothing.
mlir::Value copyValue(mlir::Value value, mlir::OpBuilder &builder,
                      bool hasRule);

/// Kernels by content: equal computations are one kernel.
class KernelTable {
public:
  explicit KernelTable(mlir::ModuleOp module);

  /// Names `kernel` by its content; if an equal one exists, erases `kernel` and
  /// returns that one.
  KernelOp intern(KernelOp kernel);

  /// Whether ops of kernels keep their rules.
  bool keepsRules() const { return hasRules; }

private:
  mlir::ModuleOp module;
  bool hasRules;
  llvm::StringMap<KernelOp> kernels;
};

/// The ops of one chunk in one pass of the captured step, and what they become.
struct Outlined {
  std::string name; // of the chunk, such as "layer.0"
  Pass pass;
  size_t piece; // of the chunk, if it is cut where ranks exchange values
  llvm::SmallVector<mlir::Operation *> ops; // torch and grad ops, in order

  llvm::SmallVector<mlir::Value> operands; // of the chunk: roots made elsewhere
  llvm::SmallVector<mlir::Value> results;  // of the chunk: roots used elsewhere
  ChunkOp chunk;
  mlir::Operation *exchange = nullptr; // which is no chunk
};

/// Builds the kernel and the chunk of `outlined`. `results` must be set;
/// `operands` and `chunk` are filled in. Views of values made elsewhere are
/// rebuilt inside; results that would alias are copied.
void buildChunk(Outlined &outlined, mlir::StringRef symbol,
                KernelTable &kernels, mlir::OpBuilder &builder);

} // namespace piper

#endif // PIPER_PASSES_SUPPORT_CHUNKBUILDER_H
