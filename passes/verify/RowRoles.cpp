//===- RowRoles.cpp - Which values of a step with experts are gradients
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

// Whether a value depends on a tangent is known of all of them. Which of these
// are gradients is known from the ops that make gradients of rows on, and then
// through ops that are linear in one operand:
//
//   moe_unpermute_rows(any)      gradient
//   gradient * forward           gradient
//   gradient + gradient          gradient
//   gradient * gradient          product
//   gradient + forward, others   unknown, as a backward function of the user's
//                                may add what it likes

#include "passes/verify/RowRoles.h"

#include "passes/support/RowPositions.h"

#include "llvm/ADT/STLExtras.h"

using namespace mlir;

namespace piper {

/// Whether an op makes a value of sizes and types alone, whatever it is given.
static bool makesConstant(TorchOp op) {
  StringRef name = op.getOpName();
  return name.starts_with("aten.new_") || name.contains("_like.");
}

static bool isProduct(TorchOp op) {
  return op.getOpName().starts_with("aten.mul.");
}

static bool isSum(TorchOp op) {
  return op.getOpName().starts_with("aten.add.") ||
         op.getOpName().starts_with("aten.sub.");
}

/// Whether an op is linear in an operand, the others as they are.
static bool isLinearIn(TorchOp op, unsigned operand) {
  StringRef name = op.getOpName();
  if (op.isView() || isProduct(op) || isExpertsOp(op) ||
      name == "aten.neg.default" || name == "aten.clone.default" ||
      name == "aten._to_copy.default")
    return true;
  return operand == 0 && (name == "aten.div.Tensor" || isBackwardOp(op));
}

/// Whether nothing is known of what an op makes: it is of constants alone, or
/// zero if one is. Of what a backward pass makes of one, this is always so.
static bool isConstant(TorchOp op, ArrayRef<Role> given, bool isInBackward) {
  auto isOfNothing = [&](size_t operand) {
    return given[operand] == Role::Constant;
  };
  auto operands = llvm::seq(given.size());
  return makesConstant(op) || llvm::all_of(operands, isOfNothing) ||
         llvm::any_of(operands, [&](size_t operand) {
           return isOfNothing(operand) &&
                  (isInBackward || isLinearIn(op, operand));
         });
}

static StringRef describe(Role role) {
  switch (role) {
  case Role::Constant:
    return "a constant";
  case Role::Forward:
    return "a value of the forward pass";
  case Role::Product:
    return "a product of gradients";
  case Role::Gradient:
  case Role::Unknown:
    return "a gradient";
  }
  llvm_unreachable("all roles are above");
}

Role RowRoles::get(Value value) const {
  auto found = roles.find(numbers.get(value));
  return found == roles.end() ? Role::Forward : found->second;
}

void RowRoles::add(Operation *op, bool isInBackward) {
  if (!isInBackward)
    for (Value result : op->getResults())
      made.insert(numbers.get(result));
  if (auto exchange = dyn_cast<CollectiveOpInterface>(op)) {
    for (auto [input, tensor] :
         llvm::zip(exchange.getInputs(), exchange.getTensors()))
      set(tensor, get(input)); // which is the same of other ranks
    return;
  }
  auto torch = dyn_cast<TorchOp>(op);
  bool depends =
      isa<TangentOp>(op) || llvm::any_of(op->getOperands(), [&](Value operand) {
        return isBackward(get(operand));
      });
  Role role = torch     ? getRole(torch, isInBackward)
              : depends ? Role::Unknown
                        : Role::Forward;
  for (Value result : op->getResults())
    set(result, role);
}

Role RowRoles::getRole(TorchOp op, bool isInBackward) const {
  SmallVector<Role> given =
      llvm::map_to_vector(op.getInputs(), [&](Value v) { return get(v); });
  size_t count = llvm::count_if(given, isBackward);
  if (count == 0)
    return isConstant(op, given, isInBackward) ? Role::Constant : Role::Forward;
  if (std::optional<RowOp> own = getRowOp(op); own && own->gradient)
    return Role::Gradient;
  auto isAll = [&](Role wanted) {
    return llvm::all_of(given, [&](Role role) { return role == wanted; });
  };
  if (isSum(op))
    return given.size() == 2 && isAll(Role::Gradient) ? Role::Gradient
                                                      : Role::Unknown;
  if (count == 1) {
    size_t place = llvm::find_if(given, isBackward) - given.begin();
    return isLinearIn(op, place) ? given[place] : Role::Unknown;
  }
  return isProduct(op) && isAll(Role::Gradient) ? Role::Product : Role::Unknown;
}

LogicalResult RowRoles::check(TorchOp op, const Wanted &wanted) const {
  auto fail = [&](unsigned operand, Role expected, Role got) {
    return op.emitError(op.getOpName())
           << " expected " << describe(expected) << " as operand " << operand
           << ", got " << describe(got);
  };
  if (made.contains(numbers.get(op.getResult(0))))
    return success();
  Role role = get(op.getInputs()[wanted.gradient]);
  if (role == Role::Forward || role == Role::Product)
    return fail(wanted.gradient, Role::Gradient, role);
  for (unsigned operand : wanted.saved)
    if (Role saved = get(op.getInputs()[operand]); isBackward(saved))
      return fail(operand, Role::Forward, saved);
  return success();
}

} // namespace piper
