#include "passes/Passes.h"

#include "mlir/Transforms/Passes.h"

void piper::registerAllPasses() {
  registerPiperPasses();
  mlir::registerCSEPass();
  mlir::registerCanonicalizerPass();
  mlir::registerPrintOpStatsPass();
  mlir::registerStripDebugInfoPass();
  mlir::registerSymbolDCEPass();
}
