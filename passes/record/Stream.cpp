//===- Stream.cpp - Record what streams may take of a device
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "passes/Passes.h"
#include "passes/support/Facts.h"
#include "passes/support/Streams.h"

using namespace mlir;

namespace piper {

#define GEN_PASS_DEF_STREAMPASS
#include "passes/Passes.h.inc"

namespace {

class StreamPass : public impl::StreamPassBase<StreamPass> {
  void runOnOperation() override {
    SymbolTable symbols(getOperation());
    SmallVector<DoStreamOp> directives =
        findDirectives<DoStreamOp>(getOperation());
    // Each stream comes to the front; where directives stand has no meaning.
    llvm::stable_sort(directives, [](DoStreamOp a, DoStreamOp b) {
      return a.getStream() > b.getStream();
    });
    for (DoStreamOp directive : directives)
      if (failed(record(directive, symbols)))
        return signalPassFailure();
  }

  LogicalResult record(DoStreamOp directive, SymbolTable &symbols) {
    StringAttr name = directive.getStreamAttr().getAttr();
    Operation *known = symbols.lookup(name);
    if (known && !isa<StreamOp>(known))
      return directive.emitOpError("expected the name of a stream, got ")
             << directive.getStreamAttr() << ", a " << known->getName();
    declareStream(symbols, name);
    auto stream = symbols.lookup<StreamOp>(name);
    if (!known)
      stream->setLoc(directive.getLoc());
    for (StringRef fact : {"priority", "sms"})
      if (Attribute value = directive->getAttr(fact))
        if (failed(facts.record(stream, fact, value, directive)))
          return failure();
    return success();
  }

  FactRecorder facts;
};

} // namespace
} // namespace piper
