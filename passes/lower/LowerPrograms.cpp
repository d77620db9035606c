//===- LowerPrograms.cpp - One program per coordinate, with events and frees
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

// A program is the projection of the ordered cluster to one coordinate. A
// transfer becomes a send at one end and a receive at the other, on a
// communicator of its direction; what crosses streams is ordered by events;
// each value is freed after its last use.

#include "passes/Passes.h"
#include "passes/lower/Frees.h"
#include "passes/support/ChunkBuilder.h"
#include "passes/support/Coordinates.h"
#include "passes/support/Facts.h"

#include "dialect/Layouts.h"
#include "mlir/IR/Builders.h"
#include "mlir/IR/IRMapping.h"

#include "llvm/ADT/SetVector.h"
#include "llvm/ADT/TypeSwitch.h"

using namespace mlir;

namespace piper {

#define GEN_PASS_DEF_LOWERPROGRAMSPASS
#include "passes/Passes.h.inc"

namespace {

std::string joinNumbers(ArrayRef<int64_t> numbers) {
  std::string text;
  llvm::raw_string_ostream os(text);
  llvm::interleave(numbers, os, ".");
  return text;
}

/// Declares communicators by name, each once.
class Communicators {
public:
  explicit Communicators(ModuleOp module)
      : module(module), builder(module.getContext()) {
    builder.setInsertionPointToStart(module.getBody());
    for (Operation &op : *module.getBody())
      if (isa<MeshOp, StreamOp>(op))
        builder.setInsertionPointAfter(&op);
  }

  /// The communicator of messages from one coordinate to another.
  FlatSymbolRefAttr getMessages(TransferOp transfer) {
    int64_t from = transfer.getFrom(), to = transfer.getTo();
    return get("send$" + joinNumbers({from, to}), builder.getArrayAttr({}),
               {from, to}, transfer.getStreamAttr());
  }

  /// The communicator of a collective: gathers and exchanges have one of their
  /// own, so that they do not queue behind reductions.
  FlatSymbolRefAttr getCollective(CollectiveOpInterface op) {
    std::string name = isExchange(op)         ? "exchange"
                       : isa<AllGatherOp>(op) ? "gather"
                                              : "reduce";
    for (auto axis : op.getOver().getAsRange<StringAttr>())
      name += "." + axis.getValue().str();
    if (auto across = op->getAttrOfType<StringAttr>("across"))
      name += "." + across.str();
    return get(name + "$" + joinNumbers(*op.getAt()), op.getOver(), *op.getAt(),
               op->getAttrOfType<FlatSymbolRefAttr>("stream"));
  }

private:
  FlatSymbolRefAttr get(const std::string &name, ArrayAttr axes,
                        ArrayRef<int64_t> coordinates,
                        FlatSymbolRefAttr stream) {
    auto symbol = FlatSymbolRefAttr::get(builder.getContext(), name);
    if (known.insert(symbol).second)
      CommOp::create(builder, module.getLoc(), symbol.getAttr(), axes,
                     builder.getDenseI64ArrayAttr(coordinates), stream);
    return symbol;
  }

  ModuleOp module;
  OpBuilder builder;
  llvm::DenseSet<Attribute> known;
};

/// Lowers the cluster to the program of one coordinate.
class ProgramBuilder {
public:
  ProgramBuilder(ProgramOp program, Communicators &comms)
      : at(program.getAt()), comms(comms), builder(program.getContext()),
        event(EventType::get(program.getContext())), frees(program) {
    builder.setInsertionPointToStart(&program.getBlock());
  }

  /// Adds what this coordinate does for an op that it takes part in.
  void add(Operation &op) {
    if (auto transfer = dyn_cast<TransferOp>(op))
      addTransfer(transfer);
    else if (auto collective = dyn_cast<CollectiveOpInterface>(op))
      addCollective(collective);
    else
      addCompute(&op);
  }

