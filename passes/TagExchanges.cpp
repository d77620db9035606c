//===- TagExchanges.cpp - Give what ranks exchange a place in a chunk
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

// Ops of pass P are made again wherever they are used, which an exchange cannot
// be: all ranks take part in it, once. So it joins the first chunk that uses
// it, and with it what is made of what it returns. An exchange takes what its
// own chunk makes: what makes that alone joins the chunk, too, and of what
// others need as well, or what nobody makes, the chunk makes a copy.
//
//   sort            P, used by exchanges alone       F of the chunk
//   mask            P, used by another op of P, too  P, copied in the chunk
//   exchange        P                                F of the chunk
//   relu(exchange)  P                                F of the chunk that uses
//   it

#include "passes/ChunkBuilder.h"
#include "passes/Partition.h"

#include "mlir/IR/Builders.h"
#include "llvm/ADT/DenseSet.h"

using namespace mlir;

namespace piper {

namespace {

class Tagger {
public:
  explicit Tagger(StepOp step) : step(step), builder(step.getContext()) {}

  void run() {
    for (Operation &op : step.getBlock())
      add(&op);
    // Users come behind makers: their tags are known.
    for (Operation *op : llvm::reverse(preamble))
      if (follows.contains(op) || feedsExchangesAlone(op))
        if (TagAttr tag = findTag(op))
          setTag(op, tag);
    for (Operation *op : preamble) // what is reported alone
      if (follows.contains(op) && isPreamble(op))
        if (TagAttr tag = findTagOfMaker(op))
          setTag(op, tag);
    for (Operation &op : llvm::make_early_inc_range(step.getBlock()))
      if (isExchange(&op) && !isPreamble(&op))
        copyOperands(&op);
  }

private:
  static TagAttr getTag(Operation *op) {
    return op->getAttrOfType<TagAttr>("tag");
  }

  static bool isPreamble(Operation *op) {
    TagAttr tag = getTag(op);
    return tag && tag.getPass() == Pass::P;
  }

  void add(Operation *op) {
    numbers[op] = numbers.size();
    if (!isPreamble(op))
      return;
    preamble.push_back(op);
    auto isBehind = [&](Value operand) {
      return follows.contains(operand.getDefiningOp());
    };
    if (isExchange(op) || llvm::any_of(op->getOperands(), isBehind))
      follows.insert(op);
  }

  static bool feedsExchangesAlone(Operation *op) {
    auto users = op->getUsers();
    return llvm::any_of(users, isExchange) && llvm::none_of(users, isPreamble);
  }

  /// The tag of the first user: what a chunk makes before its backward pass
  /// needs it stands before that. Null if no chunk uses it.
  TagAttr findTag(Operation *op) {
    Operation *first = nullptr;
    for (Operation *user : op->getUsers())
      if (getTag(user) && !isPreamble(user) &&
          (!first || numbers.lookup(user) < numbers.lookup(first)))
        first = user;
    return first ? getTag(first) : TagAttr();
  }

  TagAttr findTagOfMaker(Operation *op) {
    for (Value operand : op->getOperands())
      if (Operation *maker = operand.getDefiningOp();
          follows.contains(maker) && !isPreamble(maker))
        return getTag(maker);
    return {};
  }

  /// Labels begin with the name of the chunk: `layer.0 dispatch`.
  void setTag(Operation *op, TagAttr tag) {
    StringRef old = getTag(op).getChunk().getValue();
    op->setAttr("tag", tag);
    if (auto label = op->getAttrOfType<StringAttr>("label"))
      op->setAttr("label", builder.getStringAttr(
                               tag.getChunk().getValue() +
                               label.getValue().drop_front(old.size())));
  }

  /// What an exchange is given, its chunk makes.
  void copyOperands(Operation *op) {
    for (OpOperand &operand : op->getOpOperands()) {
      Operation *maker = operand.get().getDefiningOp();
      if (maker && !isa<ReadOp>(maker) && !isPreamble(maker))
        continue;
      Value &copy = copies[{operand.get(), getTag(op)}];
      if (!copy) {
        builder.setInsertionPoint(op);
        copy = copyValue(operand.get(), builder, /*hasRule=*/true);
        cast<TorchOp>(copy.getDefiningOp()).setTagAttr(getTag(op));
      }
      operand.set(copy);
    }
  }

  StepOp step;
  OpBuilder builder;
  llvm::DenseMap<Operation *, size_t> numbers; // in step order
  SmallVector<Operation *> preamble;           // ops of pass P, in order
  llvm::DenseSet<Operation *> follows; // exchanges in it, and what uses these
  llvm::DenseMap<std::pair<Value, Attribute>, Value> copies;
};

} // namespace

void tagExchanges(StepOp step) { Tagger(step).run(); }

} // namespace piper
