//===- VerifyCluster.cpp - Every run once, where and when it belongs
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "passes/support/Coordinates.h"
#include "passes/verify/Verify.h"

#include "dialect/Layouts.h"
#include "llvm/ADT/DenseMap.h"
#include "llvm/ADT/DenseSet.h"

using namespace mlir;

namespace piper {

namespace {

/// Checks that ops have coordinates and that values arise where they are used.
class PlacementVerifier {
public:
  explicit PlacementVerifier(ClusterOp cluster)
      : cluster(cluster), connected(cluster.getPhase() >= Phase::Connected) {
    if (MeshOp mesh = findMesh(cluster))
      numCoordinates = mesh.getNumCoordinates();
  }

  LogicalResult run() {
    for (Operation &op : cluster.getBlock()) {
      if (failed(checkCoordinates(&op)))
        return failure();
      if (connected)
        for (OpOperand &operand : op.getOpOperands())
          if (failed(checkOperand(operand)))
            return failure();
    }
    return success();
  }

private:
  LogicalResult checkCoordinates(Operation *op) {
    if (auto transfer = dyn_cast<TransferOp>(op)) {
      int64_t ends[] = {int64_t(transfer.getFrom()), int64_t(transfer.getTo())};
      return checkRange(op, ends);
    }
    if (auto collective = dyn_cast<CollectiveOpInterface>(op)) {
      if (!collective.getAt())
        return op->emitOpError("expected a coordinate per operand");
      return checkRange(op, *collective.getAt());
    }
    std::optional<int64_t> at = getCoordinate(op);
    if (!at)
      return op->emitOpError("expected a coordinate");
    return checkRange(op, *at);
  }

  LogicalResult checkRange(Operation *op, ArrayRef<int64_t> coordinates) {
    for (int64_t at : coordinates)
      if (at < 0 || at >= numCoordinates)
        return op->emitOpError("expected coordinates below ")
               << numCoordinates << ", got " << at;
    return success();
  }

  LogicalResult checkOperand(OpOperand &operand) {
    int64_t wanted = getUse(operand), got = getCoordinate(operand.get());
    if (wanted == got)
      return success();
    InFlightDiagnostic error =
        operand.getOwner()->emitOpError("expected operand ")
        << operand.getOperandNumber() << " to arise at coordinate " << wanted
        << ", got one of coordinate " << got;
    error.attachNote(operand.get().getLoc()) << "it is made here";
    return failure();
  }

  /// The coordinate at which an operand is used.
  static int64_t getUse(OpOperand &operand) {
    if (auto transfer = dyn_cast<TransferOp>(operand.getOwner()))
      return transfer.getFrom();
    if (auto collective = dyn_cast<CollectiveOpInterface>(operand.getOwner())) {
      size_t index = operand.getOperandNumber();
      ArrayRef<int64_t> at = *collective.getAt();
      return index < at.size() ? at[index] : at.front(); // sizes come last
    }
    return *getCoordinate(operand.getOwner());
  }

  ClusterOp cluster;
  bool connected;
  int64_t numCoordinates = 1;
};

/// Checks the runs of a cluster against those of its step.
class RunVerifier {
public:
  RunVerifier(ClusterOp cluster, SymbolTable &symbols)
      : cluster(cluster), symbols(symbols),
        numMicrobatches(cluster.getMicrobatches()) {}

  LogicalResult run() {
    step = symbols.lookup<StepOp>(cluster.getOf());
    if (!step)
      return cluster.emitOpError("expected a step, got ")
             << cluster.getOfAttr();
    if (int64_t(step.getMicrobatches().value_or(1)) != numMicrobatches)
      return cluster.emitOpError("expected the ")
             << step.getMicrobatches().value_or(1) << " microbatches of "
             << cluster.getOfAttr() << ", got " << numMicrobatches;
    numberChunks();
    if (failed(checkHomes()))
      return failure();
    for (auto run : cluster.getBlock().getOps<RunOp>()) {
      auto chunk = chunks.find(run.getChunkAttr());
      if (chunk == chunks.end())
        return run.emitOpError("expected a chunk that ")
               << cluster.getOfAttr() << " runs, got " << run.getChunkAttr();
      if (chunk->second.op.getPass() == Pass::P)
        continue; // made wherever it is needed
      if (failed(checkRun(run, chunk->second)))
        return failure();
    }
    return checkComplete();
  }

private:
  struct Entry {
    ChunkOp op;
    size_t index;
  };

  void numberChunks() {
    for (auto run : step.getBlock().getOps<RunOp>()) {
      ChunkOp chunk = number(run.getChunkAttr());
      for (HalfAttr half : {chunk.getInputAttr(), chunk.getWeightAttr()})
        if (half)
          halves.insert(number(half.getChunk()));
    }
    runs.resize(chunks.size() * numMicrobatches);
  }

