//===- StrategyOps.cpp - Rules of directives and schedules
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "dialect/Cells.h"
#include "dialect/Layouts.h"

#include "llvm/ADT/StringExtras.h"

#include <cmath>

using namespace mlir;
using namespace piper;

LogicalResult StrategyOp::verifyRegions() {
  for (Operation &op : getBody().front())
    if (!op.getName().getStringRef().starts_with("piper.do."))
      return op.emitOpError("expected only directives in a strategy");
  return success();
}

LogicalResult StrategyOp::verifySymbolUses(SymbolTableCollection &symbols) {
  if (!symbols.lookupNearestSymbolFrom<MeshOp>(*this, getMeshAttr()))
    return emitOpError("expected a mesh, got ") << getMeshAttr();
  return success();
}

LogicalResult DoSplitOp::verify() {
  if (getMicrobatches() < 1)
    return emitOpError("expected at least 1 microbatch, got ")
           << getMicrobatches();
  return success();
}

LogicalResult DoPlaceOp::verify() {
  int64_t stages = getStages();
  if (stages < 1)
    return emitOpError("expected at least 1 stage, got ") << stages;
  if (getSizes() && int64_t(getSizes()->size()) != stages)
    return emitOpError("expected a size for each of ")
           << stages << " stages, got " << getSizes()->size();
  if (getCoordinates() && int64_t(getCoordinates()->size()) != stages)
    return emitOpError("expected a coordinate for each of ")
           << stages << " stages, got " << getCoordinates()->size();
  if (getCoordinates() && getHomes())
    return emitOpError("expected coordinates or homes, got both");
  for (Attribute row :
       getHomes() ? getHomes()->getValue() : ArrayRef<Attribute>())
    if (int64_t homes = cast<DenseI64ArrayAttr>(row).size(); homes != stages)
      return emitOpError("expected a home for each of ")
             << stages << " stages, got " << homes;
  return success();
}

/// What shares out states goes with a ZeRO stage that does.
static LogicalResult verifySharding(DoReplicateOp op) {
  if (op.getShard() && op.getZero() == 0)
    return op.emitOpError("expected shard beside a ZeRO stage from 1 on, got "
                          "zero = 0");
  if (op.getShard() && op.getShard()->empty())
    return op.emitOpError("expected at least one axis to shard on");
  for (Attribute axis :
       op.getShard() ? op.getShard()->getValue() : ArrayRef<Attribute>())
    if (!llvm::is_contained(op.getAxes(), axis))
      return op.emitOpError("expected to shard on one of axes ")
             << op.getAxes() << ", got " << axis;
  StringRef gather = op.getGather().value_or("each");
  bool gathers = op.getZero() == 3 || (op.getZero() > 0 && gather == "step");
  if ((op.getGather() || op.getPrefetch() || op.getLimit()) && !gathers)
    return op.emitOpError(
               "expected gather, prefetch and limit beside zero = 3, "
               "or 1 or 2 with gather = \"step\", got zero = ")
           << op.getZero();
  if (gather != "each" && gather != "group" && gather != "step")
    return op.emitOpError("expected gather to be \"each\", \"group\" or "
                          "\"step\", got ")
           << op.getGatherAttr();
  return success();
}

LogicalResult DoReplicateOp::verify() {
  if (getZero() > 3)
    return emitOpError("expected a ZeRO stage of 0 to 3, got ") << getZero();
  if (getReduce() != "last" && getReduce() != "each")
    return emitOpError("expected reduce to be \"last\" or \"each\", got ")
           << getReduceAttr();
  if (getBucket() < 1)
    return emitOpError("expected a bucket of at least 1 byte, got ")
           << getBucket();
  return verifySharding(*this);
}

LogicalResult DoShardOp::verify() {
  if (getCapacity() && getCapacity()->convertToDouble() <= 0)
    return emitOpError("expected a positive capacity, got ")
           << getCapacityAttr();
  return success();
}

LogicalResult DoRematOp::verify() {
  StringRef policy = getPolicy();
  if (policy != "min_cut" && policy != "full" && policy != "save")
    return emitOpError("expected policy to be \"min_cut\", \"full\" or "
                       "\"save\", got ")
           << getPolicyAttr();
  if (getSelect().getKey() == "state")
    return emitOpError("expected to select chunks, got ") << getSelect();
  if (getOps() && policy == "save")
    return emitOpError("expected no ops beside policy \"save\", which "
                       "computes nothing again");
  return success();
}

