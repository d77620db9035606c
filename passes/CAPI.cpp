#include "passes/CAPI.h"

#include "passes/Passes.h"

void piperRegisterPasses() { piper::registerAllPasses(); }
