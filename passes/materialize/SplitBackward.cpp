//===- SplitBackward.cpp - Cut backward chunks in input and weight gradients
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

// A zero-bubble schedule sends input gradients on at once (pass I) and computes
// weight gradients when nothing else is to be done (pass W). Pass I is what the
// results of a backward chunk need that are not gradients of states; pass W is
// the rest.

#include "passes/Passes.h"
#include "passes/materialize/KernelHalves.h"
#include "passes/support/ChunkBuilder.h"
#include "passes/support/Facts.h"
#include "passes/support/KernelKinds.h"

#include "dialect/Cells.h"
#include "dialect/Layouts.h"
#include "mlir/IR/Builders.h"
#include "mlir/IR/IRMapping.h"
#include "llvm/ADT/DenseSet.h"

#include <map>

using namespace mlir;

namespace piper {

#define GEN_PASS_DEF_SPLITBACKWARDPASS
#include "passes/Passes.h.inc"

namespace {

/// The ops of one half and the values that they use.
struct HalfBody {
  llvm::SmallPtrSet<Operation *, 16> ops;
  llvm::SmallPtrSet<Value, 16> used;
};

/// Kernels that were cut, with the results that the first half returns and the
/// arguments that are gradients.
using KernelSlices = std::map<
    std::tuple<Operation *, std::vector<int64_t>, std::vector<int64_t>>,
    KernelHalves>;

/// Cuts one chunk.
class ChunkSplitter {
public:
  /// `cotangents` are the operands of the chunk that are gradients.
  ChunkSplitter(ChunkOp whole, ArrayRef<int64_t> cotangents,
                SymbolTable &symbols, KernelTable &kernels,
                KernelSlices &slices, KernelKinds &kinds)
      : whole(whole), block(whole.getBody().front()), symbols(symbols),
        kernels(kernels), slices(slices), kinds(kinds), builder(whole) {
    for (int64_t index : cotangents)
      gradients.insert(block.getArgument(index));
  }

  LogicalResult run() {
    for (Operation &op : block)
      if (llvm::any_of(op.getOperands(), [&](Value operand) {
            return gradients.contains(operand);
          }))
        gradients.insert(op.result_begin(), op.result_end());
    for (auto [index, value] :
         llvm::enumerate(block.getTerminator()->getOperands())) {
      bool weight = value.getDefiningOp<PackOp>() != nullptr;
      (weight ? weightResults : inputResults).push_back(index);
    }
    if (failed(cutLaunches()))
      return failure();
    share();
    if (!inputResults.empty())
      whole.setInputAttr(build(Pass::I, input, inputResults, {}, passed));
    if (!weightResults.empty())
      whole.setWeightAttr(build(Pass::W, weight, weightResults, passed, {}));
    return success();
  }

private:
  Value getResult(int64_t index) {
    return block.getTerminator()->getOperand(index);
  }

  /// Ops that are done by whoever needs them, because they cost nothing.
  static bool isFree(Operation *op) { return isa<UnpackOp, RelabelOp>(op); }

  /// Replaces every launch that both halves need by two launches. What input
  /// results need is found on the way, last op first.
  LogicalResult cutLaunches() {
    for (int64_t index : inputResults)
      input.used.insert(getResult(index));
    SmallVector<Operation *> ops;
    for (Operation &op : llvm::reverse(block.without_terminator()))
      ops.push_back(&op);
    for (Operation *op : ops) {
      SmallVector<int64_t> first;
      for (OpResult result : op->getResults())
        if (input.used.contains(result))
          first.push_back(result.getResultNumber());
      if (first.empty())
        continue;
      Operation *own = op;
      if (auto launch = dyn_cast<LaunchOp>(op);
          launch && first.size() < op->getNumResults()) {
        FailureOr<Operation *> cut = cutLaunch(launch, first);
        if (failed(cut))
          return failure();
        own = *cut;
      }
      needForInput(own);
    }
    return success();
  }

  void needForInput(Operation *op) {
    input.ops.insert(op);
    input.used.insert(op->operand_begin(), op->operand_end());
  }

