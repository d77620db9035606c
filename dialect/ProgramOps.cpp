//===- ProgramOps.cpp - Rules of the instructions of one coordinate
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "dialect/Symbols.h"

using namespace mlir;
using namespace piper;

/// A message goes to another coordinate than the program's own.
static LogicalResult verifyPeer(Operation *op, int64_t peer) {
  auto program = cast<ProgramOp>(op->getParentOp());
  if (peer == int64_t(program.getAt()))
    return op->emitOpError("expected a peer other than the program's "
                           "coordinate, got ")
           << peer;
  return success();
}

LogicalResult SendOp::verify() { return verifyPeer(*this, getPeer()); }

LogicalResult SendOp::verifySymbolUses(SymbolTableCollection &symbols) {
  return verifyStream(*this, getStreamAttr(), symbols);
}

LogicalResult RecvOp::verify() { return verifyPeer(*this, getPeer()); }

LogicalResult RecvOp::verifySymbolUses(SymbolTableCollection &symbols) {
  return verifyStream(*this, getStreamAttr(), symbols);
}
