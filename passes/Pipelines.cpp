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

void buildRecordPipeline(OpPassManager &passes) {
  passes.addPass(createAnnotatePass());
  passes.addPass(createSplitPass());
  passes.addPass(createPlacePass());
  passes.addPass(createReplicatePass());
  passes.addPass(createUpdatePass());
  passes.addPass(createOrderPass());
}

void buildMaterializePipeline(OpPassManager &passes) {
  passes.addPass(createAssignKindsPass());
  passes.addPass(createFormBucketsPass());
  passes.addPass(createSplitBackwardPass());
  passes.addPass(createUnrollMicrobatchesPass());
  passes.addPass(createInsertTransfersPass());
  passes.addPass(createInsertReductionsPass());
  passes.addPass(createOrderCellsPass());
  passes.addPass(createVerifyPass());
}

void buildLowerPipeline(OpPassManager &passes) {
  passes.addPass(createLowerProgramsPass());
  passes.addPass(createVerifyPass());
}

void registerAllPasses() {
  registerPiperPasses();
  PassPipelineRegistration<>("piper-record", "Record directives as facts.",
                             buildRecordPipeline);
  PassPipelineRegistration<>("piper-materialize",
                             "Turn recorded facts into the ordered cluster.",
                             buildMaterializePipeline);
  PassPipelineRegistration<>("piper-lower",
                             "Turn the ordered cluster into programs.",
                             buildLowerPipeline);
  registerCSEPass();
  registerCanonicalizerPass();
  registerPrintOpStatsPass();
  registerStripDebugInfoPass();
  registerSymbolDCEPass();
}

} // namespace piper
