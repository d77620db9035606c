//===- VerifyCommunicators.cpp - What communicators have to fit in
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

// A program is one block without control flow: every rank of a coordinate
// issues every instruction in it. So no collective is conditional (its verifier
// refuses it inside any other op), and the ranks along manual axes issue in one
// order, by construction. What is left to check lies between coordinates.

#include "passes/verify/Verify.h"

#include "llvm/ADT/DenseMap.h"

using namespace mlir;

namespace piper {

LogicalResult verifyCommunicatorCount(ModuleOp module, size_t limit) {
  std::map<int64_t, size_t> counts; // by coordinate
  for (auto comm : module.getOps<CommOp>())
    for (int64_t at : comm.getCoordinates())
      if (++counts[at] > limit)
        return comm.emitOpError("expected at most ")
               << limit << " communicators at coordinate " << at
               << ", got one more: @" << comm.getSymName();
  return success();
}

namespace {

/// The instructions that one coordinate issues on one communicator.
using Queue = std::vector<Operation *>;

/// Two communicators and the coordinates that both join.
struct Overlap {
  const std::map<int64_t, Queue> &first, &second;
  SmallVector<int64_t> shared;
};

class IssueOrderVerifier {
public:
  explicit IssueOrderVerifier(ArrayRef<ProgramOp> programs)
      : queues(collectQueues(programs)) {
    for (ProgramOp program : programs)
      for (auto [position, op] : llvm::enumerate(program.getBlock()))
        if (getCommunicator(&op))
          positions[&op] = position;
  }

  LogicalResult run() {
    auto all = queues.getArrayRef();
    for (size_t i = 0; i < all.size(); ++i)
      for (size_t j = i + 1; j < all.size(); ++j) {
        Overlap overlap = {all[i].second, all[j].second, {}};
        for (auto &[at, queue] : overlap.first)
          if (overlap.second.count(at))
            overlap.shared.push_back(at);
        if (overlap.shared.size() > 1 && failed(check(overlap)))
          return failure();
      }
    return success();
  }

private:
  /// Merges the two queues as each coordinate issues them, step by step.
  LogicalResult check(const Overlap &overlap) {
    int64_t first = overlap.shared.front();
    for (int64_t at : ArrayRef(overlap.shared).drop_front()) {
      size_t i = 0, j = 0;
      const Queue &a = overlap.first.at(at), &b = overlap.second.at(at);
      const Queue &wantedA = overlap.first.at(first),
                  &wantedB = overlap.second.at(first);
      while (i < a.size() && j < b.size()) {
        bool here = isBefore(a[i], b[j]);
        if (here != isBefore(wantedA[i], wantedB[j]))
          return here ? report(b[j], j, a[i], wantedB[j])
                      : report(a[i], i, b[j], wantedA[i]);
        ++(here ? i : j);
      }
    }
    return success();
  }

  bool isBefore(Operation *a, Operation *b) {
    return positions.lookup(a) < positions.lookup(b);
  }

  /// `late` comes behind `early`, but its other end comes first.
  LogicalResult report(Operation *late, size_t number, Operation *early,
                       Operation *other) {
    InFlightDiagnostic error = late->emitOpError("expected number ")
                               << number << " on " << getCommunicator(late)
                               << " to come before " << describe(early)
                               << ", as at coordinate "
                               << cast<ProgramOp>(other->getParentOp()).getAt()
                               << ", which shares both communicators";
    error.attachNote(early->getLoc()) << "this comes first here";
    error.attachNote(other->getLoc()) << "the other end is here";
    return failure();
  }

  Queues queues;
  llvm::DenseMap<Operation *, size_t> positions; // in their programs
};

} // namespace

LogicalResult verifyIssueOrder(ArrayRef<ProgramOp> programs) {
  return IssueOrderVerifier(programs).run();
}

} // namespace piper
