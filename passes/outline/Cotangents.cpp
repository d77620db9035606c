//===- Cotangents.cpp - Which values of a captured step are cotangents of which
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "passes/outline/Cotangents.h"

#include "dialect/Layouts.h"

#include <map>

using namespace mlir;

namespace piper {

/// Calls `note` with each number that an op of a pass gives to a result.
static void forEachNumber(Operation *op, StringRef name,
                          llvm::function_ref<void(int64_t, Value)> note) {
  auto lists = op->getAttrOfType<ArrayAttr>(name);
  if (!lists)
    return;
  for (auto [list, result] :
       llvm::zip(lists.getAsRange<ArrayAttr>(), op->getResults()))
    for (auto number : list.getAsRange<IntegerAttr>())
      note(number.getInt(), result);
}

/// Whether an op is of a pass; what another pass clones says nothing.
static bool isOfPass(Operation &op, Pass pass) {
  auto torch = dyn_cast<TorchOp>(op);
  return torch && torch.getTag() && torch.getTag()->getPass() == pass;
}

Cotangents::Cotangents(StepOp step) : mesh(findMesh(step)) {
  std::map<int64_t, SmallVector<Value, 1>> primals; // by number
  for (Operation &op : step.getBlock())
    if (isOfPass(op, Pass::F))
      forEachNumber(&op, "primals", [&](int64_t number, Value value) {
        primals[number].push_back(getRoot(value));
      });
  for (Operation &op : step.getBlock()) {
    if (isOfPass(op, Pass::B) || isa<TangentOp>(op))
      forEachNumber(&op, "cotangents", [&](int64_t number, Value value) {
        primalsOf[getRoot(value)].insert_range(primals[number]);
      });
    auto output = dyn_cast<OutputOp>(op);
    if (output && output.getScale())
      primalsOf[output.getScale()].insert(getRoot(output.getValue()));
  }
}

Value Cotangents::skipExchanges(Value value) const {
  auto isAuto = [&](StringAttr name) {
    AxisAttr axis = MeshOp(mesh).lookupAxis(name);
    return axis && axis.getRole() == AxisRole::Auto;
  };
  while (auto op = value.getDefiningOp<CollectiveOpInterface>()) {
    if (op.getInputs().size() != 1 ||
        !llvm::all_of(op.getOver().getAsRange<StringAttr>(), isAuto))
      break;
    value = getRoot(op.getInputs().front());
  }
  return value;
}

SmallVector<int64_t> Cotangents::findPlaces(ArrayRef<Value> gradients,
                                            ArrayRef<Value> primals) const {
  llvm::DenseMap<Value, int64_t> places;
  for (auto [place, primal] : llvm::enumerate(primals))
    places.try_emplace(skipExchanges(primal), place);
  return llvm::map_to_vector(gradients, [&](Value gradient) {
    auto found = primalsOf.find(skipExchanges(gradient));
    if (found != primalsOf.end())
      for (Value primal : found->second)
        if (auto place = places.find(primal); place != places.end())
          return place->second;
    return ChunkOp::noDual;
  });
}

void Cotangents::writeDuals(const Outlined &backward,
                            const Outlined &forward) const {
  ChunkOp(backward.chunk)
      .setDuals(findPlaces(backward.operands, forward.results),
                findPlaces(backward.results, forward.operands));
}

} // namespace piper
