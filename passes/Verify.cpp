#include "passes/Passes.h"

namespace piper {

#define GEN_PASS_DEF_VERIFYPASS
#include "passes/Passes.h.inc"

namespace {

class VerifyPass : public impl::VerifyPassBase<VerifyPass> {
  void runOnOperation() override { markAllAnalysesPreserved(); }
};

} // namespace
} // namespace piper
