//===- Rules.h - How the dims of an op's operands and results belong together
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef PIPER_DIALECT_RULES_H
#define PIPER_DIALECT_RULES_H

#include "dialect/Piper.h"
#include "llvm/ADT/STLExtras.h"

#include <optional>

namespace piper {

/// A rule such as "m k, k n -> m n; sum k" or "a b c -> a b c d; 1.2 = c",
/// parsed. Names point into its text.
struct Rule {
  using Dims = llvm::SmallVector<llvm::StringRef, 4>;

  /// An integer argument that is the size of a factor: by position, and by its
  /// index if the argument is a list.
  struct Size {
    int64_t position;
    std::optional<int64_t> index;
    llvm::StringRef name;

    /// The argument among those of an op; null if there is none.
    mlir::IntegerAttr get(mlir::ArrayAttr args) const;
    /// The arguments with another size.
    mlir::ArrayAttr set(mlir::ArrayAttr args, int64_t size) const;
  };

  /// Another op that takes parts of a factor, which the op itself needs whole:
  /// "v by mine.lookup_part.default", "c d by mine.b.default after
  /// mine.a.default same 1". The names are those of the factor in all operands
  /// and results.
  struct PartOp {
    Dims names;
    llvm::StringRef op;
    /// The op that makes an element of each part before, of which the other
    /// gets all; or nothing.
    llvm::StringRef stats;
    /// A result that is the same whatever the part is; others without the
    /// factor are terms of sums.
    std::optional<int64_t> same;
  };

  /// A factor that results without it are sums over: "sum c"; "sum c but 1" if
  /// result 1 is none, but the same whatever the part is.
  struct Sum {
    llvm::StringRef name;
    std::optional<int64_t> but;
  };

  /// A factor of which the op computes the part of a rank, whose index is an
  /// operand: "c at 2".
  struct Index {
    llvm::StringRef name;
    size_t operand;
  };

  llvm::SmallVector<Dims, 4> operands, results;
  llvm::SmallVector<Size> sizes;
  llvm::SmallVector<PartOp, 1> partOps;
  llvm::SmallVector<Sum> sums;
  std::optional<Index> index;
  /// Whether results are linear in all operands together: of unfinished sums
  /// they are unfinished sums.
  bool isLinear = false;

  /// The op that takes parts of a factor, by one of its names, or null.
  const PartOp *findPartOp(llvm::StringRef name) const {
    auto *found = llvm::find_if(partOps, [&](const PartOp &part) {
      return llvm::is_contained(part.names, name);
    });
    return found == partOps.end() ? nullptr : found;
  }

  /// What is said of results without a factor, or null.
  const Sum *findSum(llvm::StringRef name) const {
    auto *found =
        llvm::find_if(sums, [&](const Sum &sum) { return sum.name == name; });
    return found == sums.end() ? nullptr : found;
  }

  /// Whether a name is that of a dim of one element, which is no factor.
  static bool isOne(llvm::StringRef name) { return name == "1"; }
};

/// Parses a rule; nothing if it is malformed.
std::optional<Rule> parseRule(llvm::StringRef text);

/// The text of a rule, which `parseRule` takes.
std::string toString(const Rule &rule);

/// The rule of the op that takes parts instead of one with `rule`: a rank's
/// index follows the operands, and with `hasStats` what was gathered of the
/// first result's parts.
std::string getPartRule(const Rule &rule, const Rule::PartOp &part,
                        bool hasStats);

/// The number of a result among all that the op can have.
int64_t getPosition(TorchOp op, int64_t number);

/// The dims of the results that an op has: those that nobody uses may be gone.
llvm::SmallVector<Rule::Dims> getResultDims(TorchOp op, const Rule &rule);

} // namespace piper

#endif // PIPER_DIALECT_RULES_H
