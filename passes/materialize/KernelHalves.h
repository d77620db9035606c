//===- KernelHalves.h - Slice a backward kernel in two
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef PIPER_PASSES_MATERIALIZE_KERNELHALVES_H
#define PIPER_PASSES_MATERIALIZE_KERNELHALVES_H

#include "dialect/Piper.h"

namespace piper {

/// One half of a kernel, and how it is called in place of the whole.
struct KernelHalf {
  KernelOp kernel;
  llvm::SmallVector<int64_t> arguments; // of the whole, which the half takes
  llvm::SmallVector<int64_t> results;   // of the whole, which the half returns
};

/// The half that is needed for some results, and the half for all others. What
/// the second needs of the first follows behind its results and arguments.
struct KernelHalves {
  KernelHalf first, second;
  int64_t numPassed = 0;
};

/// Slices `kernel` into what `firstResults` need and the rest. Views are
/// rebuilt on both sides; an op that computes only the results that a list of
/// flags asks for is called twice. Fails if another op that depends on one of
/// the arguments `cotangents` also makes a value that only the second half
/// uses, because then nothing is gained.
/// The new kernels stand before `kernel` and have no names yet.
mlir::FailureOr<KernelHalves> sliceKernel(KernelOp kernel,
                                          llvm::ArrayRef<int64_t> firstResults,
                                          llvm::ArrayRef<int64_t> cotangents);

} // namespace piper

#endif // PIPER_PASSES_MATERIALIZE_KERNELHALVES_H
