//===- Verify.cpp - Check what must hold in the phase that the module is in
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "passes/Verify.h"

#include "passes/Passes.h"

using namespace mlir;

namespace piper {

#define GEN_PASS_DEF_VERIFYPASS
#include "passes/Passes.h.inc"

namespace {

class VerifyPass : public impl::VerifyPassBase<VerifyPass> {
  void runOnOperation() override {
    markAllAnalysesPreserved();
    SymbolTable symbols(getOperation());
    if (failed(verifyClusters(symbols)) || failed(verifyPrograms(symbols)))
      signalPassFailure();
  }

  LogicalResult verifyClusters(SymbolTable &symbols) {
    for (auto cluster : getOperation().getOps<ClusterOp>())
      if (failed(verifyCluster(cluster, symbols)) ||
          failed(verifyGradients(cluster, symbols)))
        return failure();
    return success();
  }

  LogicalResult verifyPrograms(SymbolTable &symbols) {
    llvm::MapVector<Attribute, SmallVector<ProgramOp>> byCluster;
    for (auto program : getOperation().getOps<ProgramOp>()) {
      if (failed(verifyProgram(program)))
        return failure();
      byCluster[program.getOfAttr()].push_back(program);
    }
    for (auto &entry : byCluster)
      if (failed(verifyMessages(entry.second, symbols)) ||
          failed(verifyProgress(entry.second)))
        return failure();
    return success();
  }
};

} // namespace
} // namespace piper
