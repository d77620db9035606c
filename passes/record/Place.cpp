//===- Place.cpp - Record which coordinate runs which chunk
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "passes/Passes.h"
#include "passes/support/Facts.h"

#include "dialect/Layouts.h"
#include "mlir/IR/Builders.h"

using namespace mlir;

namespace piper {

#define GEN_PASS_DEF_PLACEPASS
#include "passes/Passes.h.inc"

namespace {

/// `layer.0` of `layer.0$B` and of `layer.0$F.eval`.
StringRef baseName(ChunkOp chunk) {
  return chunk.getSymName().split('$').first;
}

/// FLOPs of what a chunk launches.
int64_t getFlops(ChunkOp chunk, SymbolTable &symbols) {
  int64_t flops = 0;
  for (auto launch : chunk.getBody().getOps<LaunchOp>()) {
    auto kernel = symbols.lookup<KernelOp>(launch.getKernel());
    if (kernel.getCostAttr())
      flops += kernel.getCostAttr().getFlops();
  }
  return flops;
}

/// Whether `weights` fit into `stages` runs of at most `limit` each, every run
/// with at least one chunk; gives the sizes of the runs.
bool fits(ArrayRef<int64_t> weights, int64_t stages, int64_t limit,
          SmallVectorImpl<int64_t> &sizes) {
  sizes.assign(1, 0);
  int64_t load = 0;
  for (auto [index, weight] : llvm::enumerate(weights)) {
    int64_t left = weights.size() - index;
    bool starve = left == stages - int64_t(sizes.size());
    if (sizes.back() > 0 && (load + weight > limit || starve)) {
      sizes.push_back(0);
      load = 0;
    }
    load += weight;
    if (load > limit || int64_t(sizes.size()) > stages)
      return false;
    ++sizes.back();
  }
  return int64_t(sizes.size()) == stages;
}

/// Cuts chunks into consecutive runs so that the heaviest is as light as can
/// be.
SmallVector<int64_t> cutByFlops(ArrayRef<int64_t> weights, int64_t stages) {
  int64_t low = 0, high = 0;
  for (int64_t weight : weights)
    high += weight;
  SmallVector<int64_t> sizes;
  while (low < high) {
    int64_t middle = low + (high - low) / 2;
    if (fits(weights, stages, middle, sizes))
      high = middle;
    else
      low = middle + 1;
  }
  fits(weights, stages, low, sizes);
  return sizes;
}

/// Applies one place directive.
class Placer {
public:
  Placer(ModuleOp module, DoPlaceOp place, FactRecorder &facts)
      : module(module), symbols(module), place(place), facts(facts),
        builder(module.getContext()) {}

  LogicalResult run() {
    if (!place.getSelect().isAll() || place.getSelect().getNegated())
      return place.emitOpError("expected to place all chunks, got ")
             << place.getSelect();
    AxisAttr axis = findMesh(module).lookupAxis(place.getAxis());
    if (!axis || axis.getRole() != AxisRole::Unrolled)
      return place.emitOpError("expected an unrolled axis of the mesh, got '")
             << place.getAxis() << "'";
    if (failed(cut()))
      return failure();
    FailureOr<ArrayAttr> homes = getHomes(axis.getSize());
    if (failed(homes))
      return failure();
    for (auto step : module.getOps<StepOp>())
      if (failed(facts.record(step, "homes", *homes, place)))
        return failure();
    return success();
  }

private:
  /// Gives every chunk its stage, in the order in which the step runs them.
  LogicalResult cut() {
    llvm::MapVector<StringRef, int64_t> weights;
    for (auto step : module.getOps<StepOp>())
      for (auto run : step.getBlock().getOps<RunOp>()) {
        auto chunk = symbols.lookup<ChunkOp>(run.getChunk());
        if (chunk.getPass() == Pass::F || weights.contains(baseName(chunk)))
          weights[baseName(chunk)] += getFlops(chunk, symbols);
      }
    int64_t stages = place.getStages();
    if (int64_t(weights.size()) < stages)
      return place.emitOpError("expected at least one chunk per stage, got ")
             << weights.size() << " chunks and " << stages << " stages";
    SmallVector<int64_t> loads;
    for (const auto &entry : weights)
      loads.push_back(entry.second);
    SmallVector<int64_t> sizes = place.getSizes()
                                     ? llvm::to_vector(*place.getSizes())
                                     : cutByFlops(loads, stages);
    if (llvm::any_of(sizes, [](int64_t size) { return size < 1; }))
      return place.emitOpError("expected at least one chunk per stage, got "
                               "sizes [")
             << sizes << "]";
    if (llvm::sum_of(sizes) != int64_t(weights.size()))
      return place.emitOpError("expected sizes that add up to ")
             << weights.size() << " chunks, got " << llvm::sum_of(sizes);
    return setStages(weights, sizes);
  }

