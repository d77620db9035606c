//===- Streams.cpp - Streams, declared where first used
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "passes/support/Streams.h"

#include "mlir/IR/Builders.h"

using namespace mlir;

FlatSymbolRefAttr piper::declareStream(SymbolTable &symbols, StringAttr name) {
  if (!symbols.lookup(name)) {
    Operation *module = symbols.getOp();
    OpBuilder builder(module->getContext());
    auto stream = StreamOp::create(builder, module->getLoc(), name,
                                   IntegerAttr(), IntegerAttr());
    symbols.insert(stream, module->getRegion(0).front().begin());
  }
  return FlatSymbolRefAttr::get(name);
}
