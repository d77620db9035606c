//===- SharedValues.cpp - Values that ranks along an auto axis share out
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "passes/outline/SharedValues.h"

#include "passes/outline/Partition.h"
#include "passes/support/ChunkBuilder.h"
#include "passes/support/Streams.h"

#include "dialect/Rules.h"

using namespace mlir;

namespace piper {

int64_t getSize(Value value, size_t dim) {
  return cast<RankedTensorType>(value.getType()).getDimSize(dim);
}

Type resize(Type type, size_t dim, int64_t size) {
  auto tensor = cast<RankedTensorType>(type);
  SmallVector<int64_t> shape(tensor.getShape());
  shape[dim] = size;
  return RankedTensorType::get(shape, tensor.getElementType(),
                               tensor.getEncoding());
}

/// The dims of a value in a rule, one of them by another name.
static std::string nameDims(Value value, std::optional<size_t> dim = {},
                            StringRef name = "") {
  std::string text;
  llvm::raw_string_ostream os(text);
  int64_t rank = cast<RankedTensorType>(value.getType()).getRank();
  for (int64_t index = 0; index < rank; ++index) {
    os << (index ? " " : "");
    if (dim && int64_t(*dim) == index)
      os << name;
    else
      os << 'd' << index;
  }
  return text;
}

/// The whole of a value, exchanged once per pass.
Value SharedValues::getWhole(Value value, Operation *user, TagAttr tag) {
  if (isWhole(value))
    return value;
  if (Value known = wholes.lookup({value, tag}))
    return known;
  Value made = getWholeView(value, user, tag);
  if (!made) {
    builder.setInsertionPoint(user);
    made = isTerm(value) ? reduce(value, user, tag) : gather(value, user, tag);
  }
  return wholes[{value, tag}] = made;
}

/// The whole of a view, as a view of the whole: several views of a part are
/// gathered once. Null if it is no such view.
Value SharedValues::getWholeView(Value value, Operation *user, TagAttr tag) {
  auto view = value.getDefiningOp<TorchOp>();
  if (!view || !view.isView() || view->getNumResults() != 1 ||
      view.getInputs().size() != 1 || !isPart(value) ||
      !isPart(view.getInputs()[0]))
    return {};
  Value whole = getWhole(view.getInputs()[0], user, tag);
  builder.setInsertionPoint(user);
  auto copy = cast<TorchOp>(builder.clone(*view));
  copy.getInputsMutable().assign(whole);
  copy.setTagAttr(tag);
  size_t dim = get(value).dim;
  Rule rule = *parseRule(view.getFacts().getRule());
  for (const Rule::Size &size : rule.sizes)
    if (size.name == rule.results.front()[dim])
      if (size.get(copy.getArgs()).getInt() > 0) // or -1
        copy.setArgsAttr(size.set(copy.getArgs(), get(value).size));
  Value result = copy.getResult(0);
  result.setType(resize(value.getType(), dim, get(value).size));
  return result;
}

Value SharedValues::reduce(Value value, Operation *user, TagAttr tag) {
  auto op = AllReduceOp::create(
      builder, user->getLoc(), TypeRange(value.getType()), value,
      DenseI64ArrayAttr(), builder.getArrayAttr(axis.getName()), StringAttr(),
      getLabel(tag, "reduce"), IntegerAttr(), getStream(), ValueRange());
  op->setAttr("tag", tag);
  return op.getResults().front();
}

Value SharedValues::gather(Value value, Operation *user, TagAttr tag) {
  Held form = get(value);
  size_t dim = form.dim;
  if (value.getDefiningOp<ReadOp>()) { // what is exchanged comes from a chunk
    value = copy(value, user, tag);
    held[value] = form;
  }
  Type whole =
      resize(value.getType(), dim, getSize(value, dim) * axis.getSize());
  auto op = AllGatherOp::create(
      builder, user->getLoc(), TypeRange(whole), value, DenseI64ArrayAttr(),
      builder.getArrayAttr(axis.getName()), StringAttr(),
      getLabel(tag, "gather"), IntegerAttr(), getStream(), ValueRange(), dim);
  op->setAttr("tag", tag);
  return cut(op.getResults().front(), dim, form.size, user, tag);
}

/// A value without the padding that parts of a dim have behind the whole.
Value SharedValues::cut(Value value, size_t dim, int64_t size, Operation *user,
                        TagAttr tag) {
  if (getSize(value, dim) == size)
    return value;
  Attribute args[] = {
      ArgAttr::get(step.getContext(), 0), builder.getI64IntegerAttr(dim),
      builder.getI64IntegerAttr(0), builder.getI64IntegerAttr(size)};
  std::string whole = nameDims(value), cut = nameDims(value, dim, "w");
  return call("aten.slice.Tensor", resize(value.getType(), dim, size), value,
              args, builder.getDictionaryAttr({}), /*isView=*/true,
              whole + " -> " + cut + "; linear", user, tag)
      .getResult(0);
}

TorchOp SharedValues::call(StringRef name, Type type, ValueRange inputs,
                           ArrayRef<Attribute> args, DictionaryAttr kwargs,
                           bool isView, const Twine &rule, Operation *user,
                           TagAttr tag) {
  auto facts = FactsAttr::get(
      step.getContext(), isView ? Effect::View : Effect::Pure, 0,
      /*strided=*/isView, false, std::nullopt, builder.getStringAttr(rule));
  return TorchOp::create(builder, user->getLoc(), TypeRange(type), inputs,
                         builder.getStringAttr(name),
                         builder.getArrayAttr(args), kwargs, facts, UnitAttr(),
                         tag);
}

Value SharedValues::getClean(Value value, Operation *user, TagAttr tag) {
  Held form = get(value);
  if (form.isClean || isDivided(form.size))
    return value;
  Value &known = cleaned[{value, tag}];
  if (known)
    return known;
  builder.setInsertionPoint(user);
  Attribute args[] = {ArgAttr::get(step.getContext(), 0),
                      builder.getI64IntegerAttr(form.dim)};
  auto kwargs = getPartArgs(/*index=*/1, form.size);
  std::string dims = nameDims(value, form.dim, "p");
  known = call("piper.clear_padding.default", value.getType(),
               ValueRange{value, readRankIndex(step, axis, symbols)}, args,
               kwargs.getDictionary(step.getContext()), /*isView=*/false,
               dims + ", 1 -> " + dims + "; p at 1", user, tag)
              .getResult(0);
  form.isClean = true;
  held[known] = form;
  return known;
}

NamedAttrList SharedValues::getPartArgs(int64_t index, int64_t size) {
  NamedAttrList args;
  args.set("index", ArgAttr::get(step.getContext(), index));
  args.set("parts", builder.getI64IntegerAttr(axis.getSize()));
  args.set("size", builder.getI64IntegerAttr(size));
  return args;
}

Value SharedValues::getPart(Value value, size_t dim, Operation *user,
                            TagAttr tag) {
  Value &known = parts[{value, dim, tag}];
  if (known)
    return known;
  builder.setInsertionPoint(user);
  int64_t size = getSize(value, dim);
  Type type = resize(value.getType(), dim, getPartSize(size));
  Attribute args[] = {ArgAttr::get(step.getContext(), 0),
                      ArgAttr::get(step.getContext(), 1),
                      builder.getI64IntegerAttr(dim),
                      builder.getI64IntegerAttr(axis.getSize())};
  known =
      call("piper.part.default", type,
           ValueRange{value, readRankIndex(step, axis, symbols)}, args,
           builder.getDictionaryAttr({}), /*isView=*/false,
           nameDims(value) + ", 1 -> " + nameDims(value, dim, "p") + "; p at 1",
           user, tag)
          .getResult(0);
  held[known] = {Held::Part, dim, size, /*isClean=*/true};
  return known;
}

StringAttr SharedValues::getLabel(TagAttr tag, StringRef what) {
  return builder.getStringAttr(tag.getChunk().getValue() + " " + what);
}

FlatSymbolRefAttr SharedValues::getStream() {
  return declareStream(symbols, axis.getName());
}

Value SharedValues::getScattered(Value value, size_t dim, Operation *user,
                                 TagAttr tag) {
  Value &known = scattered[{value, tag}];
  if (!known) {
    builder.setInsertionPoint(user);
    Type part =
        resize(value.getType(), dim, getSize(value, dim) / axis.getSize());
    auto op = ReduceScatterOp::create(
        builder, value.getLoc(), TypeRange(part), value, DenseI64ArrayAttr(),
        builder.getArrayAttr(axis.getName()), StringAttr(),
        getLabel(tag, "scatter"), IntegerAttr(), getStream(), ValueRange(),
        dim);
    op->setAttr("tag", tag);
    known = op.getResults().front();
    held[known] = {Held::Part, dim, getSize(value, dim)};
  }
  return known;
}

Value SharedValues::getAgain(Value value, Operation *user, TagAttr tag) {
  SmallVector<OpResult> views;
  Value root = value;
  while (auto view = root.getDefiningOp<TorchOp>()) {
    if (!view.isView() || view.getInputs().size() != 1)
      break;
    views.push_back(cast<OpResult>(root));
    root = view.getInputs().front();
  }
  auto gather = root.getDefiningOp<AllGatherOp>();
  bool isOwn = gather && gather.getOver()[0] == axis.getName();
  if (!isOwn || gather->getAttr("tag") == tag)
    return value;
  Value again = getWhole(gather.getInputs().front(), user, tag);
  builder.setInsertionPoint(user);
  for (OpResult view : llvm::reverse(views)) {
    auto clone = cast<TorchOp>(builder.clone(*view.getOwner()));
    clone.getInputsMutable().assign(again);
    clone.setTagAttr(tag);
    again = clone.getResult(view.getResultNumber());
  }
  return again;
}

Value SharedValues::copy(Value value, Operation *user, TagAttr tag) {
  builder.setInsertionPoint(user);
  Value made = copyValue(value, builder, /*hasRule=*/true);
  made.getDefiningOp<TorchOp>().setTagAttr(tag);
  return made;
}

} // namespace piper
