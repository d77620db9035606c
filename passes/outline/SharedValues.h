//===- SharedValues.h - Values that ranks along an auto axis share out
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef PIPER_PASSES_OUTLINE_SHAREDVALUES_H
#define PIPER_PASSES_OUTLINE_SHAREDVALUES_H

#include "dialect/Piper.h"
#include "mlir/IR/Builders.h"
#include "mlir/IR/SymbolTable.h"

namespace piper {

/// What ranks along the axis hold of a value: all the whole of it, each a part
/// of a dim, or each a term of the sum.
struct Held {
  enum Form { Whole, Part, Term } form = Whole;
  size_t dim = 0;       // of a part
  int64_t size = 0;     // of that dim of the whole
  bool isClean = false; // there are zeros where a part has padding
};

/// The same type with another size of a dim.
mlir::Type resize(mlir::Type type, size_t dim, int64_t size);

/// The size of a dim of a value.
int64_t getSize(mlir::Value value, size_t dim);

/// What ranks hold of the values of a captured step, and how one form is made
/// of another: each once per value and pass, right before whoever asks for it.
class SharedValues {
public:
  SharedValues(StepOp step, AxisAttr axis, mlir::SymbolTable &symbols)
      : step(step), axis(axis), symbols(symbols), builder(step.getContext()) {}

  Held get(mlir::Value value) const { return held.lookup(value); }
  void set(mlir::Value value, Held form) { held[value] = form; }
  /// Notes a value of which each rank has one element along a dim.
  void setStats(mlir::Value value, size_t dim) {
    set(value, {Held::Part, dim, axis.getSize(), /*isClean=*/true});
  }
  bool isWhole(mlir::Value value) const {
    return get(value).form == Held::Whole;
  }
  bool isPart(mlir::Value value) const { return get(value).form == Held::Part; }
  bool isTerm(mlir::Value value) const { return get(value).form == Held::Term; }

  /// The size of a dim's part, of which the last ones may hold padding.
  int64_t getPartSize(int64_t size) const {
    return llvm::divideCeil(size, axis.getSize());
  }
  bool isDivided(int64_t size) const { return size % axis.getSize() == 0; }

  /// A part with zeros where it has padding: the value itself if it has none.
  mlir::Value getClean(mlir::Value value, mlir::Operation *user, TagAttr tag);

  /// Where a call of an op that takes parts gets which part it is, and of how
  /// many elements: `index`, and names of integers.
  mlir::NamedAttrList getPartArgs(int64_t index, int64_t size);

  /// The whole of a value: parts are gathered, terms summed.
  mlir::Value getWhole(mlir::Value value, mlir::Operation *user, TagAttr tag);

  /// Of a value of terms, a part of the sum.
  mlir::Value getScattered(mlir::Value value, size_t dim, mlir::Operation *user,
                           TagAttr tag);

  /// A rank's part of a value that is whole, cut where it is used.
  mlir::Value getPart(mlir::Value value, size_t dim, mlir::Operation *user,
                      TagAttr tag);

  /// What another pass has gathered, or a view of it, gathered again for this
  /// one, so that it is not kept until then; the value itself if it is nothing
  /// of the kind.
  mlir::Value getAgain(mlir::Value value, mlir::Operation *user, TagAttr tag);

  /// A copy that a chunk makes.
  mlir::Value copy(mlir::Value value, mlir::Operation *user, TagAttr tag);

private:
  mlir::Value getWholeView(mlir::Value value, mlir::Operation *user,
                           TagAttr tag);
  mlir::Value reduce(mlir::Value value, mlir::Operation *user, TagAttr tag);
  mlir::Value gather(mlir::Value value, mlir::Operation *user, TagAttr tag);
  mlir::Value cut(mlir::Value value, size_t dim, int64_t size,
                  mlir::Operation *user, TagAttr tag);
  TorchOp call(llvm::StringRef name, mlir::Type type, mlir::ValueRange inputs,
               llvm::ArrayRef<mlir::Attribute> args,
               mlir::DictionaryAttr kwargs, bool isView,
               const llvm::Twine &rule, mlir::Operation *user, TagAttr tag);
  mlir::StringAttr getLabel(TagAttr tag, mlir::StringRef what);
  mlir::FlatSymbolRefAttr getStream();

  using Key =
      std::pair<mlir::Value, mlir::Attribute>; // and the tag of who asks

  StepOp step;
  AxisAttr axis;
  mlir::SymbolTable &symbols;
  mlir::OpBuilder builder;
  llvm::DenseMap<mlir::Value, Held> held; // whole if it is not in it
  llvm::DenseMap<Key, mlir::Value> wholes, scattered, cleaned;
  llvm::DenseMap<std::tuple<mlir::Value, size_t, mlir::Attribute>, mlir::Value>
      parts;
};

} // namespace piper

#endif // PIPER_PASSES_OUTLINE_SHAREDVALUES_H
