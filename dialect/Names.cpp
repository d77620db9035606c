//===- Names.cpp - How values are named in print
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "dialect/Piper.h"

#include "llvm/ADT/StringExtras.h"

using namespace mlir;
using namespace piper;

/// Bodies print their ops without the `piper.` prefix.
#define PIPER_BODY(Op)                                                         \
  StringRef Op::getDefaultDialect() { return "piper"; }
PIPER_BODY(StepOp)
PIPER_BODY(KernelOp)
PIPER_BODY(ChunkOp)
PIPER_BODY(ClusterOp)
PIPER_BODY(ProgramOp)
#undef PIPER_BODY

//===----------------------------------------------------------------------===//
// Arguments
//===----------------------------------------------------------------------===//

void StepOp::getAsmBlockArgumentNames(Region &region,
                                      OpAsmSetValueNameFn setName) {
  for (auto [argument, name] :
       llvm::zip(region.getArguments(), getInputs().getAsRange<StringAttr>()))
    setName(argument, name.getValue());
}

void KernelOp::getAsmBlockArgumentNames(Region &region,
                                        OpAsmSetValueNameFn setName) {
  for (BlockArgument argument : region.getArguments())
    setName(argument, "a");
}

void ChunkOp::getAsmBlockArgumentNames(Region &region,
                                       OpAsmSetValueNameFn setName) {
  for (BlockArgument argument : region.getArguments())
    setName(argument, "a");
}

//===----------------------------------------------------------------------===//
// Results
//===----------------------------------------------------------------------===//

/// `layers.0.fc.weight$b` as the name of a value: `layers_0_fc_weight_b`.
static std::string toName(StringRef symbol) {
  std::string name(symbol);
  for (char &letter : name)
    if (!llvm::isAlnum(letter))
      letter = '_';
  return name;
}

void ReadOp::getAsmResultNames(OpAsmSetValueNameFn setName) {
  setName(getResult(), toName(getSymbol()));
}

/// `%ids_3` is microbatch 3 of input "ids".
void InputOp::getAsmResultNames(OpAsmSetValueNameFn setName) {
  setName(getResult(), toName(getInput()) + "_" + std::to_string(getMb()));
}

/// `%layer_0_F3#1` is a result of @layer.0$F for microbatch 3.
void RunOp::getAsmResultNames(OpAsmSetValueNameFn setName) {
  if (getResults().empty())
    return;
  std::string name = toName(getChunk());
  if (std::optional<uint64_t> mb = getMb()) {
    if (!name.empty() && llvm::isDigit(name.back()))
      name += '_';
    name += std::to_string(*mb);
  }
  setName(getResults().front(), name);
}

void TransferOp::getAsmResultNames(OpAsmSetValueNameFn setName) {
  setName(getResult(), "x");
}

void RecvOp::getAsmResultNames(OpAsmSetValueNameFn setName) {
  setName(getResult(), "x");
  setName(getEvent(), "e");
}

void SendOp::getAsmResultNames(OpAsmSetValueNameFn setName) {
  setName(getEvent(), "e");
}

void RecordOp::getAsmResultNames(OpAsmSetValueNameFn setName) {
  setName(getEvent(), "e");
}

static void nameCollective(CollectiveOpInterface op,
                           OpAsmSetValueNameFn setName) {
  if (op->getNumResults() == 0)
    return;
  setName(op->getResult(0), "x");
  if (Value event = op.getEvent())
    setName(event, "e");
}

#define PIPER_COLLECTIVE(Op)                                                   \
  void Op::getAsmResultNames(OpAsmSetValueNameFn setName) {                    \
    nameCollective(*this, setName);                                            \
  }
PIPER_COLLECTIVE(AllReduceOp)
PIPER_COLLECTIVE(AllGatherOp)
PIPER_COLLECTIVE(ReduceScatterOp)
PIPER_COLLECTIVE(AllToAllOp)
PIPER_COLLECTIVE(PermuteOp)
PIPER_COLLECTIVE(BroadcastOp)
#undef PIPER_COLLECTIVE
