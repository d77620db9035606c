//===- Attributes.cpp - How attributes are written, and what they require
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "dialect/Piper.h"
#include "mlir/IR/Builders.h"
#include "mlir/IR/DialectImplementation.h"
#include "llvm/ADT/TypeSwitch.h"
#include "llvm/Support/GlobPattern.h"

using namespace mlir;
using namespace piper;

#define GET_ATTRDEF_CLASSES
#include "dialect/Attributes.cpp.inc"

void PiperDialect::registerAttributes() {
  addAttributes<
#define GET_ATTRDEF_LIST
#include "dialect/Attributes.cpp.inc"
      >();
}

/// Parses a bare or quoted word, such as the name of an axis.
static ParseResult parseWord(AsmParser &parser, StringAttr &word) {
  std::string text;
  if (failed(parser.parseKeywordOrString(&text)))
    return failure();
  word = StringAttr::get(parser.getContext(), text);
  return success();
}

/// Parses `<parser>` of an enum's keyword.
template <typename Enum>
static ParseResult parseEnum(AsmParser &parser, Enum &value,
                             std::optional<Enum> (*symbolize)(StringRef)) {
  StringRef keyword;
  SMLoc loc = parser.getCurrentLocation();
  if (failed(parser.parseKeyword(&keyword)))
    return failure();
  std::optional<Enum> parsed = symbolize(keyword);
  if (!parsed)
    return parser.emitError(loc, "unknown word '") << keyword << "'";
  value = *parsed;
  return success();
}

//===----------------------------------------------------------------------===//
// Axis
//===----------------------------------------------------------------------===//

Attribute AxisAttr::parse(AsmParser &parser, Type) {
  StringAttr name;
  int64_t size = 0;
  AxisRole role = AxisRole::Manual;
  SMLoc loc = parser.getCurrentLocation();
  if (parser.parseLess() || parseWord(parser, name) || parser.parseEqual() ||
      parser.parseInteger(size) ||
      parseEnum<AxisRole>(parser, role, symbolizeAxisRole) ||
      parser.parseGreater())
    return {};
  return parser.getChecked<AxisAttr>(loc, parser.getContext(), name, size,
                                     role);
}

void AxisAttr::print(AsmPrinter &printer) const {
  printer << '<';
  printer.printKeywordOrString(getName().getValue());
  printer << " = " << getSize() << ' ' << stringifyAxisRole(getRole()) << '>';
}

LogicalResult
AxisAttr::verify(llvm::function_ref<InFlightDiagnostic()> emitError,
                 StringAttr name, int64_t size, AxisRole) {
  if (size < 1)
    return emitError() << "expected at least 1 rank on axis '"
                       << name.getValue() << "', got " << size;
  return success();
}

//===----------------------------------------------------------------------===//
// Layout
//===----------------------------------------------------------------------===//

/// Parses `dp = shard(1)`, the part of a layout about one axis.
static FailureOr<AxisKindAttr> parseAxisKind(AsmParser &parser,
                                             StringAttr axis) {
  Kind kind = Kind::Replicated;
  int64_t dim = 0;
  if (failed(parseEnum<Kind>(parser, kind, symbolizeKind)))
    return failure();
  if (kind == Kind::Shard && (parser.parseLParen() ||
                              parser.parseInteger(dim) || parser.parseRParen()))
    return failure();
  return AxisKindAttr::get(parser.getContext(), axis, kind, dim);
}

static void printAxisKind(AsmPrinter &printer, AxisKindAttr axis) {
  printer.printKeywordOrString(axis.getAxis().getValue());
  printer << " = " << stringifyKind(axis.getKind());
  if (axis.getKind() == Kind::Shard)
    printer << '(' << axis.getDim() << ')';
}

Attribute AxisKindAttr::parse(AsmParser &parser, Type) {
  StringAttr axis;
  if (parser.parseLess() || parseWord(parser, axis) || parser.parseEqual())
    return {};
  FailureOr<AxisKindAttr> kind = parseAxisKind(parser, axis);
  if (failed(kind) || parser.parseGreater())
    return {};
  return *kind;
}

void AxisKindAttr::print(AsmPrinter &printer) const {
  printer << '<';
  printAxisKind(printer, *this);
  printer << '>';
}

