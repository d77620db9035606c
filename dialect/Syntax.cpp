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
  } else {
    printer.printAttributeWithoutType(arg);
  }
}

ParseResult piper::parseTemplate(OpAsmParser &parser,
                                 UnresolvedOperands &inputs, ArrayAttr &args,
                                 DictionaryAttr &kwargs) {
  SmallVector<Attribute> positional;
  NamedAttrList named;
  auto parseItem = [&]() -> ParseResult {
    // A keyword is a name only if `=` follows; `none`, `true` and types are
    // not.
    StringRef word;
    if (succeeded(parser.parseOptionalKeyword(
            &word,
            {"dtype", "layout", "device", "pin_memory", "memory_format"}))) {
      Attribute value;
      if (parser.parseEqual() || parseArgument(parser, inputs, value))
        return failure();
      named.append(word, value);
      return success();
    }
    if (succeeded(parser.parseOptionalKeyword("arg"))) {
      std::string name;
      Attribute value;
      if (parser.parseString(&name) || parser.parseEqual() ||
          parseArgument(parser, inputs, value))
        return failure();
      named.append(name, value);
      return success();
    }
    return parseArgument(parser, inputs, positional.emplace_back());
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
  static constexpr StringRef common[] = {"dtype", "layout", "device",
                                         "pin_memory", "memory_format"};
  printer << '(';
  llvm::interleaveComma(args, printer, [&](Attribute arg) {
    printArgument(printer, inputs, arg);
  });
  bool first = args.empty();
  for (NamedAttribute entry : kwargs) {
    printer << (first ? "" : ", ");
    first = false;
    if (llvm::is_contained(common, entry.getName().getValue()))
      printer << entry.getName().getValue();
    else
      printer << "arg \"" << entry.getName().getValue() << '"';
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
