//===- Syntax.cpp - Custom pieces of assembly formats
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "dialect/Syntax.h"

#include "dialect/Piper.h"

using namespace mlir;
using namespace piper;

//===----------------------------------------------------------------------===//
// Axes of a mesh
//===----------------------------------------------------------------------===//

ParseResult piper::parseAxes(OpAsmParser &parser, ArrayAttr &axes) {
  SmallVector<Attribute> parsed;
  auto parseAxis = [&]() -> ParseResult {
    std::string name;
    int64_t size = 0;
    StringRef role;
    SMLoc loc = parser.getCurrentLocation();
    if (parser.parseKeywordOrString(&name) || parser.parseEqual() ||
        parser.parseInteger(size) || parser.parseKeyword(&role))
      return failure();
    std::optional<AxisRole> known = symbolizeAxisRole(role);
    if (!known)
      return parser.emitError(loc, "expected a role of unrolled, manual or "
                                   "auto, got '")
             << role << "'";
    auto axis = parser.getChecked<AxisAttr>(
        loc, parser.getContext(), StringAttr::get(parser.getContext(), name),
        size, *known);
    parsed.push_back(axis);
    return success(axis != nullptr);
  };
  if (parser.parseCommaSeparatedList(AsmParser::Delimiter::Square, parseAxis))
    return failure();
  axes = ArrayAttr::get(parser.getContext(), parsed);
  return success();
}

void piper::printAxes(OpAsmPrinter &printer, Operation *, ArrayAttr axes) {
  printer << '[';
  llvm::interleaveComma(axes.getAsRange<AxisAttr>(), printer,
                        [&](AxisAttr axis) {
                          printer.printKeywordOrString(axis.getName());
                          printer << " = " << axis.getSize() << ' '
                                  << stringifyAxisRole(axis.getRole());
                        });
  printer << ']';
}

//===----------------------------------------------------------------------===//
// Rows of integers
//===----------------------------------------------------------------------===//

ParseResult piper::parseRows(OpAsmParser &parser, ArrayAttr &rows) {
  SmallVector<Attribute> parsed;
  auto parseRow = [&]() -> ParseResult {
    parsed.push_back(DenseI64ArrayAttr::parse(parser, Type()));
    return success(parsed.back() != nullptr);
  };
  if (parser.parseCommaSeparatedList(AsmParser::Delimiter::Square, parseRow))
    return failure();
  rows = ArrayAttr::get(parser.getContext(), parsed);
  return success();
}

void piper::printRows(OpAsmPrinter &printer, Operation *, ArrayAttr rows) {
  printer << '[';
  llvm::interleaveComma(rows.getAsRange<DenseI64ArrayAttr>(), printer,
                        [&](DenseI64ArrayAttr row) { row.print(printer); });
  printer << ']';
}

//===----------------------------------------------------------------------===//
// Signatures
//===----------------------------------------------------------------------===//

static ParseResult parseBody(OpAsmParser &parser, Region &body,
                             ArrayRef<OpAsmParser::Argument> arguments) {
  if (parser.parseRegion(body, arguments))
    return failure();
  if (!body.empty())
    return success();
  Block &block = body.emplaceBlock(); // `{}` still has its block
  for (const OpAsmParser::Argument &argument : arguments)
    block.addArgument(argument.type,
                      parser.getEncodedSourceLoc(argument.ssaName.location));
  return success();
}

static void printArguments(OpAsmPrinter &printer, Region &body) {
  printer << '(';
  llvm::interleaveComma(
      body.getArguments(), printer, [&](BlockArgument argument) {
        printer << argument << ": " << argument.getType();
        printer.printOptionalLocationSpecifier(argument.getLoc());
      });
  printer << ')';
}

ParseResult piper::parseArgumentsAndBody(OpAsmParser &parser, Region &body) {
  SmallVector<OpAsmParser::Argument> arguments;
  if (parser.parseArgumentList(arguments, AsmParser::Delimiter::Paren,
                               /*allowType=*/true))
    return failure();
  return parseBody(parser, body, arguments);
}

void piper::printArgumentsAndBody(OpAsmPrinter &printer, Operation *,
                                  Region &body) {
  printArguments(printer, body);
  printer << ' ';
  printer.printRegion(body, /*printEntryBlockArgs=*/false);
}

ParseResult piper::parseSignatureAndBody(OpAsmParser &parser, TypeAttr &type,
                                         Region &body) {
  SmallVector<OpAsmParser::Argument> arguments;
  SmallVector<Type> results;
  if (parser.parseArgumentList(arguments, AsmParser::Delimiter::Paren,
                               /*allowType=*/true) ||
      parser.parseOptionalArrowTypeList(results))
    return failure();
  SmallVector<Type> inputs;
  for (const OpAsmParser::Argument &argument : arguments)
    inputs.push_back(argument.type);
  type = TypeAttr::get(FunctionType::get(parser.getContext(), inputs, results));
  return parseBody(parser, body, arguments);
}

void piper::printSignatureAndBody(OpAsmPrinter &printer, Operation *,
                                  TypeAttr type, Region &body) {
  printArguments(printer, body);
  auto function = cast<FunctionType>(type.getValue());
  printer.printOptionalArrowTypeList(function.getResults());
  printer << ' ';
  printer.printRegion(body, /*printEntryBlockArgs=*/false);
}

//===----------------------------------------------------------------------===//
// Argument templates
//===----------------------------------------------------------------------===//

