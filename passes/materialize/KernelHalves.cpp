//===- KernelHalves.cpp - Slice a backward kernel in two
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "passes/materialize/KernelHalves.h"

#include "passes/support/ChunkBuilder.h"

#include "mlir/IR/Builders.h"
#include "mlir/IR/IRMapping.h"
#include "llvm/ADT/DenseSet.h"

using namespace mlir;

namespace piper {

namespace {

/// What one half computes, and what it is given.
struct Side {
  llvm::SmallPtrSet<Operation *, 32> ops;
  llvm::SmallPtrSet<Value, 32> used; // values that its ops or results use
};

/// Whether an op is called once per half, each time for other results.
bool isMasked(Operation *op) {
  return cast<TorchOp>(op).getFacts().getMask().has_value();
}

class Slicer {
public:
  Slicer(KernelOp kernel, ArrayRef<int64_t> firstResults)
      : kernel(kernel), block(kernel.getBody().front()),
        returned(cast<ReturnOp>(block.back())), builder(kernel) {
    for (auto op : block.getOps<TorchOp>())
      hasRules |= op.getFacts().getRule() != nullptr;
    for (int64_t index = 0; index < int64_t(returned.getValues().size());
         ++index)
      (llvm::is_contained(firstResults, index) ? halves.first : halves.second)
          .results.push_back(index);
  }

  FailureOr<KernelHalves> run(ArrayRef<int64_t> cotangents) {
    for (int64_t index : halves.first.results)
      addFirst(returned.getValues()[index]);
    for (int64_t index : halves.second.results)
      addSecond(returned.getValues()[index]);
    if (failed(checkGain(cotangents)))
      return failure();
    halves.numPassed = passed.size();
    build(halves.first, first, {}, passed.getArrayRef());
    build(halves.second, second, passed.getArrayRef(), {});
    return halves;
  }

private:
  void addFirst(Value value) {
    first.used.insert(value);
    Operation *op = value.getDefiningOp();
    if (!op || !first.ops.insert(op).second)
      return;
    for (Value operand : op->getOperands())
      addFirst(operand);
  }

  void addSecond(Value value) {
    second.used.insert(value);
    Operation *op = value.getDefiningOp();
    if (!op)
      return;
    bool again = cast<TorchOp>(op).isView() ||
                 (isMasked(op) && !first.used.contains(value));
    if (first.ops.contains(op) && !again) {
      passed.insert(value);
      return;
    }
    if (second.ops.insert(op).second)
      for (Value operand : op->getOperands())
        addSecond(operand);
  }

  /// A gradient that falls off where one for the first half is made cannot be
  /// put off.
  LogicalResult checkGain(ArrayRef<int64_t> cotangents) {
    llvm::DenseSet<Value> gradients;
    for (int64_t index : cotangents)
      gradients.insert(block.getArgument(index));
    for (Operation &op : block)
      if (llvm::any_of(op.getOperands(), [&](Value operand) {
            return gradients.contains(operand);
          }))
        gradients.insert(op.result_begin(), op.result_end());
    for (Value value : passed) {
      if (first.used.contains(value) || !gradients.contains(value))
        continue;
      auto op = value.getDefiningOp<TorchOp>();
      return op.emitOpError("computes gradients of inputs and of states in one "
                            "call of '")
             << op.getOpName()
             << "', which has no rule by which the backward pass can be cut "
                "into I and W: expected an order that does not cut it, such "
                "as 1F1B or Interleaved1F1B, or an op whose backward takes a "
                "mask of results (`mask` among its facts)";
    }
    return success();
  }

