//===- UserPasses.cpp - The points of users' own passes
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

// Users write passes in Python. A driver that has Python runs those of a point
// before it comes here, and marks them done: piper/user_passes.py. Here it is
// made sure that none is left out, whichever driver runs the sequence.

#include "passes/Passes.h"
#include "passes/support/Facts.h"

#include "llvm/ADT/StringExtras.h"

using namespace mlir;

namespace piper {

#define GEN_PASS_DEF_USERPASSESPASS
#include "passes/Passes.h.inc"

namespace {

class UserPassesPass : public impl::UserPassesPassBase<UserPassesPass> {
  using UserPassesPassBase::UserPassesPassBase;

  void runOnOperation() override {
    ArrayRef<StringRef> points = DoUserPassOp::getPoints();
    const StringRef *here = llvm::find(points, StringRef(at));
    if (here == points.end()) {
      getOperation().emitError("piper-user-passes expected at to be one of ")
          << llvm::join(points, ", ") << ", got '" << at << '\'';
      return signalPassFailure();
    }
    for (auto directive : findDirectives<DoUserPassOp>(getOperation()))
      if (!directive.getDone() && llvm::find(points, directive.getAt()) <= here)
        return refuse(directive);
  }

  void refuse(DoUserPassOp directive) {
    if (directive.getAt() == at)
      directive.emitOpError("expected a driver that runs the Python pass ")
          << directive.getFunctionAttr() << " at " << directive.getAtAttr()
          << ", such as python -m piper.opt, got one without Python";
    else
      directive.emitOpError("expected the Python pass ")
          << directive.getFunctionAttr() << " to have run at "
          << directive.getAtAttr()
          << ", where piper-user-passes{at=" << directive.getAt()
          << "} stands, got to \"" << at << "\" without it";
    signalPassFailure();
  }
};

} // namespace
} // namespace piper
