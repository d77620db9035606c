//===- Rules.h - How the dims of an op's operands and results belong together
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef PIPER_DIALECT_RULES_H
#define PIPER_DIALECT_RULES_H

#include "dialect/Piper.h"

#include <optional>

namespace piper {

/// A rule such as "t k -> n, r e; 2 = r", parsed. Names point into its text.
struct Rule {
  using Dims = llvm::SmallVector<llvm::StringRef, 4>;

  llvm::SmallVector<Dims, 4> operands, results;
  /// Integer arguments that are the size of a factor, by position.
  llvm::SmallVector<std::pair<int64_t, llvm::StringRef>> sizes;

  /// Whether a name is that of a dim of one element, which is no factor.
  static bool isOne(llvm::StringRef name) { return name == "1"; }
};

/// Parses a rule; nothing if it is malformed.
std::optional<Rule> parseRule(llvm::StringRef text);

/// The dims of the results that an op has: those that nobody uses may be gone.
llvm::SmallVector<Rule::Dims> getResultDims(TorchOp op, const Rule &rule);

} // namespace piper

#endif // PIPER_DIALECT_RULES_H
