//===- ValueNumbers.h - Which values of a step are equal
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef PIPER_PASSES_VERIFY_VALUENUMBERS_H
#define PIPER_PASSES_VERIFY_VALUENUMBERS_H

#include "dialect/Piper.h"
#include "llvm/ADT/DenseMap.h"
#include "llvm/ADT/Hashing.h"

#include <cstdint>
#include <unordered_map>
#include <vector>

namespace piper {

/// Numbers values: two that the same op makes of equal operands have one
/// number. What is computed again, as for a backward pass, is known again.
class ValueNumbers {
public:
  /// The number of a value; a new one if it has none yet.
  unsigned get(mlir::Value value);
  void set(mlir::Value value, unsigned number) { numbers[value] = number; }

  /// The number of a result of an op, whether it has this one or not: those
  /// that nobody uses may be gone.
  unsigned getResult(mlir::Operation *op, size_t position);

  /// Numbers the results of an op.
  void add(mlir::Operation *op);

private:
  using Key = std::vector<uintptr_t>;
  struct Hash {
    size_t operator()(const Key &key) const {
      return llvm::hash_combine_range(key.begin(), key.end());
    }
  };

  Key getKey(mlir::Operation *op);

  unsigned count = 0;
  llvm::DenseMap<mlir::Value, unsigned> numbers;
  std::unordered_map<Key, unsigned, Hash> known;
};

} // namespace piper

#endif // PIPER_PASSES_VERIFY_VALUENUMBERS_H