  ChunkOp number(FlatSymbolRefAttr name) {
    auto chunk = symbols.lookup<ChunkOp>(name.getValue());
    chunks.insert({name, {chunk, chunks.size()}});
    if (chunk.getPass() == Pass::I)
      inputGradients[chunk.getOfAttr()] = name;
    return chunk;
  }

  /// Every stage has a home. Rows of homes are equally long.
  LogicalResult checkHomes() {
    if (!step.getHomes())
      return success();
    auto row = cast<DenseI64ArrayAttr>((*step.getHomes())[0]);
    for (auto &entry : chunks) {
      int64_t stage = entry.second.op.getStage().value_or(0);
      if (stage >= row.size())
        return step.emitOpError("expected a home for stage ")
               << stage << " of " << entry.first << ", got homes of "
               << row.size() << " stages";
    }
    return success();
  }

  LogicalResult checkRun(RunOp run, Entry &chunk) {
    if (!run.getMb() || int64_t(*run.getMb()) >= numMicrobatches)
      return run.emitOpError("expected a microbatch below ")
             << numMicrobatches << ", got " << run.getMbAttr();
    int64_t mb = *run.getMb();
    RunOp &known = runs[chunk.index * numMicrobatches + mb];
    if (known) {
      InFlightDiagnostic error = run.emitOpError("expected one run of ")
                                 << run.getChunkAttr() << " for microbatch "
                                 << mb << ", got a second";
      error.attachNote(known.getLoc()) << "the other run is here";
      return failure();
    }
    known = run;
    int64_t home = step.getHome(chunk.op.getStage().value_or(0), mb);
    if (*getCoordinate(run) != home)
      return run.emitOpError("expected to run at coordinate ")
             << home << ", the home of its stage, got " << *getCoordinate(run);
    return cluster.getPhase() >= Phase::Ordered ? checkOrder(run, chunk.op, mb)
                                                : success();
  }

  /// Forward comes before backward, and input before weight gradients.
  LogicalResult checkOrder(RunOp run, ChunkOp chunk, int64_t mb) {
    auto check = [&](Attribute first) -> LogicalResult {
      auto found = chunks.find(first);
      if (found == chunks.end() ||
          runs[found->second.index * numMicrobatches + mb])
        return success();
      return run.emitOpError("expected to come behind the run of ")
             << first << " for microbatch " << mb;
    };
    if (chunk.getOfAttr() && failed(check(chunk.getOfAttr())))
      return failure();
    if (chunk.getPass() == Pass::W)
      return check(inputGradients.lookup(chunk.getOfAttr()));
    return success();
  }

  bool isRun(Attribute name, int64_t mb) {
    return runs[chunks.find(name)->second.index * numMicrobatches + mb];
  }

  /// Every chunk of the step runs, as a whole or in halves.
  LogicalResult checkComplete() {
    for (auto &[name, chunk] : chunks)
      if (chunk.op.getPass() != Pass::P && !halves.contains(chunk.op))
        for (int64_t mb = 0; mb < numMicrobatches; ++mb)
          if (failed(checkComplete(name, chunk.op, mb)))
            return failure();
    return success();
  }

  LogicalResult checkComplete(Attribute name, ChunkOp chunk, int64_t mb) {
    SmallVector<Attribute> parts;
    for (HalfAttr half : {chunk.getInputAttr(), chunk.getWeightAttr()})
      if (half)
        parts.push_back(half.getChunk());
    auto given = [&](Attribute part) { return isRun(part, mb); };
    bool whole = isRun(name, mb), any = llvm::any_of(parts, given);
    if (whole != any && (whole || llvm::all_of(parts, given)))
      return success();
    InFlightDiagnostic error = cluster.emitOpError("expected a run of ")
                               << name;
    for (auto [index, part] : llvm::enumerate(parts))
      error << (index == 0 ? ", or else of " : " and ") << part;
    error << " for microbatch " << mb << ", got "
          << (whole ? "both"
              : any ? "only a half"
                    : "none");
    error.attachNote(chunk.getLoc()) << "the chunk is here";
    return failure();
  }

  ClusterOp cluster;
  SymbolTable &symbols;
  int64_t numMicrobatches;
  StepOp step;
  llvm::MapVector<Attribute, Entry> chunks;
  llvm::DenseSet<Operation *> halves; // chunks that may run in place of another
  llvm::DenseMap<Attribute, Attribute> inputGradients; // by forward chunk
  std::vector<RunOp> runs; // by chunk and microbatch
};

} // namespace

LogicalResult verifyCluster(ClusterOp cluster, SymbolTable &symbols) {
  if (failed(PlacementVerifier(cluster).run()))
    return failure();
  return RunVerifier(cluster, symbols).run();
}

} // namespace piper
