//===- StepOps.cpp - Rules of steps, kernels, chunks and what they hold
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "dialect/Layouts.h"

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
// Step
//===----------------------------------------------------------------------===//

void StepOp::getAsmBlockArgumentNames(Region &region,
                                      OpAsmSetValueNameFn setName) {
  for (auto [argument, name] :
       llvm::zip(region.getArguments(), getInputs().getAsRange<StringAttr>()))
    setName(argument, name.getValue());
}

LogicalResult StepOp::verify() {
  size_t count = getBody().getNumArguments();
  if (getInputs().size() != count || getDims().size() != count)
    return emitOpError("expected a name and a dim for each of ")
           << count << " inputs, got " << getInputs().size() << " and "
           << getDims().size();
  if (getPhase() > Phase::Bucketed)
    return emitOpError("expected phase captured, outlined or bucketed, got ")
           << stringifyPhase(getPhase());
  bool captured = getPhase() == Phase::Captured;
  for (Operation &op : getBlock()) {
    if (captured ? isa<RunOp>(op) : isa<TorchOp, GradOp>(op))
      return op.emitOpError("is not expected in a step of phase ")
             << stringifyPhase(getPhase());
    if (auto torch = dyn_cast<TorchOp>(op); torch && !torch.getTagAttr())
      return op.emitOpError("expected a tag: every op belongs to a chunk");
  }
  return success();
}

int64_t StepOp::getHome(int64_t stage, int64_t microbatch) {
  if (!getHomes())
    return 0;
  ArrayAttr rows = *getHomes();
  Attribute row = rows[rows.size() == 1 ? 0 : microbatch];
  return cast<DenseI64ArrayAttr>(row)[stage];
}

//===----------------------------------------------------------------------===//
// Kernel
//===----------------------------------------------------------------------===//

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

/// Whether a body returns what the signature of its container says.
static LogicalResult verifySignature(Operation *op, FunctionType type,
                                     Block &block) {
  if (block.getArgumentTypes() != TypeRange(type.getInputs()))
    return op->emitOpError("expected arguments of the signature's types");
  auto returned = dyn_cast<ReturnOp>(block.back());
  if (!returned)
    return op->emitOpError("expected a return at the end");
  if (returned.getValues().getTypes() != TypeRange(type.getResults()))
    return returned.emitOpError("expected to return ")
           << type.getResults() << ", got " << returned.getValues().getTypes();
  return success();
}

LogicalResult KernelOp::verify() { return success(); }

LogicalResult KernelOp::verifyRegions() {
  Block &block = getBody().front();
  for (Operation &op : block)
    if (!isa<TorchOp, ReturnOp>(op))
      return op.emitOpError("is not expected in a kernel, which holds torch "
                            "ops only");
  if (failed(
          verifySignature(*this, cast<FunctionType>(getFunctionType()), block)))
    return failure();
  llvm::SmallDenseSet<Value> seen;
  for (Value value : block.back().getOperands()) {
    auto producer = value.getDefiningOp<TorchOp>();
    if (!producer || producer.isView())
      return block.back().emitOpError("expected results that alias nothing, "
                                      "got ")
             << (producer ? "a view" : "an argument");
    if (!seen.insert(value).second)
      return block.back().emitOpError("expected each value once");
  }
  return success();
}

//===----------------------------------------------------------------------===//
// Chunk
//===----------------------------------------------------------------------===//

LogicalResult ChunkOp::verify() {
  bool backward = getPass() != Pass::F && getPass() != Pass::P;
  if (backward != bool(getOf()))
    return emitOpError("expected `of` for a chunk of pass B, I or W and no "
                       "other, got pass ")
           << stringifyPass(getPass());
  if (!getDualResults())
    return success();
  if (getDualResults()->size() > 0 && !getOf())
    return emitOpError("expected `dual` only beside `of`");
  return success();
}

LogicalResult ChunkOp::verifyRegions() {
  Block &block = getBody().front();
  for (Operation &op : block)
    if (!isa<LaunchOp, ReadOp, GradOp, UnpackOp, PackOp, RelabelOp, SliceOp,
             ConvertOp, AxisIndexOp, HostWaitOp, ReturnOp,
             CollectiveOpInterface>(op))
      return op.emitOpError("is not expected in a chunk");
  return verifySignature(*this, cast<FunctionType>(getFunctionType()), block);
}

/// Checks one pair of primal and cotangent on every axis.
static LogicalResult verifyDual(ChunkOp chunk, Type primal, Type gradient,
                                const Twine &what) {
  LayoutAttr layout = getLayout(primal);
  if (!layout)
    return success();
  for (AxisKindAttr axis : layout.getAxes()) {
    Kind expected = dual(axis.getKind());
    Kind got = getKind(gradient, axis.getAxis());
    if (got != expected)
      return chunk.emitOpError("expected the gradient of ")
             << what << " to be " << stringifyKind(expected) << " on axis '"
             << axis.getAxis().getValue() << "', got " << stringifyKind(got);
  }
  return success();
}

