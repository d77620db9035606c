//===- Verify.cpp - Check what must hold in the phase that the module is in
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "passes/verify/Verify.h"

#include "passes/Passes.h"

using namespace mlir;

namespace piper {

#define GEN_PASS_DEF_VERIFYPASS
#include "passes/Passes.h.inc"

namespace {

class VerifyPass : public impl::VerifyPassBase<VerifyPass> {
  using VerifyPassBase::VerifyPassBase;

  void runOnOperation() override {
    markAllAnalysesPreserved();
    SymbolTable symbols(getOperation());
    derived = findDerivedBuckets(getOperation());
    if (failed(verifyKernels(getOperation(), symbols)) ||
        failed(verifyRows(getOperation(), symbols)) ||
        failed(verifyClusters(symbols)) || failed(verifyPrograms(symbols)))
      signalPassFailure();
  }

  LogicalResult verifyClusters(SymbolTable &symbols) {
    for (auto cluster : getOperation().getOps<ClusterOp>())
      if (failed(verifyCluster(cluster, symbols)) ||
          failed(verifyGradients(cluster, symbols)) ||
          failed(verifyDerived(cluster, derived)) ||
          failed(verifyDataflow(cluster, symbols)) ||
          failed(verifyReports(cluster, symbols)))
        return failure();
    return success();
  }

  LogicalResult verifyPrograms(SymbolTable &symbols) {
    llvm::MapVector<Attribute, SmallVector<ProgramOp>> byCluster;
    for (auto cluster : getOperation().getOps<ClusterOp>())
      if (cluster.getPhase() == Phase::Lowered)
        byCluster[FlatSymbolRefAttr::get(cluster.getSymNameAttr())];
    for (auto program : getOperation().getOps<ProgramOp>()) {
      if (failed(verifyProgram(program)) ||
          failed(verifyDerived(program, derived)))
        return failure();
      byCluster[program.getOfAttr()].push_back(program);
    }
    if (failed(verifyLimits(symbols)))
      return failure();
    for (auto &[name, programs] : byCluster)
      if (failed(verifyTogether(symbols.lookup<ClusterOp>(
                                    cast<FlatSymbolRefAttr>(name).getValue()),
                                programs, symbols)))
        return failure();
    return success();
  }

  LogicalResult verifyLimits(SymbolTable &symbols) {
    ModuleOp module = getOperation();
    return success(
        (!maxCommunicators ||
         succeeded(verifyCommunicatorCount(module, maxCommunicators))) &&
        (!maxMemory || succeeded(verifyMemory(module, symbols, maxMemory))) &&
        (!maxSms || succeeded(verifyStreams(module, symbols, maxSms))));
  }

  /// Checks the programs of one cluster, which may be null.
  LogicalResult verifyTogether(ClusterOp cluster, ArrayRef<ProgramOp> programs,
                               SymbolTable &symbols) {
    if (programs.empty())
      return emitContainerError(cluster)
             << "expected programs of a lowered cluster, got none";
    if (failed(verifyMessages(programs, symbols)) ||
        failed(verifyProgress(programs, /*singleQueue=*/false)))
      return failure();
    if (singleQueue && (failed(verifyIssueOrder(programs)) ||
                        failed(verifyProgress(programs, singleQueue))))
      return failure();
    if (!cluster)
      return success();
    if (failed(verifyProjection(cluster, programs, symbols)))
      return failure();
    return success(cluster.getPhase() != Phase::Lowered ||
                   llvm::all_of(programs, [](ProgramOp program) {
                     return succeeded(verifyFrees(program));
                   }));
  }

  DerivedBuckets derived;
};

} // namespace
} // namespace piper
