//===- RowPositions.h - Rows of experts, of parts of the sequence
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef PIPER_PASSES_SUPPORT_ROWPOSITIONS_H
#define PIPER_PASSES_SUPPORT_ROWPOSITIONS_H

#include "passes/support/KernelKinds.h"

namespace piper {

/// Whether an op is one of those that sort, count or multiply rows of experts.
bool isExpertsOp(TorchOp op);

/// Whether a factor of an op is one of rows that came or of their experts.
/// Ranks get a part of it with counts of its own, as experts are shared out
/// along an axis that has other tokens, and in no other way.
bool isOfRows(TorchOp op, llvm::StringRef factor);

/// What ranks that have parts of the sequence hold of the results of an op on
/// rows of experts. Nothing if its operands do not go together: tokens are
/// parts, rows are those of these tokens, counts are terms, and weights whole.
std::optional<llvm::SmallVector<AxisKind>>
inferRows(TorchOp op, const Rule &rule, llvm::ArrayRef<AxisKind> operands);

} // namespace piper

#endif // PIPER_PASSES_SUPPORT_ROWPOSITIONS_H
