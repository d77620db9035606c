//===- RowKinds.h - What is known of rows of experts, and of their counts
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef PIPER_PASSES_VERIFY_ROWKINDS_H
#define PIPER_PASSES_VERIFY_ROWKINDS_H

#include "dialect/Piper.h"
#include "llvm/ADT/SmallVector.h"

#include <optional>
#include <string>

namespace piper {

/// What is known of a value, and of which counts, by number.
struct RowKind {
  enum What { Unknown, Order, Counts, Received, Sizes, Sorted, Came, Grouped };
  What what = Unknown;
  unsigned of = 0;
  /// Of rows whether experts have multiplied them; of sorted ones whether they
  /// came back.
  bool isDone = false;

  bool operator==(const RowKind &other) const {
    return what == other.what && of == other.of;
  }
  /// Whether it is rows of which only the run knows the number.
  bool isReceivedRows() const { return what == Came || what == Grouped; }
  bool isRows() const { return what == Sorted || isReceivedRows(); }
};

/// A kind in words: `rows as they came`.
llvm::StringRef describe(RowKind kind);

/// Two kinds in words: `sizes, got others`.
std::string explain(RowKind wanted, RowKind got);

/// What an op on rows takes and makes. If no operand orders them, the last one
/// counts them.
struct RowOp {
  RowKind::What takes = RowKind::Unknown, makes = RowKind::Unknown;
  llvm::SmallVector<unsigned> rows; // operands that are of the kind it takes
  std::optional<unsigned> order;    // the operand that orders them
  // Of ops that backward passes alone compute:
  std::optional<unsigned> gradient = std::nullopt; // the operand that is one
  std::optional<unsigned> saved =
      std::nullopt; // and what the forward pass made

  /// Whether an op, whatever its name says, has these operands and a result.
  bool fits(TorchOp op) const;
};

/// Null if an op is none on rows.
std::optional<RowOp> getRowOp(TorchOp op);

/// Whether an op multiplies rows by the weights of their experts.
bool isProductOfExperts(TorchOp op);

/// Whether an op is the gradient of another one of torch's, and its first
/// operand is a gradient, while others the other one has taken or made. A few,
/// as `linear_backward`, have the gradient elsewhere: of these it is false.
bool isBackwardOp(TorchOp op);

} // namespace piper

#endif // PIPER_PASSES_VERIFY_ROWKINDS_H
