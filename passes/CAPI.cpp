#include "passes/CAPI.h"

#include "mlir/CAPI/IR.h"
#include "mlir/CAPI/Utils.h"
#include "passes/DumpPrograms.h"
#include "passes/Passes.h"

void piperRegisterPasses() { piper::registerAllPasses(); }

void piperDumpPrograms(MlirModule module, MlirStringCallback callback,
                       void *userData) {
  mlir::detail::CallbackOstream stream(callback, userData);
  piper::dumpPrograms(unwrap(module), stream);
}
