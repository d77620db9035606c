//===- Facts.cpp - How directives become facts
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "passes/support/Facts.h"

using namespace mlir;

namespace piper {

StrategyOp findStrategy(ModuleOp module) {
  auto strategies = module.getOps<StrategyOp>();
  return strategies.empty() ? StrategyOp() : *strategies.begin();
}

LogicalResult FactRecorder::record(Operation *op, StringRef name,
                                   Attribute value, Operation *directive) {
  auto key = std::pair(op, StringAttr::get(op->getContext(), name));
  auto [entry, fresh] = sources.try_emplace(key, directive);
  if (!fresh && op->getAttr(name) != value) {
    InFlightDiagnostic error = directive->emitOpError("sets ")
                               << name << " to " << value
                               << ", which another directive sets to "
                               << op->getAttr(name);
    error.attachNote(entry->second->getLoc()) << "the other directive is here";
    return failure();
  }
  op->setAttr(name, value);
  return success();
}

static ArrayAttr getAliases(StateOp state) {
  return state.getAliases().value_or(Builder(state).getArrayAttr({}));
}

FailureOr<SmallVector<StateOp>>
selectStates(Operation *directive, SelectAttr select,
             llvm::function_ref<bool(StateOp)> isMeant) {
  SmallVector<StateOp> selected, all;
  for (auto state : directive->getParentOfType<ModuleOp>().getOps<StateOp>()) {
    if (!isMeant(state))
      continue;
    all.push_back(state);
    if (select.matchesState(state.getSymName()))
      selected.push_back(state);
  }
  if (!selected.empty() || (all.empty() && select.isAll()))
    return selected;
  InFlightDiagnostic error = directive->emitOpError("selects no state with ")
                             << select << "; the module has";
  for (StateOp state : all)
    error << ' ' << state.getSymName();
  for (StateOp state : all)
    for (auto name : getAliases(state).getAsRange<StringAttr>())
      if (select.matchesState(name))
        error.attachNote(state.getLoc())
            << name << " is another name of '" << state.getSymName()
            << "', as they are tied: use that one";
  return failure();
}

Location withDirective(Location loc, Operation *directive) {
  if (!directive)
    return loc;
  StringRef kind = directive->getName().getStringRef().rsplit('.').second;
  MLIRContext *context = loc.getContext();
  return FusedLoc::get(
      context,
      {loc, NameLoc::get(StringAttr::get(context, kind), directive->getLoc())});
}

} // namespace piper