LogicalResult ChunkOp::verifySymbolUses(SymbolTableCollection &symbols) {
  if (!getOf())
    return success();
  auto forward = symbols.lookupNearestSymbolFrom<ChunkOp>(*this, getOfAttr());
  if (!forward || forward.getPass() != Pass::F)
    return emitOpError("expected `of` to name a chunk of pass F, got ")
           << getOfAttr();
  auto primal = cast<FunctionType>(forward.getFunctionType());
  auto own = cast<FunctionType>(getFunctionType());
  ArrayRef<int64_t> results = getDualResults().value_or(ArrayRef<int64_t>());
  ArrayRef<int64_t> operands = getDualOperands().value_or(ArrayRef<int64_t>());
  if (results.size() > own.getNumInputs() ||
      operands.size() > own.getNumResults())
    return emitOpError("expected no more duals than operands and results");
  for (auto [index, result] : llvm::enumerate(results)) {
    if (result < 0 || result >= primal.getNumResults())
      return emitOpError("expected a result of ")
             << getOfAttr() << ", got " << result;
    if (failed(verifyDual(*this, primal.getResult(result), own.getInput(index),
                          "result " + Twine(result))))
      return failure();
  }
  for (auto [index, operand] : llvm::enumerate(operands)) {
    if (operand < 0 || operand >= primal.getNumInputs())
      return emitOpError("expected an operand of ")
             << getOfAttr() << ", got " << operand;
    if (failed(verifyDual(*this, primal.getInput(operand), own.getResult(index),
                          "operand " + Twine(operand))))
      return failure();
  }
  return success();
}

//===----------------------------------------------------------------------===//
// Torch
//===----------------------------------------------------------------------===//

/// Counts how often each operand stands in a template.
static void countPlaces(Attribute arg, MutableArrayRef<int64_t> places) {
  if (auto place = dyn_cast<ArgAttr>(arg)) {
    if (place.getIndex() >= 0 && place.getIndex() < int64_t(places.size()))
      ++places[place.getIndex()];
  } else if (auto list = dyn_cast<ArrayAttr>(arg)) {
    for (Attribute item : list)
      countPlaces(item, places);
  }
}

LogicalResult TorchOp::verify() {
  SmallVector<int64_t> places(getInputs().size());
  countPlaces(getArgs(), places);
  for (NamedAttribute entry : getKwargs())
    countPlaces(entry.getValue(), places);
  for (auto [index, count] : llvm::enumerate(places))
    if (count != 1)
      return emitOpError("expected operand ")
             << index << " once in the argument template, got it " << count
             << " times";
  return success();
}

void TorchOp::getEffects(
    SmallVectorImpl<SideEffects::EffectInstance<MemoryEffects::Effect>>
        &effects) {
  Effect effect = getFacts().getEffect();
  if (effect != Effect::Pure && effect != Effect::View)
    effects.emplace_back(MemoryEffects::Write::get(), OrderResource::get());
}

//===----------------------------------------------------------------------===//
// Launch and run
//===----------------------------------------------------------------------===//

/// Checks types against a signature, up to what `view` makes of the types.
static LogicalResult verifyCall(Operation *op, FunctionType type,
                                TypeRange inputs, TypeRange results,
                                llvm::function_ref<Type(Type, Type)> view) {
  if (inputs.size() != type.getNumInputs() ||
      results.size() != type.getNumResults())
    return op->emitOpError("expected ")
           << type.getNumInputs() << " operands and " << type.getNumResults()
           << " results, got " << inputs.size() << " and " << results.size();
  for (auto [index, given, wanted] : llvm::enumerate(inputs, type.getInputs()))
    if (view(given, wanted) != wanted)
      return op->emitOpError("expected operand ")
             << index << " of type " << wanted << ", got " << given;
  for (auto [index, given, wanted] :
       llvm::enumerate(results, type.getResults()))
    if (view(given, wanted) != wanted)
      return op->emitOpError("expected result ")
             << index << " of type " << wanted << ", got " << given;
  return success();
}

