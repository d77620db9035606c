//===- DimClasses.h - Which dims of a step's values belong together
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef PIPER_PASSES_OUTLINE_DIMCLASSES_H
#define PIPER_PASSES_OUTLINE_DIMCLASSES_H

#include "dialect/Piper.h"
#include "llvm/ADT/IntEqClasses.h"

namespace piper {

/// The dims of all values, as classes of dims that rules give one name.
class DimClasses {
public:
  using Dim = std::pair<mlir::Value, size_t>;

  static constexpr unsigned none = ~0u;

  void join(Dim a, Dim b) { classes.join(number(a), number(b)); }

  /// Joins what the rule of an op gives one name; with `ones` also dims of one
  /// element.
  void joinByRule(TorchOp op, bool ones = false);

  /// The class of a dim, or none if nothing was joined to it.
  unsigned find(Dim dim) const {
    auto found = numbers.find(dim);
    return found == numbers.end() ? none : classes.findLeader(found->second);
  }

private:
  unsigned number(Dim dim) {
    auto [entry, fresh] = numbers.try_emplace(dim, numbers.size());
    if (fresh)
      classes.grow(numbers.size());
    return entry->second;
  }

  llvm::DenseMap<Dim, unsigned> numbers;
  llvm::IntEqClasses classes;
};

} // namespace piper

#endif // PIPER_PASSES_OUTLINE_DIMCLASSES_H
