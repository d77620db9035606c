// The Piper dialect for C and, through it, for the Python bindings.

#ifndef PIPER_DIALECT_CAPI_H
#define PIPER_DIALECT_CAPI_H

#include "mlir-c/IR.h"

#ifdef __cplusplus
extern "C" {
#endif

MLIR_DECLARE_CAPI_DIALECT_REGISTRATION(Piper, piper);

#ifdef __cplusplus
}
#endif

#endif // PIPER_DIALECT_CAPI_H
