//===- StepOps.cpp - Rules of steps, kernels, chunks and what they hold
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "dialect/Rules.h"
#include "dialect/Symbols.h"

using namespace mlir;
using namespace piper;

//===----------------------------------------------------------------------===//
// Step
//===----------------------------------------------------------------------===//

/// Checks that homes are one row, or one per microbatch, of one length.
static LogicalResult verifyHomes(StepOp step) {
  if (!step.getHomes())
    return success();
  ArrayAttr rows = *step.getHomes();
  uint64_t perMicrobatch = step.getMicrobatches().value_or(rows.size());
  if (rows.empty() || (rows.size() != 1 && rows.size() != perMicrobatch))
    return step.emitOpError("expected homes in one row or one per "
                            "microbatch, got ")
           << rows.size() << " rows";
  int64_t stages = cast<DenseI64ArrayAttr>(rows[0]).size();
  for (auto row : rows.getAsRange<DenseI64ArrayAttr>())
    if (row.size() != stages)
      return step.emitOpError("expected a home for each of ")
             << stages << " stages, got " << row.size();
  return success();
}

/// Checks that `primals` or `cotangents` has a list of numbers for each result.
static LogicalResult verifyNumbers(Operation &op, StringRef name) {
  Attribute attr = op.getAttr(name);
  if (!attr)
    return success();
  auto isList = [](Attribute list) {
    auto numbers = dyn_cast<ArrayAttr>(list);
    return numbers && llvm::all_of(numbers, llvm::IsaPred<IntegerAttr>);
  };
  auto lists = dyn_cast<ArrayAttr>(attr);
  if (!lists || lists.size() != op.getNumResults() ||
      !llvm::all_of(lists, isList))
    return op.emitOpError("expected ")
           << name << " to be a list of numbers for each of "
           << op.getNumResults() << " results, got " << attr;
  return success();
}

LogicalResult StepOp::verify() {
  size_t count = getBody().getNumArguments();
  if (getInputs().size() != count || getDims().size() != count)
    return emitOpError("expected a name and a dim for each of ")
           << count << " inputs, got " << getInputs().size() << " and "
           << getDims().size();
  for (auto [name, type] :
       llvm::zip_equal(getInputs(), getBody().getArgumentTypes()))
    if (!isa<RankedTensorType>(type))
      return emitOpError("expected a tensor as input ")
             << name << ", got " << type;
  if (getPhase() > Phase::Bucketed)
    return emitOpError("expected phase captured, outlined or bucketed, got ")
           << stringifyPhase(getPhase());
  if (failed(verifyHomes(*this)))
    return failure();
  bool captured = getPhase() == Phase::Captured;
  for (Operation &op : getBlock()) {
    if (captured ? isa<RunOp>(op) : isa<TorchOp, GradOp>(op))
      return op.emitOpError("is not expected in a step of phase ")
             << stringifyPhase(getPhase());
    if (auto torch = dyn_cast<TorchOp>(op); torch && !torch.getTagAttr())
      return op.emitOpError("expected a tag: every op belongs to a chunk");
    if (failed(verifyNumbers(op, "primals")) ||
        failed(verifyNumbers(op, "cotangents")))
      return failure();
  }
  return success();
}

LogicalResult StepOp::verifySymbolUses(SymbolTableCollection &symbols) {
  return verifyPlan(*this, getMeshAttr(), getOrderAttr(), symbols);
}

