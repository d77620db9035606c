//===- KernelKinds.h - What ranks along auto axes hold of what kernels make
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef PIPER_PASSES_SUPPORT_KERNELKINDS_H
#define PIPER_PASSES_SUPPORT_KERNELKINDS_H

#include "dialect/Piper.h"
#include "mlir/IR/SymbolTable.h"

#include <deque>
#include <map>

namespace piper {

struct Rule;

/// An op whose operands do not go together by its rule, so that nobody knows
/// what ranks hold of its results.
struct Unknown {
  TorchOp op;
  std::string operands; // their kinds, in words
};

/// What ranks along one axis hold of a value.
struct AxisKind {
  Kind kind = Kind::Replicated;
  int64_t dim = 0;                  // of a shard
  const Unknown *unknown = nullptr; // the op behind a varying value, if known
  /// Of a shard whose dim was joined with dims before it, so many elements in a
  /// row are of one part; 0 otherwise. Of rows of experts see `toRows`.
  int64_t joined = 0;
  /// Bits of dims along which a replicated value is the same everywhere, so
  /// that any of its parts is as good as another.
  uint64_t same = 0;

  bool operator==(const AxisKind &other) const {
    return kind == other.kind && dim == other.dim && joined == other.joined;
  }
  bool operator<(const AxisKind &other) const {
    return std::tie(kind, dim, joined, same) <
           std::tie(other.kind, other.dim, other.joined, other.same);
  }
};

/// What rows of experts, which are in an order of the rank's own, remember of
/// how their tokens are joined; and the other way round.
inline int64_t toRows(int64_t joined) { return -1 - joined; }
inline bool isRows(int64_t joined) { return joined < 0; }

/// `replicated`, `partial`, `shard(1)` or `varying`.
llvm::raw_ostream &operator<<(llvm::raw_ostream &os, AxisKind kind);
std::string toString(AxisKind kind);

/// What a type says of an axis.
AxisKind getAxisKind(mlir::Type type, mlir::StringAttr axis);

/// The auto axes along which there are several ranks.
llvm::SmallVector<AxisAttr> getSharedAxes(MeshOp mesh);

/// Whether an op fills what it makes with one number, or leaves it to others.
bool fillsWithOne(TorchOp op);

/// Whether such an op takes a tensor for its dtype alone.
bool takesDtypeAlone(TorchOp op);

/// Whether an op takes the number of labels only to divide by it, which it does
/// not where losses are summed: there it may be a term.
bool ignoresTerms(TorchOp op);

/// Whether an op only rounds: a cast from a floating dtype to another one. Of
/// the terms of a sum over positions it rounds each, and not the sum. That is
/// no less exact than what data parallelism does, where the gradient that a
/// rank has of its rows is rounded to the dtype of the weight and summed over
/// ranks then, in the dtype that `replicate` says. A cast to integers would cut
/// off, and one to bool compare with 0.
bool onlyRounds(TorchOp op);

/// Whether an op only groups elements differently.
bool isReshape(TorchOp op);

/// Where the positions of a part are behind an op that groups elements
/// differently: it may join positions with the dims before them, and split them
/// off again. None if it cuts them apart.
std::optional<AxisKind> followView(TorchOp op, const Rule &rule, AxisKind held);

/// Follows kinds through kernels, by the rules of their ops: each kernel once
/// for the kinds of its operands, whatever the axis.
class KernelKinds {
public:
  /// With `ofPositions` ranks have parts of the sequence from inputs on. Then
  /// dims before it may be joined with it, and what is the same for all
  /// positions may stand beside a part of it.
  explicit KernelKinds(bool ofPositions = false) : ofPositions(ofPositions) {}

  /// What ranks hold of the results of an op, or of a kernel.
  llvm::SmallVector<AxisKind> infer(TorchOp op,
                                    llvm::ArrayRef<AxisKind> operands);
  llvm::ArrayRef<AxisKind> infer(KernelOp kernel,
                                 llvm::ArrayRef<AxisKind> operands);

  /// The kinds of the results of a launch: along other axes those of mixed
  /// operands. Null without rank axes.
  llvm::SmallVector<LayoutAttr> getLayouts(KernelOp kernel, MeshOp mesh,
                                           mlir::ValueRange operands);

private:
  using Key = std::tuple<mlir::Operation *, std::vector<AxisKind>>;

  AxisKind getUnknown(TorchOp op, llvm::ArrayRef<AxisKind> operands);
  llvm::SmallVector<AxisKind> getRows(TorchOp op, const Rule *rule,
                                      llvm::ArrayRef<AxisKind> operands);
  std::optional<llvm::StringRef> findFactor(TorchOp op, const Rule &rule,
                                            llvm::ArrayRef<AxisKind> operands);

  bool ofPositions;
  std::map<Key, llvm::SmallVector<AxisKind>> known;
  std::deque<Unknown> unknown;
};

} // namespace piper

#endif // PIPER_PASSES_SUPPORT_KERNELKINDS_H