/// On a manual axis a kernel mixes what it is given: only of replicated
/// operands are results replicated, and no operand may be an unfinished sum.
static LogicalResult verifyLaunchKinds(LaunchOp launch, MeshOp mesh) {
  for (AxisAttr axis : mesh.getAxesWithRole(AxisRole::Manual)) {
    StringRef name = axis.getName();
    bool replicated = true;
    for (Value input : launch.getInputs()) {
      Kind kind = getKind(input.getType(), name);
      if (kind == Kind::Partial)
        return launch.emitOpError("expected no partial operand on axis '")
               << name << "', got " << input.getType();
      replicated &= kind == Kind::Replicated;
    }
    Kind expected = replicated ? Kind::Replicated : Kind::Varying;
    for (Value result : launch.getResults())
      if (getLayout(result.getType()) &&
          getKind(result.getType(), name) != expected)
        return launch.emitOpError("expected results that are ")
               << stringifyKind(expected) << " on axis '" << name << "', got "
               << result.getType();
  }
  return success();
}

LogicalResult LaunchOp::verifySymbolUses(SymbolTableCollection &symbols) {
  auto kernel =
      symbols.lookupNearestSymbolFrom<KernelOp>(*this, getKernelAttr());
  if (!kernel)
    return emitOpError("expected a kernel, got ") << getKernelAttr();
  if (failed(verifyCall(*this, cast<FunctionType>(kernel.getFunctionType()),
                        getInputs().getTypes(), getResults().getTypes(),
                        [](Type given, Type wanted) -> Type {
                          return kernelView(given, wanted);
                        })))
    return failure();
  MeshOp mesh = findMesh(*this);
  return mesh ? verifyLaunchKinds(*this, mesh) : success();
}

LogicalResult RunOp::verifySymbolUses(SymbolTableCollection &symbols) {
  auto chunk = symbols.lookupNearestSymbolFrom<ChunkOp>(*this, getChunkAttr());
  if (!chunk)
    return emitOpError("expected a chunk, got ") << getChunkAttr();
  return verifyCall(*this, cast<FunctionType>(chunk.getFunctionType()),
                    getInputs().getTypes(), getResults().getTypes(),
                    [](Type given, Type) { return given; });
}

//===----------------------------------------------------------------------===//
// Buckets in chunks
//===----------------------------------------------------------------------===//

/// Checks that `types` are the members of a bucket, as one rank holds them.
static LogicalResult verifyMembers(Operation *op, FlatSymbolRefAttr name,
                                   Type flat, TypeRange types,
                                   SymbolTableCollection &symbols) {
  auto bucket = symbols.lookupNearestSymbolFrom<BucketOp>(op, name);
  MeshOp mesh = findMesh(op);
  if (!bucket || !mesh)
    return op->emitOpError("expected a bucket and a mesh, got ") << name;
  if (bucket.getMembers().size() != types.size())
    return op->emitOpError("expected ")
           << bucket.getMembers().size() << " members, got " << types.size();
  Type dtype = cast<RankedTensorType>(flat).getElementType();
  for (auto [member, type] :
       llvm::zip(bucket.getMembers().getAsRange<FlatSymbolRefAttr>(), types)) {
    auto state = symbols.lookupNearestSymbolFrom<StateOp>(op, member);
    if (!state)
      return op->emitOpError("expected a state, got ") << member;
    auto tensor = cast<RankedTensorType>(type);
    if (tensor.getShape() != ArrayRef<int64_t>(localShape(state, mesh)) ||
        tensor.getElementType() != dtype)
      return op->emitOpError("expected ")
             << member << " of dtype " << dtype
             << " and its shape on one rank, got " << type;
  }
  return success();
}

LogicalResult UnpackOp::verifySymbolUses(SymbolTableCollection &symbols) {
  return verifyMembers(*this, getBucketAttr(), getValue().getType(),
                       getMembers().getTypes(), symbols);
}

LogicalResult PackOp::verifySymbolUses(SymbolTableCollection &symbols) {
  if (failed(verifyMembers(*this, getBucketAttr(), getResult().getType(),
                           getMembers().getTypes(), symbols)))
    return failure();
  auto bucket =
      symbols.lookupNearestSymbolFrom<BucketOp>(*this, getBucketAttr());
  auto state = symbols.lookupNearestSymbolFrom<StateOp>(
      *this, cast<FlatSymbolRefAttr>(bucket.getMembers()[0]));
  for (AxisAttr axis : findMesh(*this).getAxesWithRole(AxisRole::Manual)) {
    StringRef name = axis.getName();
    LayoutAttr held = state.getLayoutAttr();
    bool sharded = held && held.getKind(name) != Kind::Replicated;
    Kind expected = sharded ? Kind::Varying : Kind::Partial;
    if (getKind(getResult().getType(), name) != expected)
      return emitOpError("expected a contribution that is ")
             << stringifyKind(expected) << " on axis '" << name << "', got "
             << getResult().getType();
  }
  return success();
}

LogicalResult RelabelOp::verify() {
  if (withLayout(getValue().getType(), {}) !=
      withLayout(getResult().getType(), {}))
    return emitOpError("expected only kinds to differ, got ")
           << getValue().getType() << " and " << getResult().getType();
  return success();
}