  /// Returns the launch of the first half.
  FailureOr<Operation *> cutLaunch(LaunchOp launch, ArrayRef<int64_t> first) {
    auto kernel = symbols.lookup<KernelOp>(launch.getKernel());
    std::vector<int64_t> cotangents;
    for (auto [index, input] : llvm::enumerate(launch.getInputs()))
      if (gradients.contains(input))
        cotangents.push_back(index);
    auto [entry, fresh] =
        slices.try_emplace({kernel.getOperation(), first.vec(), cotangents});
    if (fresh) {
      FailureOr<KernelHalves> halves = sliceKernel(kernel, first, cotangents);
      if (failed(halves))
        return failure();
      entry->second = *halves;
      for (KernelHalf *half : {&entry->second.first, &entry->second.second})
        half->kernel = kernels.intern(half->kernel);
    }
    const KernelHalves &halves = entry->second;
    builder.setInsertionPoint(launch);
    LaunchOp one = launchHalf(launch, halves.first, {});
    LaunchOp two = launchHalf(launch, halves.second,
                              one.getResults().take_back(halves.numPassed));
    for (auto [half, own] :
         {std::pair(&halves.first, one), std::pair(&halves.second, two)})
      for (auto [index, result] : llvm::enumerate(half->results)) {
        Value before = launch.getResult(result);
        Value after = withTypeOf(before, own.getResult(index));
        before.replaceAllUsesWith(after);
        if (input.used.erase(before)) {
          input.used.insert(after);
          needForInput(after.getDefiningOp());
        }
      }
    launch.erase();
    return one.getOperation();
  }

  /// A result of a half in the kind that the whole gave it: what a half makes
  /// of replicated operands alone is the same on all ranks.
  Value withTypeOf(Value before, Value after) {
    if (before.getType() == after.getType())
      return after;
    return RelabelOp::create(builder, after.getLoc(), before.getType(), after);
  }

  LaunchOp launchHalf(LaunchOp launch, const KernelHalf &half,
                      ValueRange given) {
    SmallVector<Value> inputs;
    for (int64_t argument : half.arguments)
      inputs.push_back(launch.getInputs()[argument]);
    llvm::append_range(inputs, given);
    KernelOp kernel = half.kernel;
    SmallVector<Type> types(
        cast<FunctionType>(kernel.getFunctionType()).getResults());
    if (MeshOp mesh = findMesh(whole))
      for (auto [type, layout] :
           llvm::zip(types, kinds.getLayouts(kernel, mesh, inputs)))
        type = withKinds(type, layout);
    return LaunchOp::create(builder, launch.getLoc(), types,
                            FlatSymbolRefAttr::get(kernel.getSymNameAttr()),
                            inputs, launch.getLabelAttr(),
                            launch.getStreamAttr(), IntegerAttr(),
                            IntegerAttr(), ValueRange());
  }

  /// Gives the weight half what it needs and the input half does not make.
  void share() {
    for (int64_t index : weightResults)
      weight.used.insert(getResult(index));
    for (Operation &op : llvm::reverse(block.without_terminator())) {
      bool needed = llvm::any_of(op.getResults(), [&](Value result) {
        return weight.used.contains(result);
      });
      if (!needed || (input.ops.contains(&op) && !isFree(&op)))
        continue;
      weight.ops.insert(&op);
      weight.used.insert(op.operand_begin(), op.operand_end());
    }
    for (Operation &op : block.without_terminator())
      if (!weight.ops.contains(&op))
        for (Value result : op.getResults())
          if (weight.used.contains(result))
            passed.push_back(result);
  }

  /// Builds the chunk of one half. `given` are operands from the other half,
  /// `extra` results for it.
  HalfAttr build(Pass pass, HalfBody &body, ArrayRef<int64_t> results,
                 ArrayRef<Value> given, ArrayRef<Value> extra) {
    builder.setInsertionPointAfter(last ? last : whole);
    auto [base, rest] = whole.getSymName().rsplit('$');
    std::string name = // `layer.0$I1` of `layer.0$B1`
        (base + "$" + stringifyPass(pass) + rest.drop_front()).str();
    auto half = ChunkOp::create(
        builder, whole.getLoc(), name, builder.getFunctionType({}, {}), pass,
        whole.getOfAttr(), DenseI64ArrayAttr(), DenseI64ArrayAttr(), HalfAttr(),
        HalfAttr(), whole.getStageAttr());
    last = half;
    Block *inner = &half.getBody().emplaceBlock();
    builder.setInsertionPointToStart(inner);
    IRMapping mapping;
    SmallVector<int64_t> operands;
    auto take = [&](Value value) {
      mapping.map(value, inner->addArgument(value.getType(), value.getLoc()));
    };
    for (BlockArgument argument : block.getArguments())
      if (body.used.contains(argument)) {
        operands.push_back(argument.getArgNumber());
        take(argument);
      }
    llvm::for_each(given, take);
    for (Operation &op : block.without_terminator())
      if (body.ops.contains(&op))
        builder.clone(op, mapping);
    SmallVector<Value> values;
    for (int64_t index : results)
      values.push_back(mapping.lookup(getResult(index)));
    for (Value value : extra)
      values.push_back(mapping.lookup(value));
    ReturnOp::create(builder, whole.getLoc(), values);
    half.setFunctionType(builder.getFunctionType(
        inner->getArgumentTypes(), ValueRange(values).getTypes()));
    half.setDuals(select(whole.getDualResults(), operands),
                  select(whole.getDualOperands(), results));
    return HalfAttr::get(builder.getContext(),
                         FlatSymbolRefAttr::get(half.getSymNameAttr()),
                         operands, results);
  }

