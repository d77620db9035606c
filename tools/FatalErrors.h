//===- FatalErrors.h - What LLVM gives up on ends a tool with an error
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef PIPER_TOOLS_FATALERRORS_H
#define PIPER_TOOLS_FATALERRORS_H

#include "llvm/Support/ErrorHandling.h"
#include "llvm/Support/Signals.h"
#include "llvm/Support/WithColor.h"

#include <cstdlib>

namespace piper {

/// Lets what LLVM calls a fatal error end the process like any other error:
/// with a message and exit code 1. By default it aborts, as MLIR's parser does
/// on an op that is named like a registered dialect, such as `"piper."()`.
inline void exitOnFatalErrors() {
  llvm::install_fatal_error_handler(
      [](void *, const char *reason, bool /*generateCrash*/) {
        llvm::WithColor::error(llvm::errs()) << reason << '\n';
        llvm::sys::RunInterruptHandlers(); // removes unfinished output
        std::_Exit(1);                     // other threads may still run
      });
}

} // namespace piper

#endif // PIPER_TOOLS_FATALERRORS_H
