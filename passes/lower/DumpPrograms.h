//===- DumpPrograms.h - Programs as columns, for whoever reads them in Python
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef PIPER_PASSES_LOWER_DUMPPROGRAMS_H
#define PIPER_PASSES_LOWER_DUMPPROGRAMS_H

#include "dialect/Piper.h"

namespace piper {

/// Writes all programs of a module as JSON, a list of
/// `{name, entry, at, <columns>, attributes: {name: {rows, values}}}`.
///
/// A column has a cell per instruction: `op` and `loc`, which index `ops` and
/// `locs`, where a location is `[file, line, module path, directive]`; `in`,
/// `after` and `out`, the operands, events and results, which are numbered per
/// program. Attributes, optional operands and flags belong to some rows only,
/// as do `dtype` and `shape` of recv, tangent and sumsq.
void dumpPrograms(mlir::ModuleOp module, llvm::raw_ostream &os);

} // namespace piper

#endif // PIPER_PASSES_LOWER_DUMPPROGRAMS_H