LogicalResult DoStreamOp::verify() {
  if (!getPriority() && !getSms())
    return emitOpError("expected a priority, sms or both, got neither");
  return success();
}

ArrayRef<StringRef> DoUserPassOp::getPoints() {
  static constexpr StringRef points[] = {"step", "chunks", "facts", "cluster"};
  return points;
}

/// Whether Python knows an option's value by its type alone.
static bool isOption(Attribute value) {
  if (auto integer = dyn_cast<IntegerAttr>(value))
    return integer.getType().isInteger(1) || integer.getType().isInteger(64);
  if (auto number = dyn_cast<FloatAttr>(value))
    return number.getType().isF64();
  return isa<StringAttr>(value);
}

LogicalResult DoUserPassOp::verify() {
  auto [file, name] = getFunction().split(':');
  if (file.empty() || name.empty() || name.contains(':'))
    return emitOpError("expected a function such as "
                       "\"package.module:function\", got ")
           << getFunctionAttr();
  if (!llvm::is_contained(getPoints(), getAt()))
    return emitOpError("expected a point of ")
           << llvm::join(getPoints(), ", ") << ", got " << getAtAttr();
  if (getOptions())
    for (NamedAttribute option : *getOptions())
      if (!isOption(option.getValue()))
        return emitOpError("expected option '")
               << option.getName().getValue()
               << "' to be a string, an i64, an f64 or a boolean, got "
               << option.getValue();
  return success();
}

/// One positive number, or four that say how it changes.
static LogicalResult verifyLossScale(DoUpdateOp op, ArrayRef<double> scale) {
  auto isPositive = [](double number) {
    return number > 0 && std::isfinite(number);
  };
  if ((scale.size() != 1 && scale.size() != 4) ||
      !llvm::all_of(scale, isPositive))
    return op.emitOpError("expected one or four positive numbers as loss "
                          "scale, got ")
           << op.getLossScaleAttr();
  if (scale.size() == 1)
    return success();
  if (scale[1] <= 1 || scale[2] >= 1 || scale[3] < 1 ||
      scale[3] != std::floor(scale[3]))
    return op.emitOpError("expected growth above 1, backoff below 1 and a "
                          "whole number of steps, got ")
           << op.getLossScaleAttr();
  if (!op.getSkipNonfinite())
    return op.emitOpError("expected skip_nonfinite with a loss scale that "
                          "changes, got none");
  return success();
}

LogicalResult DoUpdateOp::verify() {
  if (getMaster() && !isa<FloatType>(*getMaster()))
    return emitOpError("expected a floating-point dtype as master, got ")
           << *getMaster();
  if (getClip() && getClip()->convertToDouble() <= 0)
    return emitOpError("expected a positive bound of the norm, got ")
           << getClipAttr();
  if (!getLossScale())
    return success();
  return verifyLossScale(
      *this, llvm::map_to_vector(
                 getLossScale()->getAsRange<FloatAttr>(),
                 [](FloatAttr number) { return number.getValueAsDouble(); }));
}

LogicalResult ScheduleOp::verify() {
  llvm::DenseMap<Cell, std::pair<int64_t, int64_t>> seen;
  for (auto [row, text] : llvm::enumerate(getRows().getAsRange<StringAttr>())) {
    std::string reason;
    std::optional<SmallVector<Cell>> cells = parseCells(text, reason);
    if (!cells)
      return emitOpError("expected cells such as 0F0 in row ")
             << row << ", got " << reason;
    for (auto [step, cell] : llvm::enumerate(*cells)) {
      if (cell.stage >= int64_t(getStages()) ||
          cell.microbatch >= int64_t(getMicrobatches()))
        return emitOpError("expected stages below ")
               << getStages() << " and microbatches below " << getMicrobatches()
               << ", got " << cell.str() << " in row " << row;
      auto [at, fresh] = seen.try_emplace(cell, row, step);
      if (!fresh)
        return emitOpError("expected each cell once, got ")
               << cell.str() << " in row " << at->second.first << " and in row "
               << row;
    }
  }
  return success();
}
