//===- Frees.h - Release values after their last use
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef PIPER_PASSES_LOWER_FREES_H
#define PIPER_PASSES_LOWER_FREES_H

#include "dialect/Piper.h"

namespace piper {

/// Whether a value of a program has storage of its own, to be freed. States and
/// gradients in buckets have not, nor has what is accumulated and then reduced,
/// which happens in place.
bool ownsStorage(mlir::Value value);

/// Inserts the frees of a program.
///
/// A value that only the compute stream uses is freed right behind its last
/// use. One that another stream reads is freed behind that stream's event, at
/// the next point where compute waits for that stream or for the same peer
/// anyway, or else at the end. What a bucket owns is never freed.
class FreeInserter {
public:
  explicit FreeInserter(ProgramOp program) : program(program) {}

  void insert();

private:
  ProgramOp program;
};

} // namespace piper

#endif // PIPER_PASSES_LOWER_FREES_H
