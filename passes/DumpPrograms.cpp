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

/// Writes one program.
class ProgramDump {
public:
  ProgramDump(ProgramOp program, StringRef entry, llvm::json::OStream &json)
      : program(program), entry(entry), json(json) {}

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
      if (isa<RecvOp, TangentOp, SumsqOp, ConvertOp>(op))
        writeType(cast<RankedTensorType>(op.getResult(0).getType()));
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
    auto writeOne = [&](StringRef name, Value value) {
      if (value)
        json.attribute(name, numbers.lookup(value));
    };
    if (auto update = dyn_cast<UpdateOp>(op))
      writeOne("norm", update.getNorm());
    if (auto output = dyn_cast<OutputOp>(op))
      writeOne("scale", output.getScale());
    if (auto accumulate = dyn_cast<AccumulateOp>(op))
      writeOne("onto", accumulate.getOnto());
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
  llvm::json::OStream &json;
  llvm::DenseMap<Value, int64_t> numbers;
};

} // namespace

void dumpPrograms(ModuleOp module, llvm::raw_ostream &os) {
  llvm::json::OStream json(os);
  SymbolTable symbols(module);
  json.array([&] {
    for (auto program : module.getOps<ProgramOp>()) {
      auto cluster = symbols.lookup<ClusterOp>(program.getOf());
      ProgramDump(program, cluster ? cluster.getOf() : "", json).write();
    }
  });
}

} // namespace piper
