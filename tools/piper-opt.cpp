// Reads Piper IR, runs passes on it and prints it; see piper-opt --help.

#include "dialect/Piper.h"
#include "mlir/IR/AsmState.h"
#include "mlir/Tools/mlir-opt/MlirOptMain.h"
#include "passes/Passes.h"
#include "tools/FatalErrors.h"
#include "llvm/Support/CommandLine.h"

/// Locations carry the user's source lines and module names, so unlike mlir-opt
/// print them unless -mlir-print-debuginfo=false is given.
static void printDebugInfoByDefault() {
  mlir::registerAsmPrinterCLOptions();
  auto *option = static_cast<llvm::cl::opt<bool> *>(
      llvm::cl::getRegisteredOptions().lookup("mlir-print-debuginfo"));
  option->setInitialValue(true);
}

int main(int argc, char **argv) {
  piper::exitOnFatalErrors();
  printDebugInfoByDefault();
  piper::registerAllPasses();
  mlir::DialectRegistry registry;
  registry.insert<piper::PiperDialect>();
  return mlir::asMainReturnCode(
      mlir::MlirOptMain(argc, argv, "Piper optimizer driver\n", registry));
}
