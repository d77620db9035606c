//===- DumpPrograms.h - Programs as rows, for whoever reads them in Python
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef PIPER_PASSES_DUMPPROGRAMS_H
#define PIPER_PASSES_DUMPPROGRAMS_H

#include "dialect/Piper.h"

namespace piper {

/// Writes all programs of a module as JSON: a list of
/// `{name, entry, at, rows: [{op, in, after, out, <attributes>, loc}]}`, where
/// values and events are numbered per program and `loc` is
/// `[file, line, module path, directive]`. A row whose result type matters
/// (recv, tangent, sumsq) has `dtype` and `shape`.
void dumpPrograms(mlir::ModuleOp module, llvm::raw_ostream &os);

} // namespace piper

#endif // PIPER_PASSES_DUMPPROGRAMS_H
