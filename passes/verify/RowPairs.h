//===- RowPairs.h - Which rows and gradients make the gradient of a weight
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef PIPER_PASSES_VERIFY_ROWPAIRS_H
#define PIPER_PASSES_VERIFY_ROWPAIRS_H

#include "passes/support/ValueNumbers.h"

#include "llvm/ADT/DenseSet.h"

namespace piper {

/// What weights of experts multiply, by number: the gradient of one is a sum
/// over these rows, and over gradients of what it makes of them. What no weight
/// multiplies may be anything, as rows that are kept in fewer bits.
class RowPairs {
public:
  explicit RowPairs(ValueNumbers &numbers) : numbers(numbers) {}

  /// Notes an op, whose results have numbers.
  void add(mlir::Operation *op);

  /// Fails if a gradient is a sum over what goes with other weights alone.
  mlir::LogicalResult check(GradOp grad) const;

private:
  /// What is known of one weight, or of all of them.
  struct Operands {
    llvm::DenseSet<unsigned> rows, gradients;
  };

  ValueNumbers &numbers;
  llvm::DenseMap<unsigned, mlir::Attribute> states; // that are read
  llvm::DenseMap<mlir::Attribute, Operands> own;    // by state
  Operands all;
  llvm::DenseMap<unsigned, TorchOp> sums; // over rows, by number of the result
};

} // namespace piper

#endif // PIPER_PASSES_VERIFY_ROWPAIRS_H