  LogicalResult setStages(const llvm::MapVector<StringRef, int64_t> &chunks,
                          ArrayRef<int64_t> sizes) {
    llvm::StringMap<int64_t> stageOf;
    auto next = chunks.begin();
    for (auto [stage, size] : llvm::enumerate(sizes))
      for (int64_t i = 0; i < size; ++i)
        stageOf[(next++)->first] = stage;
    for (auto chunk : module.getOps<ChunkOp>()) {
      auto stage = stageOf.find(baseName(chunk));
      if (chunk.getPass() == Pass::P || stage == stageOf.end())
        continue;
      if (failed(facts.record(chunk, "stage",
                              builder.getI64IntegerAttr(stage->second), place)))
        return failure();
    }
    return success();
  }

  /// One row of coordinates per stage, or one such row per microbatch.
  FailureOr<ArrayAttr> getHomes(int64_t size) {
    SmallVector<Attribute> rows;
    if (place.getHomes()) {
      llvm::append_range(rows, *place.getHomes());
    } else if (place.getCoordinates()) {
      rows.push_back(builder.getDenseI64ArrayAttr(*place.getCoordinates()));
    } else {
      auto each = llvm::to_vector(
          llvm::seq<int64_t>(0, static_cast<int64_t>(place.getStages())));
      rows.push_back(builder.getDenseI64ArrayAttr(each));
    }
    for (Attribute row : rows)
      for (int64_t coordinate : cast<DenseI64ArrayAttr>(row).asArrayRef())
        if (coordinate < 0 || coordinate >= size)
          return FailureOr<ArrayAttr>(
              place.emitOpError("expected coordinates below ")
              << size << " on axis '" << place.getAxis() << "', got "
              << coordinate);
    return builder.getArrayAttr(rows);
  }

  ModuleOp module;
  SymbolTable symbols;
  DoPlaceOp place;
  FactRecorder &facts;
  Builder builder;
};

class PlacePass : public impl::PlacePassBase<PlacePass> {
  void runOnOperation() override {
    FactRecorder facts;
    auto places = findDirectives<DoPlaceOp>(getOperation());
    for (DoPlaceOp place : places)
      if (failed(Placer(getOperation(), place, facts).run()))
        return signalPassFailure();
    if (places.empty())
      placeOnOne();
  }

  /// Without a place directive there is one stage, on the only coordinate.
  void placeOnOne() {
    MeshOp mesh = findMesh(getOperation());
    if (mesh && mesh.getNumCoordinates() > 1) {
      mesh.emitOpError("expected a place directive for axis '")
          << mesh.getUnrolledAxis().getName().getValue() << "'";
      return signalPassFailure();
    }
    Builder builder(&getContext());
    for (auto chunk : getOperation().getOps<ChunkOp>())
      if (chunk.getPass() != piper::Pass::P)
        chunk.setStage(0);
    for (auto step : getOperation().getOps<StepOp>())
      step.setHomesAttr(
          builder.getArrayAttr(builder.getDenseI64ArrayAttr({0})));
  }
};

} // namespace
} // namespace piper
