// Shrinks Piper IR while a test script still finds it interesting; see
// piper-reduce --help.

#include "dialect/Piper.h"
#include "mlir/Tools/mlir-reduce/MlirReduceMain.h"
#include "passes/Passes.h"
#include "tools/FatalErrors.h"

int main(int argc, char **argv) {
  piper::exitOnFatalErrors();
  piper::registerAllPasses();
  mlir::DialectRegistry registry;
  registry.insert<piper::PiperDialect>();
  mlir::MLIRContext context(registry);
  return mlir::failed(mlir::mlirReduceMain(argc, argv, context));
}
