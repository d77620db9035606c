//===- RowKinds.cpp - What is known of rows of experts, and of their counts
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "passes/verify/RowKinds.h"

#include "llvm/ADT/StringSwitch.h"
#include "llvm/Support/raw_ostream.h"

using namespace mlir;

namespace piper {

StringRef describe(RowKind kind) {
  switch (kind.what) {
  case RowKind::Unknown:
    return "others";
  case RowKind::Order:
    return "an order of rows";
  case RowKind::Counts:
    return "counts of rows that are sent";
  case RowKind::Received:
    return "counts of rows that are received";
  case RowKind::Sizes:
    return "sizes";
  case RowKind::Sorted:
    return "rows as they are sorted before they are sent";
  case RowKind::Came:
    return "rows as they came";
  case RowKind::Grouped:
    return "rows grouped by expert";
  }
  llvm_unreachable("all kinds are above");
}

std::string explain(RowKind wanted, RowKind got) {
  std::string text;
  llvm::raw_string_ostream os(text);
  os << describe(wanted) << ", got " << describe(got);
  if (wanted.what == got.what)
    os << " of other counts";
  return text;
}

bool RowOp::fits(TorchOp op) const {
  unsigned last = std::max(order.value_or(0), gradient.value_or(0));
  for (unsigned operand : rows) // counts are behind these
    last = std::max(last, order ? operand : operand + 1);
  return op.getInputs().size() > last && op->getNumResults() > 0;
}

std::optional<RowOp> getRowOp(TorchOp op) {
  using Kind = RowKind;
  const RowOp sorts = {Kind::Unknown, Kind::Sorted, {}, 1};
  const RowOp unjoins = {Kind::Unknown, Kind::Sorted, {}, 1, 0};
  const RowOp joins = {Kind::Sorted, Kind::Unknown, {0}, 1};
  const RowOp unsorts = {Kind::Sorted, Kind::Unknown, {0}, 1, 0};
  const RowOp weighs = {Kind::Sorted, Kind::Unknown, {1}, 2, 0, 1};
  const RowOp groups = {Kind::Came, Kind::Grouped, {0}, std::nullopt};
  const RowOp ungroups = {Kind::Grouped, Kind::Came, {0}, std::nullopt};
  const RowOp multiplies = {Kind::Grouped, Kind::Grouped, {0}, std::nullopt};
  const RowOp goesBack = {Kind::Grouped, Kind::Grouped, {0}, std::nullopt, 0};
  const RowOp sums = {Kind::Grouped, Kind::Unknown, {0, 1}, std::nullopt, 0, 1};
  return llvm::StringSwitch<std::optional<RowOp>>(op.getOpName())
      .Case("piper.moe_permute.default", sorts)
      .Case("piper.moe_unpermute_rows.default", unjoins)
      .Case("piper.moe_unpermute.default", joins)
      .Case("piper.moe_permute_backward.default", unsorts)
      .Case("piper.moe_unpermute_weights.default", weighs)
      .Case("piper.moe_group.default", groups)
      .Case("piper.moe_ungroup.default", ungroups)
      .Case("piper.moe_linear.default", multiplies)
      .Case("piper.moe_linear_input.default", goesBack)
      .Case("piper.moe_linear_weight.default", sums)
      .Default(std::nullopt);
}

bool isProductOfExperts(TorchOp op) {
  return op.getOpName() == "piper.moe_linear.default" ||
         op.getOpName() == "piper.moe_linear_input.default";
}

bool isBackwardOp(TorchOp op) {
  // Whose schemas begin with what the other op has taken.
  static constexpr StringLiteral others[] = {"linear",
                                             "mkldnn_linear",
                                             "matrix_exp",
                                             "_gather_sparse",
                                             "_sparse_mm_reduce_impl",
                                             "_batch_norm_impl_index",
                                             "cudnn_batch_norm",
                                             "miopen_batch_norm",
                                             "cudnn_grid_sampler",
                                             "_cudnn_rnn",
                                             "miopen_rnn",
                                             "mkldnn_rnn_layer",
                                             "mps_convolution",
                                             "mps_convolution_transpose"};
  StringRef name = op.getOpName();
  if (!name.consume_front("aten."))
    return false;
  name = name.split('.').first;
  return name.consume_back("_backward") && !llvm::is_contained(others, name);
}

} // namespace piper