Attribute LayoutAttr::parse(AsmParser &parser, Type) {
  SmallVector<AxisKindAttr> axes;
  int64_t bound = 0, expect = 0;
  SMLoc loc = parser.getCurrentLocation();
  auto parseItem = [&]() -> ParseResult {
    StringAttr word;
    if (parseWord(parser, word) || parser.parseEqual())
      return failure();
    // An axis may be called `bound`: a kind is no number.
    if (word == "bound" || word == "expect") {
      int64_t &rows = word == "bound" ? bound : expect;
      OptionalParseResult number = parser.parseOptionalInteger(rows);
      if (number.has_value())
        return *number;
    }
    FailureOr<AxisKindAttr> kind = parseAxisKind(parser, word);
    if (failed(kind))
      return failure();
    axes.push_back(*kind);
    return success();
  };
  if (failed(parser.parseCommaSeparatedList(AsmParser::Delimiter::LessGreater,
                                            parseItem)))
    return {};
  return parser.getChecked<LayoutAttr>(loc, parser.getContext(), axes, bound,
                                       expect);
}

void LayoutAttr::print(AsmPrinter &printer) const {
  printer << '<';
  StringRef separator = "";
  for (AxisKindAttr axis : getAxes()) {
    printer << std::exchange(separator, ", ");
    printAxisKind(printer, axis);
  }
  if (getBound())
    printer << std::exchange(separator, ", ") << "bound = " << getBound();
  if (getExpect())
    printer << std::exchange(separator, ", ") << "expect = " << getExpect();
  printer << '>';
}

LogicalResult
LayoutAttr::verify(llvm::function_ref<InFlightDiagnostic()> emitError,
                   ArrayRef<AxisKindAttr> axes, int64_t bound, int64_t expect) {
  llvm::SmallDenseSet<Attribute> seen;
  for (AxisKindAttr axis : axes)
    if (!seen.insert(axis.getAxis()).second)
      return emitError() << "expected each axis once in a layout, got '"
                         << axis.getAxis().getValue() << "' twice";
  if (bound < 0 || expect < 0)
    return emitError() << "expected no negative number of rows, got bound = "
                       << bound << " and expect = " << expect;
  if (expect > bound)
    return emitError() << "expected no more rows than the bound of " << bound
                       << ", got expect = " << expect;
  return success();
}

LogicalResult LayoutAttr::verifyEncoding(
    ArrayRef<int64_t> shape, Type,
    llvm::function_ref<InFlightDiagnostic()> emitError) const {
  for (AxisKindAttr axis : getAxes())
    if (axis.getKind() == Kind::Shard &&
        (axis.getDim() < 0 || axis.getDim() >= int64_t(shape.size())))
      return emitError() << "expected axis '" << axis.getAxis().getValue()
                         << "' to shard one of " << shape.size()
                         << " dims, got dim " << axis.getDim();
  if (ShapedType::isDynamicShape(shape) != (getBound() > 0))
    return emitError() << "expected a bound with a dynamic shape and none with "
                          "a static one, got bound = "
                       << getBound();
  return success();
}

Kind LayoutAttr::getKind(StringRef axis) const {
  for (AxisKindAttr entry : getAxes())
    if (entry.getAxis().getValue() == axis)
      return entry.getKind();
  return Kind::Replicated;
}

LayoutAttr LayoutAttr::withKind(StringAttr axis, Kind kind, int64_t dim) const {
  SmallVector<AxisKindAttr> axes(getAxes());
  for (AxisKindAttr &entry : axes)
    if (entry.getAxis() == axis)
      entry = AxisKindAttr::get(getContext(), axis, kind, dim);
  return LayoutAttr::get(getContext(), axes, getBound(), getExpect());
}

//===----------------------------------------------------------------------===//
// Facts
//===----------------------------------------------------------------------===//

