//===- Facts.h - How directives become facts
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef PIPER_PASSES_SUPPORT_FACTS_H
#define PIPER_PASSES_SUPPORT_FACTS_H

#include "dialect/Piper.h"
#include "llvm/ADT/DenseMap.h"

namespace piper {

/// The module's strategy, or null.
StrategyOp findStrategy(mlir::ModuleOp module);

/// The directives of one kind, in the order they were written.
template <typename DirectiveOp>
llvm::SmallVector<DirectiveOp> findDirectives(mlir::ModuleOp module) {
  StrategyOp strategy = findStrategy(module);
  if (!strategy)
    return {};
  return llvm::to_vector(strategy.getBody().getOps<DirectiveOp>());
}

/// The first directive of one kind, or null.
template <typename DirectiveOp>
mlir::Operation *findDirective(mlir::ModuleOp module) {
  llvm::SmallVector<DirectiveOp> all = findDirectives<DirectiveOp>(module);
  return all.empty() ? nullptr : all.front().getOperation();
}

/// Sets facts, and refuses a second directive that says otherwise. All
/// directives of a kind stay in the strategy, so both can be shown.
class FactRecorder {
public:
  /// Sets attribute `name` of `op` on behalf of `directive`.
  mlir::LogicalResult record(mlir::Operation *op, llvm::StringRef name,
                             mlir::Attribute value, mlir::Operation *directive);

private:
  llvm::DenseMap<std::pair<mlir::Operation *, mlir::StringAttr>,
                 mlir::Operation *>
      sources;
};

/// The states that a selector selects; an error, which lists what exists, if
/// there are none. States for which `isMeant` is false are neither selected nor
/// listed.
mlir::FailureOr<llvm::SmallVector<StateOp>>
selectStates(mlir::Operation *directive, SelectAttr select,
             llvm::function_ref<bool(StateOp)> isMeant);

/// The location of an op together with that of the directive behind it.
mlir::Location withDirective(mlir::Location loc, mlir::Operation *directive);

} // namespace piper

#endif // PIPER_PASSES_SUPPORT_FACTS_H
