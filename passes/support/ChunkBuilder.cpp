//===- ChunkBuilder.cpp - Turn the ops of one chunk into a kernel and a chunk
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "passes/support/ChunkBuilder.h"

#include "passes/support/Facts.h"

#include "dialect/Layouts.h"
#include "mlir/IR/Builders.h"
#include "mlir/IR/IRMapping.h"
#include "llvm/ADT/StringExtras.h"
#include "llvm/Support/SHA256.h"

using namespace mlir;

namespace piper {

bool isExchange(Operation *op) {
  return isa<AllToAllOp, HostWaitOp>(op) ||
         (isa<CollectiveOpInterface>(op) && op->hasAttr("label"));
}

RunOp findRun(Value value) {
  Operation *op = value.getDefiningOp();
  while (isa_and_nonnull<CollectiveOpInterface, ConvertOp, HostWaitOp>(op))
    op = op->getOperand(0).getDefiningOp();
  return dyn_cast_or_null<RunOp>(op);
}

RunOp findRunOfCell(Operation *exchange) {
  RunOp maker = findRun(exchange->getOperand(0)), first;
  auto split = [](RunOp run) { return run.getChunk().split('$'); };
  if (!maker || !split(maker).second.starts_with("F"))
    return maker;
  SmallVector<Operation *> pending = {exchange};
  while (!pending.empty())
    for (Operation *user : pending.pop_back_val()->getUsers()) {
      if (isExchange(user)) {
        pending.push_back(user);
        continue;
      }
      auto run = dyn_cast<RunOp>(user);
      if (!run || split(run).first != split(maker).first ||
          split(run).second.starts_with("F"))
        return maker;
      if (!first || run->isBeforeInBlock(first))
        first = run;
    }
  return first ? first : maker;
}

Value getRoot(Value value) {
  while (auto view = value.getDefiningOp<TorchOp>()) {
    if (!view.isView() || view.getInputs().empty())
      break;
    value = view.getInputs().front();
  }
  return value;
}

/// The rule of an op that changes no dim.
static StringAttr getSameRule(Value value, OpBuilder &builder) {
  std::string dims;
  llvm::raw_string_ostream os(dims);
  for (int64_t dim :
       llvm::seq(cast<RankedTensorType>(value.getType()).getRank()))
    os << (dim ? " d" : "d") << dim;
  return builder.getStringAttr(dims + " -> " + dims + "; linear");
}

Value copyValue(Value value, OpBuilder &builder, bool hasRule) {
  MLIRContext *context = value.getContext();
  auto contiguous = ConstAttr::get(
      context, StringAttr::get(context, "torch.contiguous_format"));
  auto kwargs = builder.getDictionaryAttr(
      builder.getNamedAttr("memory_format", contiguous));
  auto facts =
      FactsAttr::get(context, Effect::Pure, 0, false, false, std::nullopt,
                     hasRule ? getSameRule(value, builder) : StringAttr());
  auto op = TorchOp::create(builder, value.getLoc(), TypeRange(value.getType()),
                            ValueRange(value),
                            builder.getStringAttr("aten.clone.default"),
                            builder.getArrayAttr(ArgAttr::get(context, 0)),
                            kwargs, facts, UnitAttr(), TagAttr());
  return op.getResult(0);
}

static FactsAttr withoutRule(FactsAttr facts) {
  return FactsAttr::get(facts.getContext(), facts.getEffect(), facts.getFlops(),
                        facts.getStrided(), facts.getHeavy(), facts.getMask(),
                        StringAttr());
}

/// The source line alone: what equal layers have in common.
static Location sourceLine(Location loc) {
  if (auto named = dyn_cast<NameLoc>(loc))
    return named.getChildLoc();
  return loc;
}

//===----------------------------------------------------------------------===//
// Kernel table
//===----------------------------------------------------------------------===//

/// Whether kernels keep rules: where ranks have parts of values, these say what
/// they hold of what kernels make.
static bool needsRules(ModuleOp module) {
  MeshOp mesh = findMesh(module);
  return (mesh && !mesh.getAxesWithRole(AxisRole::Auto).empty()) ||
         findDirective<DoSequenceOp>(module);
}

/// Writes a kernel's content without locations and with values by number.
static std::string describe(KernelOp kernel) {
  std::string text;
  llvm::raw_string_ostream os(text);
  llvm::DenseMap<Value, int64_t> numbers;
  auto number = [&](Value value) {
    return numbers.try_emplace(value, numbers.size()).first->second;
  };
  for (BlockArgument argument : kernel.getBody().getArguments())
    os << number(argument) << ':' << argument.getType() << ';';
  for (Operation &op : kernel.getBody().front()) {
    os << '\n';
    if (auto torch = dyn_cast<TorchOp>(op)) {
      os << torch.getOpName() << torch.getArgs() << torch.getKwargs();
      // Of parts of other wholes the rule may be another.
      if (StringAttr rule = torch.getFacts().getRule())
        os << rule;
    }
    for (Value operand : op.getOperands())
      os << ' ' << number(operand);
    for (Value result : op.getResults())
      os << " >" << number(result) << ':' << result.getType();
  }
  return text;
}

/// `aten.addmm.default` is `addmm`.
static StringRef shortName(TorchOp op) {
  return op.getOpName().split('.').second.split('.').first;
}

/// Names a kernel by its (at most two) heaviest ops and a hash of its content.
static std::string nameKernel(KernelOp kernel, StringRef content) {
  llvm::MapVector<StringRef, int64_t> flops;
  for (auto op : kernel.getBody().getOps<TorchOp>())
    if (!op.isView())
      flops[shortName(op)] += op.getFacts().getFlops();
  SmallVector<std::pair<StringRef, int64_t>> heaviest(flops.begin(),
                                                      flops.end());
  llvm::stable_sort(heaviest, [](const auto &a, const auto &b) {
    return a.second > b.second;
  });
  heaviest.resize(std::min<size_t>(heaviest.size(), 2));
  std::string name;
  for (const auto &entry : heaviest)
    name += (name.empty() ? "" : "_") + entry.first.str();
  llvm::SHA256 hash;
  hash.update(content);
  std::array<uint8_t, 32> digest = hash.final();
  return name + "$" + llvm::toHex(ArrayRef(digest).take_front(4), true);
}

/// FLOPs of the ops, and bytes of arguments and results.
static CostAttr getCost(KernelOp kernel) {
  int64_t flops = 0, bytes = 0;
  for (auto op : kernel.getBody().getOps<TorchOp>())
    flops += op.getFacts().getFlops();
  auto type = cast<FunctionType>(kernel.getFunctionType());
  for (Type tensor :
       llvm::concat<const Type>(type.getInputs(), type.getResults()))
    bytes += getNumBytes(tensor);
  return CostAttr::get(kernel.getContext(), flops, bytes);
}

KernelTable::KernelTable(ModuleOp module)
    : module(module), hasRules(needsRules(module)) {
  for (auto kernel : module.getOps<KernelOp>())
    kernels.try_emplace(describe(kernel), kernel);
}

KernelOp KernelTable::intern(KernelOp kernel) {
  std::string content = describe(kernel);
  auto [entry, fresh] = kernels.try_emplace(content, kernel);
  if (!fresh) {
    kernel.erase();
    return entry->second;
  }
  kernel.setSymName(nameKernel(kernel, content));
  kernel.setCostAttr(getCost(kernel));
  return kernel;
}

//===----------------------------------------------------------------------===//
// Kernel body
//===----------------------------------------------------------------------===//

namespace {

/// Fills the body of a kernel with the ops of a chunk.
class KernelBody {
public:
  KernelBody(Outlined &outlined, OpBuilder &builder, bool hasRules)
      : own(outlined.ops.begin(), outlined.ops.end()), builder(builder),
        hasRules(hasRules) {}