  void finish() { frees.insert(); }

private:
  void addTransfer(TransferOp transfer) {
    if (int64_t(transfer.getFrom()) == at) {
      Value value = mapping.lookup(transfer.getValue());
      SendOp::create(builder, transfer.getLoc(), event, value,
                     transfer.getToAttr(), transfer.getMbAttr(),
                     transfer.getLabelAttr(), comms.getMessages(transfer),
                     ready(value));
    } else {
      auto recv = RecvOp::create(
          builder, transfer.getLoc(), transfer.getResult().getType(), event,
          transfer.getFromAttr(), transfer.getMbAttr(), transfer.getLabelAttr(),
          comms.getMessages(transfer), takeBuffer(transfer.getLoc()));
      mapping.map(transfer.getResult(), recv.getResult());
      events[recv.getResult()] = recv.getEvent();
    }
  }

  /// Adds this coordinate's part of a collective, with the same attributes.
  void addCollective(CollectiveOpInterface op) {
    size_t index = llvm::find(*op.getAt(), at) - op.getAt()->begin();
    Value input = mapping.lookup(op.getInputs()[index]);
    SmallVector<Value> operands = {input};
    SmallVector<int32_t> segments = {1};
    bool isInPlace = isa<AllReduceOp>(op) && !ownsStorage(input);
    if (isInPlace || events.contains(input))
      operands.push_back(ready(input));
    if (!isInPlace)
      operands.push_back(takeBuffer(op.getLoc()));
    segments.push_back(operands.size() - 1); // events
    if (auto exchange = dyn_cast<AllToAllOp>(op.getOperation()))
      for (Value sizes : {exchange.getSendSizes(), exchange.getRecvSizes()}) {
        segments.push_back(bool(sizes));
        if (sizes)
          operands.push_back(mapping.lookup(sizes));
      }
    OperationState state(op.getLoc(), op->getName(), operands,
                         {op.getTensors()[index].getType(), event}, {});
    for (NamedAttribute attribute : op->getAttrs())
      if (attribute.getName() != "at")
        state.attributes.append(attribute);
    state.attributes.set("stream", comms.getCollective(op));
    state.attributes.set("operandSegmentSizes",
                         builder.getDenseI32ArrayAttr(segments));
    Operation *lowered = builder.create(state);
    Value result = lowered->getResult(0);
    mapping.map(op.getTensors()[index], result);
    events[result] = lowered->getResult(1);
  }

  /// Clones an instruction of the compute stream, which waits for what other
  /// streams made unless an earlier instruction already did.
  void addCompute(Operation *op) {
    Operation *clone = builder.clone(*op, mapping);
    clone->removeAttr("at");
    SmallVector<Value> waits;
    if (isa<HostWaitOp>(clone)) // the host waits, not the compute stream
      waits = llvm::map_to_vector(clone->getOperands(),
                                  [&](Value count) { return ready(count); });
    else
      for (Value operand : clone->getOperands())
        if (Value event = events.lookup(operand))
          if (awaited.insert(event).second)
            waits.push_back(event);
    if (!waits.empty())
      llvm::TypeSwitch<Operation *>(clone)
          .Case<RunOp, SumOp, AccumulateOp, SumsqOp, UpdateOp, TangentOp,
                OutputOp, SliceOp, ConvertOp, WriteOp, NonfiniteOp, HostWaitOp>(
              [&](auto instruction) {
                instruction.getAfterMutable().append(waits);
              });
    lastRecord = Value();
  }

  /// The event of everything that compute did so far: a buffer comes from
  /// there.
  Value takeBuffer(Location loc) {
    if (!lastRecord)
      lastRecord = RecordOp::create(builder, loc, event);
    return lastRecord;
  }

  /// The event after which a value may be used by another stream: that of the
  /// communication that made it, or a record right behind the instruction.
  Value ready(Value value) {
    if (Value event = events.lookup(value))
      return event;
    Operation *maker = value.getDefiningOp();
    Value &record = records[maker];
    if (!record) {
      OpBuilder::InsertionGuard guard(builder);
      builder.setInsertionPointAfter(maker);
      record = RecordOp::create(builder, maker->getLoc(), event);
    }
    return record;
  }

