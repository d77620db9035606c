//===- VerifyDataflow.cpp - Runs take what their step says
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

// A run of a cluster takes, for its microbatch, what the step gives to the run
// of its chunk; transfers on the way change nothing. The halves of a backward
// chunk take what the whole takes, and the second what the first passes on.
// What ranks exchange, and what the host waits for, is the step's too, and once
// per microbatch, also where no run uses it.

#include "passes/support/ChunkBuilder.h"
#include "passes/support/StepValues.h"
#include "passes/verify/Verify.h"

using namespace mlir;

namespace piper {

namespace {

class DataflowVerifier {
public:
  DataflowVerifier(ClusterOp cluster, SymbolTable &symbols)
      : cluster(cluster),
        values(symbols.lookup<StepOp>(cluster.getOf()), symbols),
        numMicrobatches(cluster.getMicrobatches()) {}

  LogicalResult run() {
    for (Operation &op : values.getStep().getBlock())
      if (isExchange(&op))
        exchanges[getKind(&op)].push_back(&op);
    for (Operation &op : cluster.getBlock()) {
      auto run = dyn_cast<RunOp>(op);
      if ((run && failed(checkRun(run))) ||
          (isExchange(&op) && failed(checkExchange(&op))))
        return failure();
    }
    return success();
  }

private:
  /// What exchanges have in common that may be the same: few do.
  using ExchangeKind = std::pair<OperationName, Attribute>;
  static ExchangeKind getKind(Operation *op) {
    return {op->getName(), op->getAttr("label")};
  }

  /// An exchange is one of the step, also if nothing uses its result.
  LogicalResult checkExchange(Operation *op) {
    auto mb = op->getAttrOfType<IntegerAttr>("mb");
    if (!mb || mb.getInt() >= numMicrobatches)
      return op->emitOpError("expected a microbatch below ")
             << numMicrobatches << ", got " << mb;
    Operation *known = nullptr;
    for (Operation *wanted : exchanges.lookup(getKind(op)))
      if (values.isSameExchange(op, wanted, mb.getInt())) {
        auto [entry, fresh] = made.try_emplace({wanted, mb.getInt()}, op);
        if (fresh)
          return success();
        known = entry->second;
      }
    InFlightDiagnostic error =
        op->emitOpError(known ? "expected once for microbatch "
                              : "expected an exchange for microbatch ");
    error << mb.getInt() << (known ? ", as in " : " that is in ")
          << cluster.getOfAttr()
          << (known ? ", got a second time" : ", got another of this kind");
    if (known)
      error.attachNote(known->getLoc()) << "the first time is here";
    return failure();
  }

  LogicalResult checkRun(RunOp run) {
    StepValues::Chunk chunk = values.getChunk(run);
    if (!run.getMb() || int64_t(*run.getMb()) >= numMicrobatches)
      return run.emitOpError("expected a microbatch below ")
             << numMicrobatches << ", got " << run.getMbAttr();
    for (auto [index, operand] : llvm::enumerate(run.getInputs())) {
      size_t own = chunk.half ? chunk.half.getOperands().size()
                              : chunk.whole.getInputs().size();
      if (index >= own) {
        if (!isPassedOn(run, chunk, index - own, operand))
          return run.emitOpError("expected operand ")
                 << index << " to be what the first half passes on, got "
                 << describe(skipTransfers(operand));
        continue;
      }
      size_t position = chunk.half ? chunk.half.getOperands()[index] : index;
      Value wanted = chunk.whole.getInputs()[position];
      if (!values.standsFor(operand, wanted, *run.getMb()))
        return reportOperand(run, index, wanted, *run.getMb(), chunk.whole);
    }
    return success();
  }

  LogicalResult reportOperand(Operation *op, size_t index, Value wanted,
                              int64_t mb, Operation *like) {
    InFlightDiagnostic error = op->emitOpError("expected operand ");
    error << index << " to be " << values.describe(wanted) << " for microbatch "
          << mb << ", as in " << cluster.getOfAttr() << ", got "
          << describe(skipTransfers(op->getOperand(index)));
    error.attachNote(like->getLoc()) << cluster.getOfAttr() << " has it here";
    return failure();
  }

  /// Whether a value is one that the first half makes for the second.
  bool isPassedOn(RunOp run, StepValues::Chunk chunk, size_t index,
                  Value value) {
    auto result = cast<OpResult>(skipTransfers(value));
    auto maker = dyn_cast<RunOp>(result.getOwner());
    return chunk.before && maker &&
           maker.getChunkAttr() == chunk.before.getChunk() &&
           maker.getMbAttr() == run.getMbAttr() &&
           result.getResultNumber() == chunk.before.getResults().size() + index;
  }

  ClusterOp cluster;
  StepValues values;
  int64_t numMicrobatches;
  llvm::MapVector<ExchangeKind, SmallVector<Operation *>> exchanges; // of step
  llvm::DenseMap<std::pair<Operation *, int64_t>, Operation *> made;
};

} // namespace

LogicalResult verifyDataflow(ClusterOp cluster, SymbolTable &symbols) {
  return DataflowVerifier(cluster, symbols).run();
}

} // namespace piper
