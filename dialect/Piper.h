// The Piper dialect: attributes, types and ops, all generated from TableGen.

#ifndef PIPER_DIALECT_PIPER_H
#define PIPER_DIALECT_PIPER_H

#include "mlir/Bytecode/BytecodeOpInterface.h"
#include "mlir/IR/Attributes.h"
#include "mlir/IR/BuiltinAttributes.h"
#include "mlir/IR/BuiltinTypes.h"
#include "mlir/IR/Dialect.h"
#include "mlir/IR/OpDefinition.h"
#include "mlir/IR/OpImplementation.h"
#include "mlir/IR/SymbolTable.h"
#include "mlir/Interfaces/InferTypeOpInterface.h"
#include "mlir/Interfaces/SideEffectInterfaces.h"

#include "dialect/Dialect.h.inc"
#include "dialect/Enums.h.inc"

#define GET_ATTRDEF_CLASSES
#include "dialect/Attributes.h.inc"

#define GET_TYPEDEF_CLASSES
#include "dialect/Types.h.inc"

#include "dialect/Interfaces.h.inc"

#define GET_OP_CLASSES
#include "dialect/Ops.h.inc"

#endif // PIPER_DIALECT_PIPER_H
