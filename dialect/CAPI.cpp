#include "dialect/CAPI.h"

#include "dialect/Piper.h"
#include "mlir/CAPI/Registration.h"

MLIR_DEFINE_CAPI_DIALECT_REGISTRATION(Piper, piper, piper::PiperDialect)
