#include "passes/CAPI.h"

#include "mlir/CAPI/IR.h"
#include "passes/Passes.h"
#include "passes/lower/DumpPrograms.h"

void piperRegisterPasses() { piper::registerAllPasses(); }

void piperDumpPrograms(MlirModule module, MlirStringCallback callback,
                       void *userData) {
  // One call for the whole text: a call per token would cost more than the
  // dump.
  std::string text;
  llvm::raw_string_ostream stream(text);
  piper::dumpPrograms(unwrap(module), stream);
  callback(mlirStringRefCreate(text.data(), text.size()), userData);
}
