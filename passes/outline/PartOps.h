//===- PartOps.h - Ops that take parts of what another op takes whole
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef PIPER_PASSES_OUTLINE_PARTOPS_H
#define PIPER_PASSES_OUTLINE_PARTOPS_H

#include "passes/outline/SharedValues.h"

#include "dialect/Rules.h"

namespace piper {

/// Makes an op call another one, which takes parts of a factor of `size`
/// elements: it is given `index`, which part it gets, and perhaps an element
/// that a third op makes of each part; `dim` is that of the first result.
void callPartOp(TorchOp op, const Rule &rule, const Rule::PartOp &part,
                std::optional<size_t> dim, int64_t size, mlir::Value index,
                SharedValues &values);

} // namespace piper

#endif // PIPER_PASSES_OUTLINE_PARTOPS_H