  int64_t at;
  Communicators &comms;
  OpBuilder builder;
  Type event;
  FreeInserter frees;
  IRMapping mapping;
  llvm::DenseMap<Value, Value> events; // of what communication made
  llvm::DenseSet<Value> awaited;       // by the compute stream
  llvm::DenseMap<Operation *, Value> records;
  Value lastRecord; // a record with no compute since
};

/// The coordinates that take part in an op; none for an op that is not lowered.
SmallVector<int64_t> getCoordinates(Operation &op) {
  if (auto transfer = dyn_cast<TransferOp>(op))
    return {int64_t(transfer.getFrom()), int64_t(transfer.getTo())};
  if (isa<AllReduceOp, AllGatherOp, ReduceScatterOp, AllToAllOp>(op))
    return llvm::to_vector(*cast<CollectiveOpInterface>(op).getAt());
  if (std::optional<int64_t> at = getCoordinate(&op))
    return {*at};
  return {};
}

/// Every stream that a directive names has communicators: without, the
/// directive would have no effect.
LogicalResult checkStreams(ModuleOp module) {
  llvm::SmallSetVector<Attribute, 4> used;
  for (auto comm : module.getOps<CommOp>())
    used.insert(comm.getStreamAttr());
  for (auto directive : findDirectives<DoStreamOp>(module)) {
    if (used.contains(directive.getStreamAttr()))
      continue;
    InFlightDiagnostic error =
        directive.emitOpError("expected a stream that communication runs on");
    if (used.empty())
      return error << ", of which there is none, got "
                   << directive.getStreamAttr();
    error << ", one of";
    for (Attribute stream : used)
      error << ' ' << stream;
    return error << ", got " << directive.getStreamAttr();
  }
  return success();
}

class LowerProgramsPass
    : public impl::LowerProgramsPassBase<LowerProgramsPass> {
  void runOnOperation() override {
    ModuleOp module = getOperation();
    Communicators comms(module);
    OpBuilder builder(module.getContext());
    builder.setInsertionPointToEnd(module.getBody());
    for (auto cluster : llvm::to_vector(module.getOps<ClusterOp>()))
      if (cluster.getPhase() == Phase::Ordered &&
          failed(lower(cluster, comms, builder)))
        return signalPassFailure();
    if (!module.getOps<ProgramOp>().empty() && failed(checkStreams(module)))
      signalPassFailure();
  }

  /// Builds the programs of a cluster one by one, so that each lies together in
  /// memory.
  LogicalResult lower(ClusterOp cluster, Communicators &comms,
                      OpBuilder &builder) {
    MeshOp mesh = findMesh(cluster);
    std::vector<std::vector<Operation *>> ops(mesh.getNumCoordinates());
    for (Operation &op : cluster.getBlock()) {
      SmallVector<int64_t> coordinates = getCoordinates(op);
      if (coordinates.empty())
        return op.emitOpError(
            "cannot be lowered yet: expected an instruction "
            "of one coordinate, a transfer, an all_reduce, an "
            "all_gather, a reduce_scatter or an all_to_all");
      for (int64_t at : coordinates)
        ops[at].push_back(&op);
    }
    for (auto [at, own] : llvm::enumerate(ops)) {
      ProgramBuilder program(createProgram(cluster, at, mesh, builder), comms);
      for (Operation *op : own)
        program.add(*op);
      program.finish();
    }
    cluster.setPhase(Phase::Lowered);
    return success();
  }

  ProgramOp createProgram(ClusterOp cluster, int64_t at, MeshOp mesh,
                          OpBuilder &builder) {
    AxisAttr axis = mesh.getUnrolledAxis();
    StringRef prefix = axis ? axis.getName().getValue() : "";
    auto program = ProgramOp::create(
        builder, cluster.getLoc(),
        builder.getStringAttr(cluster.getOf() + "$" + prefix + Twine(at)),
        FlatSymbolRefAttr::get(cluster.getSymNameAttr()),
        builder.getI64IntegerAttr(at));
    program.getBody().emplaceBlock();
    return program;
  }
};

} // namespace
} // namespace piper
