//===- ValueNumbers.cpp - Which values of a step are equal
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "passes/support/ValueNumbers.h"

#include "dialect/Rules.h"

using namespace mlir;

namespace piper {

/// Whether an op only copies, as chunks do with views that they return.
static bool isCopy(Operation *op) {
  auto torch = dyn_cast<TorchOp>(op);
  return isa<RelabelOp>(op) ||
         (torch && torch.getOpName() == "aten.clone.default");
}

/// Whether an attribute says what a value is: others say where it is made.
static bool isOfValue(StringRef name) {
  static constexpr StringLiteral others[] = {
      "label",     "stream", "at",      "mb",         "facts",
      "positions", "tag",    "primals", "cotangents", "again"};
  return !llvm::is_contained(others, name);
}

/// Names and attributes are unique: a pointer stands for each.
static uintptr_t toNumber(const void *pointer) {
  return reinterpret_cast<uintptr_t>(pointer);
}

unsigned ValueNumbers::get(Value value) {
  auto [entry, fresh] = numbers.try_emplace(value, count);
  count += fresh;
  return entry->second;
}

ValueNumbers::Key ValueNumbers::getKey(Operation *op) {
  Key key = {toNumber(op->getName().getAsOpaquePointer())};
  for (NamedAttribute attr : op->getAttrDictionary())
    if (isOfValue(attr.getName())) {
      key.push_back(toNumber(attr.getName().getAsOpaquePointer()));
      key.push_back(toNumber(attr.getValue().getAsOpaquePointer()));
    }
  for (Value operand : op->getOperands())
    key.push_back(get(operand));
  return key;
}

unsigned ValueNumbers::getResult(Operation *op, size_t position) {
  Key key = getKey(op);
  key.push_back(position);
  auto [entry, fresh] = known.try_emplace(std::move(key), count);
  count += fresh;
  return entry->second;
}

void ValueNumbers::add(Operation *op) {
  auto torch = dyn_cast<TorchOp>(op);
  for (OpResult result : op->getResults()) {
    size_t number = result.getResultNumber();
    set(result, isCopy(op) ? get(op->getOperand(0))
                : torch    ? getResult(op, getPosition(torch, number))
                           : getResult(op, number));
  }
}

} // namespace piper