  void build(KernelHalf &half, Side &side, ArrayRef<Value> given,
             ArrayRef<Value> extra) {
    OpBuilder::InsertionGuard guard(builder);
    half.kernel = KernelOp::create(builder, kernel.getLoc(), "",
                                   builder.getFunctionType({}, {}), CostAttr());
    Block *body = &half.kernel.getBody().emplaceBlock();
    builder.setInsertionPointToStart(body);
    IRMapping mapping;
    auto take = [&](Value value) {
      mapping.map(value, body->addArgument(value.getType(), value.getLoc()));
    };
    for (BlockArgument argument : block.getArguments())
      if (side.used.contains(argument)) {
        half.arguments.push_back(argument.getArgNumber());
        take(argument);
      }
    llvm::for_each(given, take);
    llvm::SmallPtrSet<Value, 8> asked(extra.begin(), extra.end());
    asked.insert_range(side.used);
    for (Value value : given)
      asked.erase(value);
    for (Operation &op : block)
      if (side.ops.contains(&op))
        clone(cast<TorchOp>(op), asked, mapping);
    SmallVector<Value> values;
    for (int64_t index : half.results)
      values.push_back(mapping.lookup(returned.getValues()[index]));
    for (Value value : extra)
      values.push_back(mapping.lookup(value));
    finish(half.kernel, values);
  }

  /// Clones an op, with a mask that asks only for results that are used.
  void clone(TorchOp op, const llvm::SmallPtrSetImpl<Value> &asked,
             IRMapping &mapping) {
    if (!isMasked(op)) {
      builder.clone(*op, mapping);
      return;
    }
    SmallVector<Type> types;
    SmallVector<Value> inputs, results;
    for (Value input : op.getInputs())
      inputs.push_back(mapping.lookup(input));
    SmallVector<int64_t> places, kept;
    if (auto known = op->getAttrOfType<DenseI64ArrayAttr>("positions"))
      llvm::append_range(places, known.asArrayRef());
    else
      llvm::append_range(places, llvm::seq<int64_t>(op->getNumResults()));
    int64_t position = *op.getFacts().getMask();
    SmallVector<Attribute> args(op.getArgs().getValue());
    size_t flags = cast<ArrayAttr>(args[position]).size();
    SmallVector<Attribute> mask(flags, builder.getBoolAttr(false));
    for (auto [result, place] : llvm::zip(op.getResults(), places)) {
      if (!asked.contains(result))
        continue;
      mask[place] = builder.getBoolAttr(true);
      types.push_back(result.getType());
      results.push_back(result);
      kept.push_back(place);
    }
    args[position] = builder.getArrayAttr(mask);
    auto half =
        TorchOp::create(builder, op.getLoc(), types, inputs, op.getOpNameAttr(),
                        builder.getArrayAttr(args), op.getKwargsAttr(),
                        op.getFacts(), op.getRecomputeAttr(), op.getTagAttr());
    if (!llvm::equal(kept, llvm::seq<int64_t>(kept.size())))
      half->setAttr("positions", builder.getDenseI64ArrayAttr(kept));
    for (auto [result, value] : llvm::zip(results, half.getResults()))
      mapping.map(result, value);
  }

  /// Returns values that alias nothing, each once.
  void finish(KernelOp half, ArrayRef<Value> values) {
    SmallVector<Value> fresh;
    for (Value value : values) {
      auto maker = value.getDefiningOp<TorchOp>();
      bool own = maker && !maker.isView() && !maker.getFacts().getStrided();
      fresh.push_back(own && !llvm::is_contained(fresh, value)
                          ? value
                          : copyValue(value, builder, hasRules));
    }
    ReturnOp::create(builder, kernel.getLoc(), fresh);
    half.setFunctionType(builder.getFunctionType(
        half.getBody().getArgumentTypes(), ValueRange(fresh).getTypes()));
  }

  KernelOp kernel;
  Block &block;
  ReturnOp returned;
  OpBuilder builder;
  bool hasRules = false;
  KernelHalves halves;
  Side first, second;
  llvm::SetVector<Value> passed;
};

} // namespace

FailureOr<KernelHalves> sliceKernel(KernelOp kernel,
                                    ArrayRef<int64_t> firstResults,
                                    ArrayRef<int64_t> cotangents) {
  return Slicer(kernel, firstResults).run(cotangents);
}

} // namespace piper
