// Serves Piper IR to editors: hover, definitions, diagnostics. It speaks the
// Language Server Protocol on standard input and output.

#include "dialect/Piper.h"
#include "mlir/Tools/mlir-lsp-server/MlirLspServerMain.h"
#include "tools/FatalErrors.h"

int main(int argc, char **argv) {
  piper::exitOnFatalErrors();
  mlir::DialectRegistry registry;
  registry.insert<piper::PiperDialect>();
  return mlir::failed(mlir::MlirLspServerMain(argc, argv, registry));
}