bool StepOp::hasHome(int64_t stage) {
  return !getHomes() ||
         stage < cast<DenseI64ArrayAttr>((*getHomes())[0]).size();
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

/// Whether a body returns what the signature of its container says.
static LogicalResult verifySignature(Operation *op, FunctionType type,
                                     Block &block) {
  if (block.getArgumentTypes() != TypeRange(type.getInputs()))
    return op->emitOpError("expected arguments of the signature's types");
  // The only terminator that a body may have.
  auto returned = cast<ReturnOp>(block.back());
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

/// Checks that the halves of a chunk share out its results.
static LogicalResult verifyHalves(ChunkOp chunk) {
  if (!chunk.getInputAttr() && !chunk.getWeightAttr())
    return success();
  if (chunk.getPass() != Pass::B)
    return chunk.emitOpError("expected halves of a chunk of pass B only");
  auto type = cast<FunctionType>(chunk.getFunctionType());
  SmallVector<int64_t> returned(type.getNumResults());
  for (HalfAttr half : {chunk.getInputAttr(), chunk.getWeightAttr()}) {
    if (!half)
      continue;
    for (int64_t operand : half.getOperands())
      if (operand < 0 || operand >= type.getNumInputs())
        return chunk.emitOpError("expected operands below ")
               << type.getNumInputs() << " in " << half << ", got " << operand;
    for (int64_t result : half.getResults()) {
      if (result < 0 || result >= type.getNumResults())
        return chunk.emitOpError("expected results below ")
               << type.getNumResults() << " in " << half << ", got " << result;
      ++returned[result];
    }
  }
  for (auto [index, times] : llvm::enumerate(returned))
    if (times != 1)
      return chunk.emitOpError("expected its halves to return result ")
             << index << " once, got it " << times << " times";
  return success();
}

LogicalResult ChunkOp::verify() {
  if (failed(verifyHalves(*this)))
    return failure();
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

void ChunkOp::setDuals(ArrayRef<int64_t> results, ArrayRef<int64_t> operands) {
  auto trim = [](ArrayRef<int64_t> duals) {
    while (!duals.empty() && duals.back() == noDual)
      duals = duals.drop_back();
    return duals;
  };
  results = trim(results);
  operands = trim(operands);
  if (results.empty() && operands.empty()) {
    removeDualResultsAttr();
    removeDualOperandsAttr();
    return;
  }
  setDualResults(results);
  setDualOperands(operands);
}

LogicalResult ChunkOp::verifyRegions() {
  Block &block = getBody().front();
  for (Operation &op : block)
    if (!isa<LaunchOp, ReadOp, GradOp, UnpackOp, PackOp, RelabelOp, SliceOp,
             ConvertOp, AxisIndexOp, HostWaitOp, ReturnOp,
             CollectiveOpInterface>(op))
      return op.emitOpError("is not expected in a chunk");
  llvm::SmallDenseSet<Attribute> packed;
  for (auto pack : block.getOps<PackOp>())
    if (!packed.insert(pack.getBucketAttr()).second)
      return pack.emitOpError("expected one contribution to a bucket per "
                              "chunk, got two to ")
             << pack.getBucketAttr();
  return verifySignature(*this, cast<FunctionType>(getFunctionType()), block);
}

/// Checks one pair of primal and cotangent on the manual axes. Along an auto
/// axis ranks have one loss, and a gradient there is whole, or not summed yet.
static LogicalResult verifyDual(ChunkOp chunk, MeshOp mesh, Type primal,
                                Type gradient, const Twine &what) {
  LayoutAttr layout = getLayout(primal);
  if (!layout)
    return success();
  LayoutAttr duals = dual(layout, mesh);
  for (AxisKindAttr axis : layout.getAxes()) {
    AxisAttr known = mesh ? mesh.lookupAxis(axis.getAxis()) : AxisAttr();
    if (known && known.getRole() != AxisRole::Manual)
      continue;
    Kind expected = duals.getKind(axis.getAxis());
    Kind got = getKind(gradient, axis.getAxis());
    if (got != expected)
      return chunk.emitOpError("expected the gradient of ")
             << what << " to be " << stringifyKind(expected) << " on axis '"
             << axis.getAxis().getValue() << "', got " << stringifyKind(got);
  }
  return success();
}

/// Checks the cotangents that a backward chunk takes, or the gradients that it
/// returns, against what its forward chunk returns, or takes.
static LogicalResult verifyDuals(ChunkOp chunk, MeshOp mesh,
                                 ArrayRef<int64_t> duals,
                                 ArrayRef<Type> primals,
                                 ArrayRef<Type> gradients, StringRef what) {
  for (auto [dual, gradient] : llvm::zip(duals, gradients)) {
    if (dual == ChunkOp::noDual)
      continue;
    if (dual < 0 || dual >= int64_t(primals.size()))
      return chunk.emitOpError("expected ")
             << what << " of " << chunk.getOfAttr() << ", got " << dual;
    if (failed(verifyDual(chunk, mesh, primals[dual], gradient,
                          what.split(' ').second + " " + Twine(dual))))
      return failure();
  }
  return success();
}

/// Checks one half against the chunk that it is a half of.
static LogicalResult verifyHalf(ChunkOp whole, HalfAttr attr, Pass pass,
                                SymbolTableCollection &symbols) {
  if (!attr)
    return success();
  auto half = symbols.lookupNearestSymbolFrom<ChunkOp>(whole, attr.getChunk());
  if (!half || half.getPass() != pass || half.getOfAttr() != whole.getOfAttr())
    return whole.emitOpError("expected a chunk of pass ")
           << stringifyPass(pass) << " of " << whole.getOfAttr() << ", got "
           << attr.getChunk();
  auto type = cast<FunctionType>(half.getFunctionType());
  auto own = cast<FunctionType>(whole.getFunctionType());
  size_t operands = attr.getOperands().size();
  size_t results = attr.getResults().size();
  bool fits =
      operands <= type.getNumInputs() && results <= type.getNumResults();
  for (size_t i = 0; fits && i < operands; ++i)
    fits = type.getInput(i) == own.getInput(attr.getOperands()[i]);
  for (size_t i = 0; fits && i < results; ++i)
    fits = type.getResult(i) == own.getResult(attr.getResults()[i]);
  if (!fits)
    return whole.emitOpError("expected ")
           << attr.getChunk() << " to begin with the types of " << attr;
  return success();
}

LogicalResult ChunkOp::verifySymbolUses(SymbolTableCollection &symbols) {
  if (!getOf())
    return success();
  if (failed(verifyHalf(*this, getInputAttr(), Pass::I, symbols)) ||
      failed(verifyHalf(*this, getWeightAttr(), Pass::W, symbols)))
    return failure();
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
  MeshOp mesh = findMesh(*this);
  if (failed(verifyDuals(*this, mesh, results, primal.getResults(),
                         own.getInputs(), "a result")))
    return failure();
  return verifyDuals(*this, mesh, operands, primal.getInputs(),
                     own.getResults(), "an operand");
}

//===----------------------------------------------------------------------===//
// Torch
//===----------------------------------------------------------------------===//

/// Lists the operands in a template, in the order of print.
static void listPlaces(Attribute arg, SmallVectorImpl<ArgAttr> &places) {
  if (auto place = dyn_cast<ArgAttr>(arg))
    places.push_back(place);
  else if (auto list = dyn_cast<ArrayAttr>(arg))
    for (Attribute item : list)
      listPlaces(item, places);
}

/// Checks that the argument which facts call a mask has a flag for each result.
static LogicalResult verifyMask(TorchOp op) {
  std::optional<int64_t> mask = op.getFacts().getMask();
  if (!mask)
    return success();
  auto args = op.getArgs().getValue();
  auto flags = *mask >= 0 && *mask < int64_t(args.size())
                   ? dyn_cast<ArrayAttr>(args[*mask])
                   : ArrayAttr();
  int64_t last = op->getNumResults() - 1;
  if (auto known = op->getAttrOfType<DenseI64ArrayAttr>("positions"))
    if (!known.empty())
      last = *llvm::max_element(known.asArrayRef());
  if (!flags || !llvm::all_of(flags, llvm::IsaPred<BoolAttr>) ||
      last >= int64_t(flags.size()))
    return op.emitOpError("expected argument ")
           << *mask << " to be a list with a flag for each result, as its "
           << "facts say";
  return success();
}

/// Checks that a rule names every dim of the operands and results.
static LogicalResult verifyRule(TorchOp op) {
  StringAttr text = op.getFacts().getRule();
  if (!text)
    return success();
  std::optional<Rule> rule = parseRule(text);
  auto names = [](ArrayRef<Rule::Dims> dims, ValueRange values) {
    return dims.size() == values.size() &&
           llvm::all_of(llvm::zip(dims, values), [](auto pair) {
             auto [names, value] = pair;
             return int64_t(names.size()) ==
                    cast<RankedTensorType>(value.getType()).getRank();
           });
  };
  if (!rule || !names(rule->operands, op.getInputs()) ||
      !names(getResultDims(op, *rule), op.getResults()))
    return op.emitOpError("expected a rule that names each dim of operands "
                          "and results, got ")
           << text;
  for (const Rule::Size &size : rule->sizes)
    if (!size.get(op.getArgs()))
      return op.emitOpError("expected argument ")
             << size.position << " to give the size of " << size.name
             << ", as its rule " << text << " says";
  return success();
}

LogicalResult TorchOp::verify() {
  if (failed(verifyMask(*this)) || failed(verifyRule(*this)))
    return failure();
  SmallVector<ArgAttr> places;
  listPlaces(getArgs(), places);
  for (NamedAttribute entry : getKwargs())
    listPlaces(entry.getValue(), places);
  int64_t count = getInputs().size();
  SmallVector<int64_t> found(count);
  for (ArgAttr place : places) {
    if (place.getIndex() < 0 || place.getIndex() >= count)
      return emitOpError("expected places of ")
             << count << " operands in the argument template, got " << place;
    ++found[place.getIndex()];
  }
  for (auto [index, times] : llvm::enumerate(found))
    if (times != 1)
      return emitOpError("expected operand ")
             << index << " once in the argument template, got it " << times
             << " times";
  for (auto [index, place] : llvm::enumerate(places))
    if (place.getIndex() != int64_t(index))
      return emitOpError("expected operands in the order of the argument "
                         "template, got operand ")
             << place.getIndex() << " at place " << index;
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
      if (getKind(result.getType(), name) != expected)
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
  if (MeshOp mesh = findMesh(*this);
      mesh && failed(verifyLaunchKinds(*this, mesh)))
    return failure();
  return verifyStream(*this, getStreamAttr(), symbols);
}

LogicalResult RunOp::verifySymbolUses(SymbolTableCollection &symbols) {
  auto chunk = symbols.lookupNearestSymbolFrom<ChunkOp>(*this, getChunkAttr());
  if (!chunk)
    return emitOpError("expected a chunk, got ") << getChunkAttr();
  return verifyCall(*this, cast<FunctionType>(chunk.getFunctionType()),
                    getInputs().getTypes(), getResults().getTypes(),
                    [](Type given, Type) { return given; });
}