Attribute FactsAttr::parse(AsmParser &parser, Type) {
  Effect effect = Effect::Pure;
  int64_t flops = 0, mask = 0;
  bool strided = false, heavy = false, masked = false;
  StringAttr rule;
  if (parser.parseLess() || parseEnum<Effect>(parser, effect, symbolizeEffect))
    return {};
  while (succeeded(parser.parseOptionalComma())) {
    if (succeeded(parser.parseOptionalKeyword("strided"))) {
      strided = true;
    } else if (succeeded(parser.parseOptionalKeyword("heavy"))) {
      heavy = true;
    } else if (succeeded(parser.parseOptionalKeyword("mask"))) {
      masked = true;
      if (parser.parseEqual() || parser.parseInteger(mask))
        return {};
    } else if (succeeded(parser.parseOptionalKeyword("rule"))) {
      if (parser.parseEqual() || parser.parseAttribute(rule))
        return {};
    } else if (parser.parseKeyword("flops") || parser.parseEqual() ||
               parser.parseInteger(flops)) {
      return {};
    }
  }
  if (parser.parseGreater())
    return {};
  return FactsAttr::get(parser.getContext(), effect, flops, strided, heavy,
                        masked ? std::optional(mask) : std::nullopt, rule);
}

void FactsAttr::print(AsmPrinter &printer) const {
  printer << '<' << stringifyEffect(getEffect());
  if (getFlops())
    printer << ", flops = " << getFlops();
  if (getStrided())
    printer << ", strided";
  if (getHeavy())
    printer << ", heavy";
  if (getMask())
    printer << ", mask = " << *getMask();
  if (getRule())
    printer << ", rule = " << getRule();
  printer << '>';
}

//===----------------------------------------------------------------------===//
// Halves of a backward chunk
//===----------------------------------------------------------------------===//

static ParseResult parseIndices(AsmParser &parser,
                                SmallVectorImpl<int64_t> &indices) {
  return parser.parseCommaSeparatedList(AsmParser::Delimiter::Square, [&] {
    return parser.parseInteger(indices.emplace_back());
  });
}

Attribute HalfAttr::parse(AsmParser &parser, Type) {
  FlatSymbolRefAttr chunk;
  SmallVector<int64_t> operands, results;
  if (parser.parseLess() || parser.parseAttribute(chunk) ||
      parseIndices(parser, operands) || parser.parseArrow() ||
      parseIndices(parser, results) || parser.parseGreater())
    return {};
  return HalfAttr::get(parser.getContext(), chunk, operands, results);
}

void HalfAttr::print(AsmPrinter &printer) const {
  printer << '<' << getChunk() << " [";
  llvm::interleaveComma(getOperands(), printer);
  printer << "] -> [";
  llvm::interleaveComma(getResults(), printer);
  printer << "]>";
}

//===----------------------------------------------------------------------===//
// Select
//===----------------------------------------------------------------------===//

Attribute SelectAttr::parse(AsmParser &parser, Type) {
  StringAttr key, value = StringAttr::get(parser.getContext(), "");
  SMLoc loc = parser.getCurrentLocation();
  if (parser.parseLess())
    return {};
  bool negated = succeeded(parser.parseOptionalKeyword("not"));
  if (parseWord(parser, key))
    return {};
  if (succeeded(parser.parseOptionalEqual()) && parseWord(parser, value))
    return {};
  if (parser.parseGreater())
    return {};
  return parser.getChecked<SelectAttr>(loc, parser.getContext(), negated, key,
                                       value);
}

void SelectAttr::print(AsmPrinter &printer) const {
  printer << '<' << (getNegated() ? "not " : "") << getKey().getValue();
  if (!isAll())
    printer << " = " << getValue();
  printer << '>';
}

LogicalResult
SelectAttr::verify(llvm::function_ref<InFlightDiagnostic()> emitError, bool,
                   StringAttr key, StringAttr value) {
  if (key == "all")
    return success();
  if (key != "tag" && key != "state")
    return emitError() << "expected a selector by all, tag or state, got '"
                       << key.getValue() << "'";
  if (llvm::Error error = llvm::GlobPattern::create(value).takeError())
    return emitError() << "expected a glob, got '" << value.getValue()
                       << "': " << llvm::toString(std::move(error));
  return success();
}

static bool globMatches(StringRef pattern, StringRef name) {
  llvm::Expected<llvm::GlobPattern> glob = llvm::GlobPattern::create(pattern);
  assert(glob && "the verifier accepts globs only");
  return glob->match(name);
}

bool SelectAttr::matchesState(StringRef name) const {
  if (isAll())
    return !getNegated();
  return (getKey() == "state" && globMatches(getValue(), name)) != getNegated();
}

bool SelectAttr::matchesChunk(StringRef name) const {
  if (isAll())
    return !getNegated();
  StringRef tag = name.rsplit('.').first;
  return (getKey() == "tag" && globMatches(getValue(), tag)) != getNegated();
}

