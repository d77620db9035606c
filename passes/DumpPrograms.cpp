//===- DumpPrograms.cpp - Programs as rows, for whoever reads them in Python
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

// Walking 10^5 ops through the bindings takes seconds; a dump takes none.

#include "passes/DumpPrograms.h"

#include "llvm/ADT/TypeSwitch.h"
#include "llvm/Support/JSON.h"

using namespace mlir;

namespace piper {

namespace {

/// The parts of a location: source line, module path, directive.
class Provenance {
public:
  explicit Provenance(Location loc) { visit(loc); }

  void write(llvm::json::OStream &json) const {
    json.attributeArray("loc", [&] {
      json.value(file);
      json.value(line);
      json.value(path);
      json.value(directive);
    });
  }

private:
  void visit(Location loc) {
    if (auto fused = dyn_cast<FusedLoc>(loc)) {
      visit(fused.getLocations().front());
      for (Location other : fused.getLocations().drop_front())
        if (auto named = dyn_cast<NameLoc>(other))
          directive = named.getName().getValue();
    } else if (auto named = dyn_cast<NameLoc>(loc)) {
      path = named.getName().getValue();
      visit(named.getChildLoc());
    } else if (auto source = dyn_cast<FileLineColLoc>(loc)) {
      file = source.getFilename().getValue();
      line = source.getLine();
    }
  }

  StringRef file, path, directive;
  int64_t line = 0;
};

/// The kernels and chunks that make the host wait for the device.
class HostSyncs {
public:
  explicit HostSyncs(ModuleOp module) {
    for (auto kernel : module.getOps<KernelOp>())
      if (llvm::any_of(kernel.getBody().front().getOps<TorchOp>(), syncs))
        symbols.insert(kernel.getSymNameAttr());
    for (auto chunk : module.getOps<ChunkOp>())
      if (llvm::any_of(chunk.getBody().front(),
                       [&](Operation &op) { return contains(op); }))
        symbols.insert(chunk.getSymNameAttr());
  }

  /// Whether an instruction of a program or a chunk waits. An update with a
  /// `skip` does so to learn what it says.
  bool contains(Operation &op) const {
    return llvm::TypeSwitch<Operation *, bool>(&op)
        .Case<HostWaitOp>([](auto) { return true; })
        .Case<UpdateOp>([](UpdateOp update) { return bool(update.getSkip()); })
        .Case<LaunchOp>([&](LaunchOp launch) {
          return symbols.contains(launch.getKernelAttr().getAttr());
        })
        .Case<RunOp>([&](RunOp run) {
          return symbols.contains(run.getChunkAttr().getAttr());
        })
        .Default([](Operation *) { return false; });
  }

private:
  static bool syncs(TorchOp op) {
    return op.getFacts().getEffect() == Effect::HostSync;
  }

  llvm::DenseSet<StringAttr> symbols;
};

/// Whether the size of a result is known at run time only.
bool hasDynamicShape(Operation &op) {
  return llvm::any_of(op.getResultTypes(), [](Type type) {
    auto tensor = dyn_cast<RankedTensorType>(type);
    return tensor && !tensor.hasStaticShape();
  });
}

/// The operands of an instruction that may be absent, by name.
SmallVector<std::pair<StringRef, Value>> getOptionalOperands(Operation &op) {
  using Named = SmallVector<std::pair<StringRef, Value>>;
  return llvm::TypeSwitch<Operation *, Named>(&op)
      .Case<UpdateOp>([](UpdateOp update) {
        return Named{{"norm", update.getNorm()}, {"skip", update.getSkip()}};
      })
      .Case<OutputOp>(
          [](OutputOp output) { return Named{{"scale", output.getScale()}}; })
      .Case<AccumulateOp>([](AccumulateOp accumulate) {
        return Named{{"onto", accumulate.getOnto()}};
      })
      .Case<TangentOp>([](TangentOp tangent) {
        return Named{{"count", tangent.getCount()}};
      })
      .Default([](Operation *) { return Named(); });
}

/// Writes one program.
class ProgramDump {
public:
  ProgramDump(ProgramOp program, StringRef entry, const HostSyncs &syncs,
              llvm::json::OStream &json)
      : program(program), entry(entry), syncs(syncs), json(json) {}

  void write() {
    json.object([&] {
      json.attribute("name", program.getSymName());
      json.attribute("entry", entry);
      json.attribute("at", int64_t(program.getAt()));
      json.attributeArray("rows", [&] {
        for (Operation &op : program.getBlock())
          writeRow(op);
      });
    });
  }

private:
  void writeRow(Operation &op) {
    json.object([&] {
      json.attribute("op", op.getName().stripDialect());
      writeOperands(op);
      json.attributeArray("out", [&] {
        for (Value result : op.getResults())
          json.value(numbers.try_emplace(result, numbers.size()).first->second);
      });
      // By name: a dictionary of an op's attributes would be made and kept.
      for (StringAttr name : op.getName().getAttributeNames())
        if (Attribute attribute = op.getAttr(name))
          writeAttribute(name, attribute);
      if (isa<RecvOp, TangentOp, SumsqOp, ConvertOp, NonfiniteOp>(op))
        writeType(cast<RankedTensorType>(op.getResult(0).getType()));
      // Rare, so only where they hold: a dump has 10^5 rows.
      if (syncs.contains(op))
        json.attribute("host_sync", true);
      if (hasDynamicShape(op))
        json.attribute("dynamic_shape", true);
      Provenance(op.getLoc()).write(json);
    });
  }

  /// Values and events apart: `in` and `after`; optional ones by their names.
  void writeOperands(Operation &op) {
    auto write = [&](StringRef name, bool events) {
      json.attributeArray(name, [&] {
        for (Value operand : op.getOperands())
          if (isa<EventType>(operand.getType()) == events)
            json.value(numbers.lookup(operand));
      });
    };
    write("in", false);
    write("after", true);
    for (auto [name, value] : getOptionalOperands(op))
      if (value)
        json.attribute(name, numbers.lookup(value));
  }

  void writeAttribute(StringRef name, Attribute attribute) {
    llvm::TypeSwitch<Attribute>(attribute)
        .Case<FlatSymbolRefAttr>(
            [&](auto symbol) { json.attribute(name, symbol.getValue()); })
        .Case<StringAttr>(
            [&](auto text) { json.attribute(name, text.getValue()); })
        .Case<IntegerAttr>(
            [&](auto number) { json.attribute(name, number.getInt()); })
        .Case<FloatAttr>([&](auto number) {
          json.attribute(name, number.getValueAsDouble());
        })
        .Case<SlotAttr>([&](auto slot) {
          json.attribute(name, stringifySlot(slot.getValue()));
        });
  }

  void writeType(RankedTensorType type) {
    std::string dtype;
    llvm::raw_string_ostream(dtype) << type.getElementType();
    json.attribute("dtype", dtype);
    json.attributeArray("shape", [&] {
      for (int64_t size : type.getShape())
        json.value(size);
    });
  }

  ProgramOp program;
  StringRef entry;
  const HostSyncs &syncs;
  llvm::json::OStream &json;
  llvm::DenseMap<Value, int64_t> numbers;
};

} // namespace

void dumpPrograms(ModuleOp module, llvm::raw_ostream &os) {
  llvm::json::OStream json(os);
  SymbolTable symbols(module);
  HostSyncs syncs(module);
  json.array([&] {
    for (auto program : module.getOps<ProgramOp>()) {
      auto cluster = symbols.lookup<ClusterOp>(program.getOf());
      ProgramDump(program, cluster ? cluster.getOf() : "", syncs, json).write();
    }
  });
}

} // namespace piper
