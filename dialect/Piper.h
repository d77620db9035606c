//===- Piper.h - The Piper dialect: attributes, types and ops
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef PIPER_DIALECT_PIPER_H
#define PIPER_DIALECT_PIPER_H

#include "mlir/Bytecode/BytecodeOpInterface.h"
#include "mlir/IR/Attributes.h"
#include "mlir/IR/BuiltinAttributes.h"
#include "mlir/IR/BuiltinOps.h"
#include "mlir/IR/BuiltinTypes.h"
#include "mlir/IR/Dialect.h"
#include "mlir/IR/OpDefinition.h"
#include "mlir/IR/OpImplementation.h"
#include "mlir/IR/SymbolTable.h"
#include "mlir/IR/TensorEncoding.h"
#include "mlir/Interfaces/ControlFlowInterfaces.h"
#include "mlir/Interfaces/InferTypeOpInterface.h"
#include "mlir/Interfaces/SideEffectInterfaces.h"

#include "dialect/Dialect.h.inc"
#include "dialect/Enums.h.inc"

#define GET_ATTRDEF_CLASSES
#include "dialect/Attributes.h.inc"

#define GET_TYPEDEF_CLASSES
#include "dialect/Types.h.inc"

#include "dialect/Interfaces.h.inc"

namespace piper {

/// What reads and updates of states touch.
struct StateResource : mlir::SideEffects::Resource::Base<StateResource> {
  llvm::StringRef getName() final { return "piper.state"; }
};

/// What instructions touch, so that none is merged, dropped or hoisted.
struct OrderResource : mlir::SideEffects::Resource::Base<OrderResource> {
  llvm::StringRef getName() final { return "piper.order"; }
};

} // namespace piper

#define GET_OP_CLASSES
#include "dialect/Ops.h.inc"

#endif // PIPER_DIALECT_PIPER_H
