// Passes and dumps for C and, through it, for the Python bindings.

#ifndef PIPER_PASSES_CAPI_H
#define PIPER_PASSES_CAPI_H

#include "mlir-c/IR.h"
#include "mlir-c/Support.h"

#ifdef __cplusplus
extern "C" {
#endif

/// Makes the passes that piper-opt knows available to textual pipelines.
MLIR_CAPI_EXPORTED void piperRegisterPasses(void);

/// Writes all programs of a module as JSON; see passes/lower/DumpPrograms.h.
MLIR_CAPI_EXPORTED void piperDumpPrograms(MlirModule module,
                                          MlirStringCallback callback,
                                          void *userData);

#ifdef __cplusplus
}
#endif

#endif // PIPER_PASSES_CAPI_H
