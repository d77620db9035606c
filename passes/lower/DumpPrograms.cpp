//===- DumpPrograms.cpp - Programs as columns, for whoever reads them in Python
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

// Walking 10^5 ops through the bindings takes seconds; a dump takes none.

#include "passes/lower/DumpPrograms.h"

#include "dialect/Layouts.h"

#include "llvm/ADT/MapVector.h"
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
    json.array([&] {
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

/// What an attribute is in JSON, if anything.
std::optional<llvm::json::Value> toValue(Attribute attribute) {
  using Value = llvm::json::Value;
  return llvm::TypeSwitch<Attribute, std::optional<Value>>(attribute)
      .Case<FlatSymbolRefAttr, StringAttr>(
          [](auto text) { return Value(text.getValue()); })
      .Case<IntegerAttr>([](auto number) { return Value(number.getInt()); })
      .Case<FloatAttr>(
          [](auto number) { return Value(number.getValueAsDouble()); })
      .Case<SlotAttr>(
          [](auto slot) { return Value(stringifySlot(slot.getValue())); })
      .Default([](Attribute) { return std::nullopt; });
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
      writeValues();
      writeNames();
      writeAttributes();
    });
  }

private:
  /// What only some rows have: which, and what of each.
  struct SparseColumn {
    SmallVector<int64_t> rows;
    SmallVector<llvm::json::Value> values;
  };

  template <typename WriteCell>
  void writeColumn(StringRef name, WriteCell writeCell) {
    json.attributeArray(name, [&] {
      for (Operation &op : program.getBlock())
        writeCell(op);
    });
  }

  /// Results get their numbers here, before operands are looked up.
  void writeValues() {
    writeColumn("out", [&](Operation &op) {
      json.array([&] {
        for (Value result : op.getResults())
          json.value(numbers.try_emplace(result, numbers.size()).first->second);
      });
    });
    auto writeOperands = [&](StringRef name, bool events) {
      writeColumn(name, [&](Operation &op) {
        json.array([&] {
          for (Value operand : op.getOperands())
            if (isa<EventType>(operand.getType()) == events)
              json.value(numbers.lookup(operand));
        });
      });
    };
    writeOperands("in", false);
    writeOperands("after", true);
  }

  /// Few ops and locations occur in many rows: each once, and its index by row.
  void writeNames() {
    llvm::MapVector<OperationName, int64_t> ops;
    writeColumn("op", [&](Operation &op) {
      json.value(ops.try_emplace(op.getName(), ops.size()).first->second);
    });
    json.attributeArray("ops", [&] {
      for (auto [name, index] : ops)
        json.value(name.stripDialect());
    });
    llvm::MapVector<Location, int64_t> locs;
    writeColumn("loc", [&](Operation &op) {
      json.value(locs.try_emplace(op.getLoc(), locs.size()).first->second);
    });
    json.attributeArray("locs", [&] {
      for (auto [loc, index] : locs)
        Provenance(loc).write(json);
    });
  }

  void writeAttributes() {
    llvm::MapVector<StringRef, SparseColumn> columns;
    int64_t row = 0;
    auto add = [&](StringRef name, llvm::json::Value value) {
      SparseColumn &column = columns[name];
      column.rows.push_back(row);
      column.values.push_back(std::move(value));
    };
    for (Operation &op : program.getBlock()) {
      collect(op, add);
      ++row;
    }
    json.attributeObject("attributes", [&] {
      for (auto &[name, column] : columns)
        json.attributeObject(name, [&] {
          json.attributeArray("rows", [&] {
            for (int64_t index : column.rows)
              json.value(index);
          });
          json.attributeArray("values", [&] {
            for (const llvm::json::Value &value : column.values)
              json.value(value);
          });
        });
    });
  }

  /// Attributes, optional operands, the type of some results, and flags.
  void collect(Operation &op,
               llvm::function_ref<void(StringRef, llvm::json::Value)> add) {
    // By name: a dictionary of an op's attributes would be made and kept.
    for (StringAttr name : op.getName().getAttributeNames())
      if (Attribute attribute = op.getAttr(name))
        if (std::optional<llvm::json::Value> value = toValue(attribute))
          add(name.getValue(), std::move(*value));
    for (auto [name, value] : getOptionalOperands(op))
      if (value)
        add(name, numbers.lookup(value));
    if (isa<RecvOp, TangentOp, SumsqOp, ConvertOp, NonfiniteOp, AllToAllOp>(op))
      collectType(cast<RankedTensorType>(op.getResult(0).getType()), add);
    if (syncs.contains(op))
      add("host_sync", true);
    if (hasDynamicShape(op))
      add("dynamic_shape", true);
  }

  /// Of a dim whose size is known at run time also how large it may be.
  static void
  collectType(RankedTensorType type,
              llvm::function_ref<void(StringRef, llvm::json::Value)> add) {
    std::string dtype;
    llvm::raw_string_ostream(dtype) << type.getElementType();
    add("dtype", dtype);
    add("shape", llvm::json::Array(type.getShape()));
    if (LayoutAttr layout = getLayout(type); layout && layout.getBound()) {
      add("bound", layout.getBound());
      add("expect", layout.getExpect());
    }
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