  /// Clones an op of the chunk. Views wait until something needs them.
  void add(TorchOp op) {
    if (op.isView())
      return;
    for (Value input : op.getInputs())
      require(input);
    clone(op);
  }

  /// The kernel's value for `value`, copied if it would alias something.
  Value getResult(Value value) {
    require(value);
    Value inside = mapping.lookup(value);
    auto producer = inside.getDefiningOp<TorchOp>();
    if (producer && !producer.isView() && !producer.getFacts().getStrided())
      return inside;
    return copyValue(inside, builder, hasRules);
  }

  /// What the kernel is given, in the order of first use.
  llvm::SetVector<Value> arguments;
  Block *block = nullptr;

private:
  /// Makes `value` known in the kernel: as an argument, or by rebuilding the
  /// views through which a value made elsewhere is seen.
  void require(Value value) {
    if (mapping.contains(value))
      return;
    auto view = value.getDefiningOp<TorchOp>();
    if (view && view.isView()) {
      for (Value input : view.getInputs())
        require(input);
      clone(view);
      return;
    }
    assert(!view || !own.contains(view));
    arguments.insert(value);
    mapping.map(value, block->addArgument(value.getType(), value.getLoc()));
  }

  void clone(TorchOp op) {
    auto copy = cast<TorchOp>(builder.clone(*op, mapping));
    copy.removeTagAttr();
    copy->removeAttr("primals");
    copy->removeAttr("again");
    copy->removeAttr("cotangents");
    if (!hasRules)
      copy.setFactsAttr(withoutRule(op.getFacts()));
    copy->setLoc(sourceLine(op.getLoc()));
  }