  /// The duals of a part of the whole's operands or results.
  static SmallVector<int64_t> select(std::optional<ArrayRef<int64_t>> duals,
                                     ArrayRef<int64_t> indices) {
    return llvm::map_to_vector(indices, [&](int64_t index) {
      return duals && index < int64_t(duals->size()) ? (*duals)[index]
                                                     : ChunkOp::noDual;
    });
  }

  ChunkOp whole;
  Block &block;
  SymbolTable &symbols;
  KernelTable &kernels;
  KernelSlices &slices;
  KernelKinds &kinds;
  OpBuilder builder;
  Operation *last = nullptr;                        // the chunk built last
  SmallVector<int64_t> inputResults, weightResults; // of the whole
  HalfBody input, weight;
  llvm::DenseSet<Value> gradients; // values that depend on a cotangent
  SmallVector<Value> passed;       // from input to weight
};

/// The stages whose backward some schedule cuts in two.
llvm::SmallDenseSet<int64_t> findSplitStages(ModuleOp module,
                                             SymbolTable &symbols) {
  llvm::SmallDenseSet<int64_t> stages;
  for (auto step : module.getOps<StepOp>()) {
    if (!step.getOrder())
      continue;
    for (const Cell &cell :
         readCells(symbols.lookup<ScheduleOp>(*step.getOrder())))
      if (cell.pass == piper::Pass::I || cell.pass == piper::Pass::W)
        stages.insert(cell.stage);
  }
  return stages;
}

/// The operands of a chunk that are gradients: where a run takes them from a
/// tangent or another backward pass. Without a run all are.
SmallVector<int64_t> findCotangents(ChunkOp chunk, SymbolTable &symbols) {
  auto module = chunk->getParentOfType<ModuleOp>();
  for (auto step : module.getOps<StepOp>())
    for (auto run : step.getBlock().getOps<RunOp>()) {
      if (run.getChunk() != chunk.getSymName())
        continue;
      SmallVector<int64_t> found;
      for (auto [index, input] : llvm::enumerate(run.getInputs())) {
        RunOp other = findRun(input);
        if (isa_and_nonnull<TangentOp>(input.getDefiningOp()) ||
            (other &&
             symbols.lookup<ChunkOp>(other.getChunk()).getPass() == Pass::B))
          found.push_back(index);
      }
      return found;
    }
  return llvm::to_vector(
      llvm::seq<int64_t>(chunk.getBody().front().getNumArguments()));
}

class SplitBackwardPass
    : public impl::SplitBackwardPassBase<SplitBackwardPass> {
  void runOnOperation() override {
    ModuleOp module = getOperation();
    SymbolTable symbols(module);
    auto stages = findSplitStages(module, symbols);
    if (stages.empty())
      return;
    KernelTable kernels(module);
    KernelSlices slices;
    KernelKinds kinds;
    for (auto chunk : llvm::to_vector(module.getOps<ChunkOp>()))
      if (chunk.getPass() == piper::Pass::B &&
          stages.contains(chunk.getStage().value_or(0)) &&
          failed(ChunkSplitter(chunk, findCotangents(chunk, symbols), symbols,
                               kernels, slices, kinds)
                     .run()))
        return signalPassFailure();
    eraseUnusedKernels(module);
  }

  /// The kernels that were cut are used no more.
  static void eraseUnusedKernels(ModuleOp module) {
    llvm::DenseSet<Attribute> used;
    for (auto chunk : module.getOps<ChunkOp>())
      for (auto launch : chunk.getBody().getOps<LaunchOp>())
        used.insert(launch.getKernelAttr().getAttr());
    for (auto kernel : llvm::make_early_inc_range(module.getOps<KernelOp>()))
      if (!used.contains(kernel.getSymNameAttr()))
        kernel.erase();
  }
};

} // namespace
} // namespace piper
