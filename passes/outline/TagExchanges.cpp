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
//   relu(exchange)  P                                F of its user's chunk
//
// Where layers share a sort, later ones, which may be elsewhere, are sent its
// counts, but not the sizes that a host was told: each chunk asks for its own.

#include "passes/outline/Partition.h"
#include "passes/support/ChunkBuilder.h"

#include "mlir/IR/Builders.h"
#include "llvm/ADT/DenseSet.h"
#include "llvm/ADT/SetVector.h"

#include <queue>

using namespace mlir;

namespace piper {

namespace {

class Tagger {
public:
  explicit Tagger(StepOp step) : step(step), builder(step.getContext()) {}

  void run() {
    for (Operation &op : step.getBlock())
      add(&op);
    orderChunks();
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
    if (!isPreamble(op))
      return addToChunk(op);
    preamble.push_back(op);
    auto isBehind = [&](Value operand) {
      return follows.contains(operand.getDefiningOp());
    };
    if (isExchange(op) || llvm::any_of(op->getOperands(), isBehind))
      follows.insert(op);
  }

  /// Notes its chunk, and those that this takes values of.
  void addToChunk(Operation *op) {
    TagAttr tag = getTag(op);
    if (!tag)
      return;
    size_t chunk = chunks.try_emplace(tag, chunks.size()).first->second;
    users.resize(chunks.size());
    for (Value operand : op->getOperands()) {
      Operation *maker = operand.getDefiningOp();
      auto found = maker ? chunks.find(getTag(maker)) : chunks.end();
      if (found != chunks.end() && found->second != chunk)
        users[found->second].insert(chunk);
    }
  }

  /// Finds the place of each chunk: behind those whose values it takes, and
  /// else where its first op stands. Of chunks in a cycle, which the outliner
  /// refuses, any order will do.
  void orderChunks() {
    SmallVector<size_t> missing(users.size());
    for (const auto &all : users)
      for (size_t user : all)
        ++missing[user];
    std::priority_queue<size_t, std::vector<size_t>, std::greater<>> ready;
    for (auto [chunk, count] : llvm::enumerate(missing))
      if (count == 0)
        ready.push(chunk);
    places.assign(users.size(), users.size());
    for (size_t place = 0; !ready.empty(); ++place) {
      size_t chunk = ready.top();
      ready.pop();
      places[chunk] = place;
      for (size_t user : users[chunk])
        if (--missing[user] == 0)
          ready.push(user);
    }
  }

  static bool feedsExchangesAlone(Operation *op) {
    auto users = op->getUsers();
    return llvm::any_of(users, isExchange) && llvm::none_of(users, isPreamble);
  }

  /// The tag of the first chunk that uses it: what a chunk makes before its
  /// backward pass needs it stands before that. Null if no chunk does.
  TagAttr findTag(Operation *op) {
    TagAttr first;
    for (Operation *user : op->getUsers())
      if (TagAttr tag = getTag(user); tag && !isPreamble(user))
        if (!first || getPlace(tag) < getPlace(first))
          first = tag;
    return first;
  }

  size_t getPlace(TagAttr tag) { return places[chunks.lookup(tag)]; }

  TagAttr findTagOfMaker(Operation *op) {
    for (Value operand : op->getOperands())
      if (Operation *maker = operand.getDefiningOp();
          follows.contains(maker) && !isPreamble(maker))
        return getTag(maker);
    return {};
  }

  /// Labels that begin with the name of the chunk go with it: `layer.0
  /// dispatch`. Those that a user's pass chose otherwise stay.
  void setTag(Operation *op, TagAttr tag) {
    StringRef old = getTag(op).getChunk().getValue();
    op->setAttr("tag", tag);
    auto label = op->getAttrOfType<StringAttr>("label");
    StringRef rest = label ? label.getValue() : StringRef();
    if (rest.consume_front(old))
      op->setAttr("label",
                  builder.getStringAttr(tag.getChunk().getValue() + rest));
  }

  /// What an exchange is given, its chunk makes.
  void copyOperands(Operation *op) {
    for (OpOperand &operand : op->getOpOperands())
      if (!isMadeFor(op, operand.get()))
        operand.set(isa<SizesType>(operand.get().getType())
                        ? copySizes(cast<OpResult>(operand.get()), op)
                        : copyTensor(operand.get(), op));
  }

  /// Whether the chunk of an exchange makes what this takes. If it takes
  /// nothing else, ranks may exchange it wherever another chunk made it.
  static bool isMadeFor(Operation *op, Value value) {
    Operation *maker = value.getDefiningOp();
    if (isa<SizesType>(value.getType()) && !isa_and_nonnull<HostWaitOp>(maker))
      return true; // which is refused later
    if (!maker || isa<ReadOp>(maker) || isPreamble(maker))
      return false;
    TagAttr tag = getTag(maker);
    return !tag || op->getNumOperands() == 1 ||
           tag.getChunk() == getTag(op).getChunk();
  }

  Value copyTensor(Value value, Operation *op) {
    Value &copy = copies[{value, getTag(op)}];
    if (!copy) {
      builder.setInsertionPoint(op);
      copy = copyValue(value, builder, /*hasRule=*/true);
      cast<TorchOp>(copy.getDefiningOp()).setTagAttr(getTag(op));
    }
    return copy;
  }

  /// Asks for sizes once more, for both passes of a chunk.
  Value copySizes(OpResult size, Operation *op) {
    Operation *&wait = waits[{size.getOwner(), getTag(op).getChunk()}];
    if (!wait) {
      builder.setInsertionPoint(op);
      wait = builder.clone(*size.getOwner());
      wait->setAttr("tag", getTag(op));
      copyOperands(wait);
    }
    return wait->getResult(size.getResultNumber());
  }

  StepOp step;
  OpBuilder builder;
  llvm::DenseMap<Attribute, size_t> chunks;           // by tag, as they begin
  SmallVector<llvm::SmallSetVector<size_t, 4>> users; // by chunk
  SmallVector<size_t> places;                         // by chunk
  SmallVector<Operation *> preamble;                  // ops of pass P, in order
  llvm::DenseSet<Operation *> follows; // exchanges in it, and what uses these
  llvm::DenseMap<std::pair<Value, Attribute>, Value> copies; // by tag
  llvm::DenseMap<std::pair<Operation *, Attribute>, Operation *>
      waits; // copies, by name of the chunk
};

} // namespace

void tagExchanges(StepOp step) { Tagger(step).run(); }

} // namespace piper
