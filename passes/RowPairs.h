//===- RowPairs.h - Which rows of a backward pass go with which of the forward
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef PIPER_PASSES_ROWPAIRS_H
#define PIPER_PASSES_ROWPAIRS_H

#include "passes/ValueNumbers.h"

#include "llvm/ADT/DenseSet.h"

namespace piper {

/// What ops on rows of experts took in a forward pass, so that their gradients
/// take the same, by number. A value that the forward pass has not made, as
/// where one is kept in fewer bits, may be any.
class RowPairs {
public:
  explicit RowPairs(ValueNumbers &numbers) : numbers(numbers) {}

  /// Notes an op, whose results have numbers.
  void add(mlir::Operation *op, bool isInBackward);

  /// Notes an op of the forward pass on rows that came by these counts.
  void addForward(TorchOp op, unsigned counts);

  /// Fails if the gradient of an op takes as operand `saved` what other ops of
  /// the forward pass take or make, and none of its own.
  mlir::LogicalResult checkSaved(TorchOp op, unsigned counts,
                                 unsigned saved) const;

  /// Fails if the gradient of a weight is a sum over rows that the weight did
  /// not multiply, or over gradients of rows that others make.
  mlir::LogicalResult checkGradient(GradOp grad) const;

private:
  using Numbers = llvm::DenseSet<unsigned>;

  void addProduct(TorchOp op, bool isInBackward);

  ValueNumbers &numbers;
  Numbers made; // by the forward pass
  llvm::DenseMap<std::pair<llvm::StringRef, unsigned>, Numbers>
      touched;                                      // by name of op and counts
  llvm::DenseMap<unsigned, mlir::Attribute> states; // that are read
  llvm::DenseMap<mlir::Attribute, Numbers> rows;    // that a state multiplies
  llvm::DenseMap<mlir::Attribute, Numbers> gradients; // of what it makes
  Numbers ownGradients;                               // of any state
  llvm::DenseMap<unsigned, TorchOp> sums; // over rows, by number of the result
};

} // namespace piper

#endif // PIPER_PASSES_ROWPAIRS_H
