//===- Pipelines.cpp - The fixed sequences of passes
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "passes/Passes.h"

#include "mlir/Pass/PassManager.h"
#include "mlir/Pass/PassRegistry.h"
#include "mlir/Transforms/Passes.h"

using namespace mlir;

namespace piper {

namespace {

/// The limits of `piper-verify`, for the programs that `piper-lower` makes.
struct LowerOptions : PassPipelineOptions<LowerOptions> {
  Option<unsigned> maxCommunicators{
      *this, "max-communicators",
      llvm::cl::desc("As for piper-verify: communicators of a coordinate"),
      llvm::cl::init(0)};
  Option<uint64_t> maxMemory{
      *this, "max-memory",
      llvm::cl::desc("As for piper-verify: bytes of storages at once"),
      llvm::cl::init(0)};
  Option<uint64_t> maxSms{
      *this, "max-sms",
      llvm::cl::desc("As for piper-verify: SMs that communication holds"),
      llvm::cl::init(0)};
  Option<bool> singleQueue{
      *this, "single-queue",
      llvm::cl::desc("As for piper-verify: all communication in one queue"),
      llvm::cl::init(false)};
};

} // namespace

void buildRecordPipeline(OpPassManager &passes) {
  passes.addPass(createUserPassesPass({"chunks"}));
  passes.addPass(createAnnotatePass());
  passes.addPass(createSplitPass());
  passes.addPass(createPlacePass());
  passes.addPass(createReplicatePass());
  passes.addPass(createUpdatePass());
  passes.addPass(createOrderPass());
  passes.addPass(createStreamPass());
}

void buildMaterializePipeline(OpPassManager &passes) {
  passes.addPass(createUserPassesPass({"facts"}));
  passes.addPass(createAssignKindsPass());
  passes.addPass(createFormBucketsPass());
  passes.addPass(createSplitBackwardPass());
  passes.addPass(createUnrollMicrobatchesPass());
  passes.addPass(createInsertTransfersPass());
  passes.addPass(createInsertReductionsPass());
  passes.addPass(createOrderCellsPass());
  passes.addPass(createVerifyPass());
}

void buildLowerPipeline(OpPassManager &passes,
                        const VerifyPassOptions &limits) {
  passes.addPass(createUserPassesPass({"cluster"}));
  passes.addPass(createLowerProgramsPass());
  passes.addPass(createVerifyPass(limits));
}

void registerAllPasses() {
  registerPiperPasses();
  PassPipelineRegistration<>("piper-record", "Record directives as facts.",
                             buildRecordPipeline);
  PassPipelineRegistration<>("piper-materialize",
                             "Turn recorded facts into the ordered cluster.",
                             buildMaterializePipeline);
  PassPipelineRegistration<LowerOptions>(
      "piper-lower", "Turn the ordered cluster into programs.",
      [](OpPassManager &passes, const LowerOptions &options) {
        VerifyPassOptions limits;
        limits.maxCommunicators = options.maxCommunicators;
        limits.maxMemory = options.maxMemory;
        limits.maxSms = options.maxSms;
        limits.singleQueue = options.singleQueue;
        buildLowerPipeline(passes, limits);
      });
  registerCSEPass();
  registerCanonicalizerPass();
  registerPrintOpStatsPass();
  registerStripDebugInfoPass();
  registerSymbolDCEPass();
}

} // namespace piper
