#ifndef PIPER_PASSES_PASSES
#define PIPER_PASSES_PASSES

include "mlir/Pass/PassBase.td"

def VerifyPass : Pass<"piper-verify", "::mlir::ModuleOp"> {
  let summary = "Check what must hold in the phase that the module is in.";
  let dependentDialects = ["::piper::PiperDialect"];
}

#endif // PIPER_PASSES_PASSES