//===----------------------------------------------------------------------===//
// What directives record on states
//===----------------------------------------------------------------------===//

/// Parses what follows `key =` into one of the options of a replication.
static ParseResult parseOption(AsmParser &parser, StringRef key, Type &dtype,
                               StringAttr &reduce, ArrayAttr &shard,
                               StringAttr &gather, int64_t &prefetch,
                               int64_t &limit) {
  SMLoc loc = parser.getCurrentLocation();
  if (parser.parseEqual())
    return failure();
  if (key == "dtype")
    return parser.parseType(dtype);
  if (key == "reduce")
    return parser.parseAttribute(reduce);
  if (key == "shard")
    return parser.parseAttribute(shard);
  if (key == "gather")
    return parser.parseAttribute(gather);
  if (key == "prefetch")
    return parser.parseInteger(prefetch);
  if (key == "limit")
    return parser.parseInteger(limit);
  return parser.emitError(loc,
                          "expected dtype, reduce, shard, gather, prefetch "
                          "or limit, got ")
         << key;
}

Attribute ReplicationAttr::parse(AsmParser &parser, Type) {
  Builder builder(parser.getContext());
  ArrayAttr axes, shard;
  int64_t zero = 0, bucket = 0, prefetch = 1, limit = 0;
  Type dtype;
  StringAttr reduce = builder.getStringAttr("last");
  StringAttr gather = builder.getStringAttr("each");
  if (parser.parseLess() || parser.parseAttribute(axes) ||
      parser.parseComma() || parser.parseKeyword("zero") ||
      parser.parseEqual() || parser.parseInteger(zero) || parser.parseComma() ||
      parser.parseKeyword("bucket") || parser.parseEqual() ||
      parser.parseInteger(bucket))
    return {};
  while (succeeded(parser.parseOptionalComma())) {
    StringRef key;
    if (parser.parseKeyword(&key) ||
        parseOption(parser, key, dtype, reduce, shard, gather, prefetch, limit))
      return {};
  }
  if (parser.parseGreater())
    return {};
  if (!shard)
    shard = zero > 0 ? axes : builder.getArrayAttr({});
  return ReplicationAttr::get(parser.getContext(), axes, zero, bucket, dtype,
                              reduce, shard, gather, prefetch, limit);
}

void ReplicationAttr::print(AsmPrinter &printer) const {
  printer << '<' << getAxes() << ", zero = " << getZero()
          << ", bucket = " << getBucket();
  if (getDtype())
    printer << ", dtype = " << getDtype();
  if (reducesEach())
    printer << ", reduce = " << getReduce();
  if (getZero() > 0 && getShard() != getAxes())
    printer << ", shard = " << getShard();
  if (getGather() != "each")
    printer << ", gather = " << getGather();
  if (getPrefetch() != 1)
    printer << ", prefetch = " << getPrefetch();
  if (getLimit() > 0)
    printer << ", limit = " << getLimit();
  printer << '>';
}

Attribute OptimizationAttr::parse(AsmParser &parser, Type) {
  StringAttr optimizer;
  FloatAttr clip;
  UnitAttr skip;
  Type master, f64 = Builder(parser.getContext()).getF64Type();
  if (parser.parseLess() || parser.parseAttribute(optimizer))
    return {};
  while (succeeded(parser.parseOptionalComma())) {
    if (succeeded(parser.parseOptionalKeyword("master"))) {
      if (parser.parseEqual() || parser.parseType(master))
        return {};
    } else if (succeeded(parser.parseOptionalKeyword("skip_nonfinite"))) {
      skip = UnitAttr::get(parser.getContext());
    } else if (parser.parseKeyword("clip") || parser.parseEqual() ||
               parser.parseAttribute(clip, f64)) {
      return {};
    }
  }
  if (parser.parseGreater())
    return {};
  return OptimizationAttr::get(parser.getContext(), optimizer, clip, master,
                               skip);
}

void OptimizationAttr::print(AsmPrinter &printer) const {
  printer << '<' << getOptimizer();
  if (getClip()) {
    printer << ", clip = ";
    printer.printAttributeWithoutType(getClip());
  }
  if (getMaster())
    printer << ", master = " << getMaster();
  if (getSkipNonfinite())
    printer << ", skip_nonfinite";
  printer << '>';
}
