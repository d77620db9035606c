//===- Annotate.cpp - Check that every tag names a chunk
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

// Annotations shape the capture; what is left to do here is to see that each
// had an effect.

#include "passes/Passes.h"
#include "passes/support/Facts.h"

#include "llvm/ADT/StringExtras.h"

using namespace mlir;

namespace piper {

#define GEN_PASS_DEF_ANNOTATEPASS
#include "passes/Passes.h.inc"

namespace {

class AnnotatePass : public impl::AnnotatePassBase<AnnotatePass> {
  void runOnOperation() override {
    llvm::SmallSetVector<StringRef, 8> tags;
    for (auto chunk : getOperation().getOps<ChunkOp>())
      tags.insert(chunk.getSymName().split('$').first.rsplit('.').first);
    for (auto annotate : findDirectives<DoAnnotateOp>(getOperation()))
      for (NamedAttribute entry : annotate.getTags()) {
        auto tag = dyn_cast<StringAttr>(entry.getValue());
        if (tag && tags.contains(tag.getValue()))
          continue;
        annotate.emitOpError("names no chunk: expected a tag of ")
            << llvm::join(tags, ", ") << ", got " << entry.getValue()
            << " for '" << entry.getName().getValue() << "'";
        return signalPassFailure();
      }
  }
};

} // namespace
} // namespace piper
