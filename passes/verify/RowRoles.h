//===- RowRoles.h - Which values of a step with experts are gradients
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef PIPER_PASSES_VERIFY_ROWROLES_H
#define PIPER_PASSES_VERIFY_ROWROLES_H

#include "passes/support/ValueNumbers.h"
#include "passes/verify/RowKinds.h"

#include "llvm/ADT/DenseSet.h"

namespace piper {

/// What is known of a value from the tangents that it depends on.
enum class Role {
  Constant, // made of nothing, as zeros that stand for a gradient, or of those
  Forward,  // made of inputs and states, and of no tangent
  Gradient, // as many times as large if the tangents are
  Product,  // of gradients
  Unknown,  // depends on a tangent
};

/// Whether a value depends on a tangent.
inline bool isBackward(Role role) {
  return role != Role::Constant && role != Role::Forward;
}

/// What an op wants that backward passes alone compute.
struct Wanted {
  unsigned gradient = 0;             // this operand
  llvm::SmallVector<unsigned> saved; // of the forward pass
};

/// The roles of the values of one step, by number.
class RowRoles {
public:
  explicit RowRoles(ValueNumbers &numbers) : numbers(numbers) {}

  /// The role of a value; an input of the step is of the forward pass.
  Role get(mlir::Value value) const;

  /// Notes the roles of the results of an op, which have numbers.
  void add(mlir::Operation *op, bool isInBackward);

  /// Fails if an op of a backward pass takes something else than it wants. What
  /// a forward pass computes, too, is computed again.
  mlir::LogicalResult check(TorchOp op, const Wanted &wanted) const;

private:
  Role getRole(TorchOp op, bool isInBackward) const;
  void set(mlir::Value value, Role role) {
    roles.try_emplace(numbers.get(value), role);
  }

  ValueNumbers &numbers;
  llvm::DenseMap<unsigned, Role> roles;
  llvm::DenseSet<unsigned> made; // by forward passes
};

} // namespace piper

#endif // PIPER_PASSES_VERIFY_ROWROLES_H
