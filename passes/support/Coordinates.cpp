//===- Coordinates.cpp - Where the ops of a cluster run
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "passes/support/Coordinates.h"

using namespace mlir;

std::optional<int64_t> piper::getCoordinate(Operation *op) {
  if (auto at = op->getAttrOfType<IntegerAttr>("at"))
    return at.getInt();
  return std::nullopt;
}

int64_t piper::getCoordinate(Value value) {
  auto result = cast<OpResult>(value);
  Operation *op = result.getOwner();
  if (auto transfer = dyn_cast<TransferOp>(op))
    return transfer.getTo();
  if (auto collective = dyn_cast<CollectiveOpInterface>(op))
    return (*collective.getAt())[result.getResultNumber()];
  return *getCoordinate(op);
}
