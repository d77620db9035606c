//===- Update.cpp - Record how states are optimized
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "passes/Passes.h"
#include "passes/support/Facts.h"

using namespace mlir;

namespace piper {

#define GEN_PASS_DEF_UPDATEPASS
#include "passes/Passes.h.inc"

namespace {

class UpdatePass : public impl::UpdatePassBase<UpdatePass> {
  void runOnOperation() override {
    FactRecorder facts;
    for (auto update : findDirectives<DoUpdateOp>(getOperation())) {
      auto states = selectStates(update, update.getSelect(), [](StateOp state) {
        return state.isTrainable();
      });
      if (failed(states))
        return signalPassFailure();
      auto fact = OptimizationAttr::get(
          &getContext(), update.getOptimizerAttr(), update.getClipAttr(),
          update.getMaster().value_or(Type()), update.getSkipNonfiniteAttr());
      for (StateOp state : *states)
        if (failed(facts.record(state, "optimization", fact, update)))
          return signalPassFailure();
    }
  }
};

} // namespace
} // namespace piper
