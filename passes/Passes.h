// Piper's passes, and the registration that piper-opt and Python share.

#ifndef PIPER_PASSES_PASSES_H
#define PIPER_PASSES_PASSES_H

#include "dialect/Piper.h"
#include "mlir/IR/BuiltinOps.h"
#include "mlir/Pass/Pass.h"

namespace piper {

#define GEN_PASS_DECL
#include "passes/Passes.h.inc"

#define GEN_PASS_REGISTRATION
#include "passes/Passes.h.inc"

/// Directives become facts on the small L2 module.
void buildRecordPipeline(mlir::OpPassManager &passes);
/// Facts become the ordered cluster.
void buildMaterializePipeline(mlir::OpPassManager &passes);
/// The ordered cluster becomes programs, which keep within the limits.
void buildLowerPipeline(mlir::OpPassManager &passes,
                        const VerifyPassOptions &limits);

/// Registers Piper's passes and those of MLIR's own that are of use on its IR.
void registerAllPasses();

} // namespace piper

#endif // PIPER_PASSES_PASSES_H