  llvm::SmallPtrSet<Operation *, 16> own;
  OpBuilder &builder;
  bool hasRules;
  IRMapping mapping;
};

} // namespace

/// Which values the kernel must return: the chunk's results, then gradients.
static llvm::SetVector<Value> getKernelResults(const Outlined &outlined) {
  llvm::SetVector<Value> results(outlined.results.begin(),
                                 outlined.results.end());
  for (Operation *op : outlined.ops)
    if (auto grad = dyn_cast<GradOp>(op))
      results.insert(grad.getValue());
  return results;
}

static KernelOp buildKernel(Outlined &outlined, ArrayRef<Value> results,
                            llvm::SetVector<Value> &arguments,
                            OpBuilder &builder, bool hasRules) {
  OpBuilder::InsertionGuard guard(builder);
  Location loc = sourceLine(outlined.ops.front()->getLoc());
  auto kernel = KernelOp::create(builder, loc, "",
                                 builder.getFunctionType({}, {}), CostAttr());
  KernelBody body(outlined, builder, hasRules);
  body.block = &kernel.getBody().emplaceBlock();
  builder.setInsertionPointToStart(body.block);
  for (Operation *op : outlined.ops)
    if (auto torch = dyn_cast<TorchOp>(op))
      body.add(torch);
  SmallVector<Value> returned;
  for (Value result : results)
    returned.push_back(body.getResult(result));
  ReturnOp::create(builder, loc, returned);
  kernel.setFunctionType(builder.getFunctionType(
      body.block->getArgumentTypes(), ValueRange(returned).getTypes()));
  arguments = std::move(body.arguments);
  return kernel;
}

//===----------------------------------------------------------------------===//
// Chunk
//===----------------------------------------------------------------------===//

void buildChunk(Outlined &outlined, StringRef symbol, KernelTable &kernels,
                OpBuilder &builder) {
  llvm::SetVector<Value> results = getKernelResults(outlined), arguments;
  KernelOp kernel = buildKernel(outlined, results.getArrayRef(), arguments,
                                builder, kernels.keepsRules());
  kernel = kernels.intern(kernel);

  OpBuilder::InsertionGuard guard(builder);
  Location loc = outlined.ops.front()->getLoc();
  auto chunk = ChunkOp::create(
      builder, loc, symbol, builder.getFunctionType({}, {}), outlined.pass,
      FlatSymbolRefAttr(), DenseI64ArrayAttr(), DenseI64ArrayAttr(), HalfAttr(),
      HalfAttr(), IntegerAttr());
  Block *block = &chunk.getBody().emplaceBlock();
  builder.setInsertionPointToStart(block);
  SmallVector<Value> inputs;
  for (Value argument : arguments) {
    if (auto read = argument.getDefiningOp<ReadOp>()) {
      inputs.push_back(builder.clone(*read)->getResult(0));
      continue;
    }
    outlined.operands.push_back(argument);
    inputs.push_back(block->addArgument(argument.getType(), argument.getLoc()));
  }
  auto launch = LaunchOp::create(
      builder, loc, cast<FunctionType>(kernel.getFunctionType()).getResults(),
      FlatSymbolRefAttr::get(kernel.getSymNameAttr()), inputs, StringAttr(),
      FlatSymbolRefAttr::get(builder.getContext(), "compute"), IntegerAttr(),
      IntegerAttr(), ValueRange());
  IRMapping made;
  made.map(results.getArrayRef(), launch.getResults());
  for (Operation *op : outlined.ops)
    if (auto grad = dyn_cast<GradOp>(op))
      GradOp::create(builder, grad.getLoc(), grad.getStateAttr(),
                     made.lookup(grad.getValue()), TagAttr());
  SmallVector<Value> returned;
  for (Value result : outlined.results)
    returned.push_back(made.lookup(result));
  ReturnOp::create(builder, loc, returned);
  chunk.setFunctionType(builder.getFunctionType(
      block->getArgumentTypes(), ValueRange(returned).getTypes()));
  outlined.chunk = chunk;
}

} // namespace piper
