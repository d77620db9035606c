//===- Gathers.cpp - When states that ranks share out are gathered
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "passes/materialize/Gathers.h"

#include "passes/materialize/Sharding.h"

#include "dialect/Layouts.h"

using namespace mlir;

namespace piper {

void Gathers::add(unsigned op) {
  auto gather = dyn_cast<AllGatherOp>(graph.ops[op]);
  auto read =
      gather ? gather.getInputs().front().getDefiningOp<ReadOp>() : ReadOp();
  if (!read)
    return;
  auto bucket = symbols.lookup<BucketOp>(read.getSymbol());
  ReplicationAttr replication = getReplication(bucket, symbols);
  auto type = cast<RankedTensorType>(gather->getResult(0).getType());
  gathers[op] = {read.getSymbolAttr(), replication, getNumBytes(type)};
  farthest = std::max(farthest, size_t(replication.getPrefetch()));
}

void Gathers::addRow(ArrayRef<unsigned> ops) {
  if (gathers.empty())
    return;
  Row &row = rows.emplace_back();
  llvm::DenseMap<Attribute, std::pair<size_t, unsigned>> before;
  for (unsigned op : ops) {
    size_t use = row.uses.size();
    SmallVector<unsigned, 2> used;
    for (unsigned maker : graph.makers(op)) {
      auto found = gathers.find(maker);
      if (found == gathers.end())
        continue;
      Gather &gather = found->second;
      auto [at, first] =
          before.try_emplace(gather.bucket, use, maker).first->second;
      if (gather.replication.getGather() != "group" || at + 1 < use)
        first = maker;
      before[gather.bucket] = {use, first};
      if (first != maker)
        order.shared[maker] = first;
      gathers[first].last = use;
      used.push_back(first);
    }
    if (used.empty())
      continue;
    useOf[op] = {rows.size() - 1, use};
    row.uses.push_back(used);
  }
}

void Gathers::release(Row &row, size_t use) {
  llvm::erase_if(row.whole, [&](unsigned op) {
    const Gather &gather = gathers[op];
    if (gather.last >= use)
      return false;
    row.bytes -= gather.bytes;
    return true;
  });
}

bool Gathers::isWholeBefore(const Row &row, unsigned op) const {
  return llvm::any_of(row.whole, [&](unsigned other) {
    return other != op && gathers.at(other).bucket == gathers.at(op).bucket;
  });
}

Gathers::Ops Gathers::getNext(unsigned run) {
  Ops next;
  auto found = useOf.find(run);
  if (found == useOf.end())
    return next;
  auto [number, use] = found->second;
  Row &row = rows[number];
  release(row, use);
  size_t end = std::min(row.uses.size(), use + farthest + 1);
  for (size_t at = use; at < end; ++at)
    for (unsigned op : row.uses[at]) {
      const Gather &gather = gathers[op];
      bool isEarly = at > use;
      if (issued.contains(op) ||
          (isEarly && (at - use > size_t(gather.replication.getPrefetch()) ||
                       isWholeBefore(row, op))))
        continue;
      int64_t limit = gather.replication.getLimit();
      if (isEarly && limit > 0 && row.bytes + gather.bytes > limit)
        return next;
      issued.insert(op);
      row.whole.push_back(op);
      row.bytes += gather.bytes;
      next.push_back(op);
    }
  return next;
}

} // namespace piper