/// Parses one argument: an operand, a list, `none` or an attribute.
static ParseResult parseArgument(OpAsmParser &parser,
                                 UnresolvedOperands &inputs, Attribute &arg) {
  MLIRContext *context = parser.getContext();
  UnresolvedOperand operand;
  OptionalParseResult parsed = parser.parseOptionalOperand(operand);
  if (parsed.has_value()) {
    arg = ArgAttr::get(context, inputs.size());
    inputs.push_back(operand);
    return *parsed;
  }
  if (succeeded(parser.parseOptionalLSquare())) {
    SmallVector<Attribute> items;
    auto parseItem = [&] {
      return parseArgument(parser, inputs, items.emplace_back());
    };
    if (failed(parser.parseOptionalRSquare()) &&
        (parser.parseCommaSeparatedList(parseItem) || parser.parseRSquare()))
      return failure();
    arg = ArrayAttr::get(context, items);
    return success();
  }
  if (succeeded(parser.parseOptionalKeyword("none"))) {
    arg = UnitAttr::get(context);
    return success();
  }
  return parser.parseAttribute(arg);
}

/// Whether a number parses to itself without its type: i64, f64 or a bool. A
/// float that prints in hexadecimal would parse as an integer.
static bool parsesWithoutType(Attribute arg) {
  if (auto integer = dyn_cast<IntegerAttr>(arg))
    return integer.getType().isSignlessInteger(64) ||
           integer.getType().isSignlessInteger(1);
  auto number = dyn_cast<FloatAttr>(arg);
  if (!number || !number.getType().isF64())
    return false;
  std::string text;
  llvm::raw_string_ostream os(text);
  number.print(os, /*elideType=*/true);
  return !StringRef(text).starts_with("0x");
}

static void printArgument(OpAsmPrinter &printer, OperandRange inputs,
                          Attribute arg) {
  if (auto place = dyn_cast<ArgAttr>(arg)) {
    printer << inputs[place.getIndex()];
  } else if (auto list = dyn_cast<ArrayAttr>(arg)) {
    printer << '[';
    llvm::interleaveComma(list, printer, [&](Attribute item) {
      printArgument(printer, inputs, item);
    });
    printer << ']';
  } else if (isa<UnitAttr>(arg)) {
    printer << "none";
  } else if (parsesWithoutType(arg)) {
    printer.printAttributeWithoutType(arg);
  } else {
    printer.printAttribute(arg);
  }
}

/// Names of keyword arguments that are written without `arg` and quotes.
static constexpr StringRef commonKeywords[] = {"dtype", "layout", "device",
                                               "pin_memory", "memory_format"};

ParseResult piper::parseTemplate(OpAsmParser &parser,
                                 UnresolvedOperands &inputs, ArrayAttr &args,
                                 DictionaryAttr &kwargs) {
  SmallVector<Attribute> positional;
  NamedAttrList named;
  auto parseNamed = [&](SMLoc loc, StringRef name) -> ParseResult {
    Attribute value;
    if (parser.parseEqual() || parseArgument(parser, inputs, value))
      return failure();
    if (named.get(name))
      return parser.emitError(loc, "expected each keyword argument once, "
                                   "got '")
             << name << "' twice";
    named.append(name, value);
    return success();
  };
  auto parseItem = [&]() -> ParseResult {
    // Only these words are names: `none`, `true` and types are values.
    SMLoc loc = parser.getCurrentLocation();
    StringRef word;
    if (succeeded(parser.parseOptionalKeyword(&word, commonKeywords)))
      return parseNamed(loc, word);
    if (failed(parser.parseOptionalKeyword("arg")))
      return parseArgument(parser, inputs, positional.emplace_back());
    std::string name;
    if (failed(parser.parseString(&name)))
      return failure();
    return parseNamed(loc, name);
  };
  if (parser.parseCommaSeparatedList(AsmParser::Delimiter::Paren, parseItem))
    return failure();
  args = ArrayAttr::get(parser.getContext(), positional);
  kwargs = named.getDictionary(parser.getContext());
  return success();
}

void piper::printTemplate(OpAsmPrinter &printer, Operation *,
                          OperandRange inputs, ArrayAttr args,
                          DictionaryAttr kwargs) {
  printer << '(';
  llvm::interleaveComma(args, printer, [&](Attribute arg) {
    printArgument(printer, inputs, arg);
  });
  bool first = args.empty();
  for (NamedAttribute entry : kwargs) {
    printer << (first ? "" : ", ");
    first = false;
    StringRef name = entry.getName().getValue();
    if (llvm::is_contained(commonKeywords, name)) {
      printer << name;
    } else {
      printer << "arg ";
      printer.printString(name);
    }
    printer << " = ";
    printArgument(printer, inputs, entry.getValue());
  }
  printer << ')';
}

//===----------------------------------------------------------------------===//
// Types
//===----------------------------------------------------------------------===//

ParseResult piper::parseUniformTypes(OpAsmParser &parser,
                                     ArrayRef<UnresolvedOperand> inputs,
                                     Types &types) {
  Type type;
  if (parser.parseType(type))
    return failure();
  types.assign(inputs.size(), type);
  return success();
}

void piper::printUniformTypes(OpAsmPrinter &printer, Operation *,
                              OperandRange inputs, TypeRange) {
  printer << inputs.front().getType();
}

ParseResult piper::parseOntoType(OpAsmParser &parser,
                                 const std::optional<UnresolvedOperand> &onto,
                                 Type &ontoType, Type &result) {
  if (parser.parseType(result))
    return failure();
  if (onto)
    ontoType = result;
  return success();
}

void piper::printOntoType(OpAsmPrinter &printer, Operation *, Value, Type,
                          Type result) {
  printer << result;
}
