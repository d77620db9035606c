//===- StepValues.cpp - Which value of a step one of its cluster is
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "passes/support/StepValues.h"

#include "passes/support/ChunkBuilder.h"
#include "passes/verify/Verify.h"

using namespace mlir;

namespace piper {

Value skipTransfers(Value value) {
  while (auto transfer = value.getDefiningOp<TransferOp>())
    value = transfer.getValue();
  return value;
}

StepValues::StepValues(StepOp step, SymbolTable &symbols) : step(step) {
  for (auto run : step.getBlock().getOps<RunOp>())
    addChunks(run, symbols);
}

void StepValues::addChunks(RunOp run, SymbolTable &symbols) {
  chunks[run.getChunkAttr()] = {run, {}, {}};
  auto chunk = symbols.lookup<ChunkOp>(run.getChunk());
  HalfAttr input = chunk.getInputAttr(), weight = chunk.getWeightAttr();
  if (input)
    chunks[input.getChunk()] = {run, input, {}};
  if (weight)
    chunks[weight.getChunk()] = {run, weight, input};
}

bool StepValues::standsFor(Value value, Value wanted, int64_t mb) const {
  auto result = cast<OpResult>(skipTransfers(value));
  Operation *op = result.getOwner();
  if (auto argument = dyn_cast<BlockArgument>(wanted)) {
    auto input = dyn_cast<InputOp>(op);
    return input && int64_t(input.getMb()) == mb &&
           input.getInputAttr() ==
               StepOp(step).getInputs()[argument.getArgNumber()];
  }
  Operation *maker = wanted.getDefiningOp();
  if (auto read = dyn_cast<ReadOp>(maker)) {
    auto other = dyn_cast<ReadOp>(op);
    return other && other.getSymbolAttr() == read.getSymbolAttr() &&
           other.getSlotAttr() == read.getSlotAttr();
  }
  if (auto tangent = dyn_cast<TangentOp>(maker)) {
    auto other = dyn_cast<TangentOp>(op);
    return other && other.getLossAttr() == tangent.getLossAttr();
  }
  if (isExchange(maker))
    return isSameExchange(op, maker, mb) &&
           result.getResultNumber() == cast<OpResult>(wanted).getResultNumber();
  if (auto gather = dyn_cast<AllGatherOp>(maker)) {
    auto other = dyn_cast<AllGatherOp>(op);
    return other && other.getOver() == gather.getOver() &&
           standsFor(other.getInputs()[result.getResultNumber()],
                     gather.getInputs().front(), mb);
  }
  auto run = dyn_cast<RunOp>(op);
  return run && run.getMb() && int64_t(*run.getMb()) == mb &&
         isResult(run, result.getResultNumber(), cast<OpResult>(wanted));
}

/// Whether two exchanges of one kind do the same, but for where, when and on
/// what.
static bool haveSameAttributes(Operation *op, Operation *wanted) {
  return llvm::all_of(op->getName().getAttributeNames(), [&](StringAttr name) {
    return op->getAttr(name) == wanted->getAttr(name) || name == "at" ||
           name == "mb" || name == "stream";
  });
}

bool StepValues::isSameExchange(Operation *op, Operation *wanted,
                                int64_t mb) const {
  auto at = op->getAttrOfType<IntegerAttr>("mb");
  if (op->getName() != wanted->getName() || !at || at.getInt() != mb ||
      !haveSameAttributes(op, wanted) ||
      op->getResultTypes() != wanted->getResultTypes() ||
      op->getNumOperands() != wanted->getNumOperands())
    return false;
  return llvm::all_of(llvm::zip(op->getOperands(), wanted->getOperands()),
                      [&](auto pair) {
                        auto [own, other] = pair;
                        return standsFor(own, other, mb);
                      });
}

bool StepValues::isResult(RunOp run, size_t index, OpResult wanted) const {
  Chunk chunk = getChunk(run);
  if (chunk.whole != wanted.getOwner())
    return false;
  if (!chunk.half)
    return index == wanted.getResultNumber();
  ArrayRef<int64_t> results = chunk.half.getResults();
  return index < results.size() &&
         results[index] == int64_t(wanted.getResultNumber());
}

std::string StepValues::describe(Value value) const {
  auto argument = dyn_cast<BlockArgument>(value);
  if (!argument)
    return piper::describe(value);
  std::string text;
  llvm::raw_string_ostream(text)
      << "input " << StepOp(step).getInputs()[argument.getArgNumber()];
  return text;
}

} // namespace piper
