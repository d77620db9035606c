//===- Syntax.h - Custom pieces of assembly formats
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef PIPER_DIALECT_SYNTAX_H
#define PIPER_DIALECT_SYNTAX_H

#include "mlir/IR/BuiltinAttributes.h"
#include "mlir/IR/OpImplementation.h"

namespace piper {

using UnresolvedOperand = mlir::OpAsmParser::UnresolvedOperand;
using UnresolvedOperands = llvm::SmallVector<UnresolvedOperand, 4>;
using Types = llvm::SmallVector<mlir::Type, 1>;

/// `[pp = 2 unrolled, dp = 2 manual]`
mlir::ParseResult parseAxes(mlir::OpAsmParser &parser, mlir::ArrayAttr &axes);
void printAxes(mlir::OpAsmPrinter &printer, mlir::Operation *,
               mlir::ArrayAttr axes);

/// `[[0, 1], [1, 0]]`, an array of arrays of integers.
mlir::ParseResult parseRows(mlir::OpAsmParser &parser, mlir::ArrayAttr &rows);
void printRows(mlir::OpAsmPrinter &printer, mlir::Operation *,
               mlir::ArrayAttr rows);

/// `(%ids: !t, %labels: !t) { ... }`, the arguments being the block's.
mlir::ParseResult parseArgumentsAndBody(mlir::OpAsmParser &parser,
                                        mlir::Region &body);
void printArgumentsAndBody(mlir::OpAsmPrinter &printer, mlir::Operation *,
                           mlir::Region &body);

/// `(%x: !t) -> (!t, !t) { ... }`
mlir::ParseResult parseSignatureAndBody(mlir::OpAsmParser &parser,
                                        mlir::TypeAttr &type,
                                        mlir::Region &body);
void printSignatureAndBody(mlir::OpAsmPrinter &printer, mlir::Operation *,
                           mlir::TypeAttr type, mlir::Region &body);

/// `(%x, [32, %n], none, dtype = f32)`: the argument template of a torch op.
mlir::ParseResult parseTemplate(mlir::OpAsmParser &parser,
                                UnresolvedOperands &inputs,
                                mlir::ArrayAttr &args,
                                mlir::DictionaryAttr &kwargs);
void printTemplate(mlir::OpAsmPrinter &printer, mlir::Operation *,
                   mlir::OperandRange inputs, mlir::ArrayAttr args,
                   mlir::DictionaryAttr kwargs);

/// One type for all operands, which are known to be at least one.
mlir::ParseResult parseUniformTypes(mlir::OpAsmParser &parser,
                                    llvm::ArrayRef<UnresolvedOperand> inputs,
                                    Types &types);
void printUniformTypes(mlir::OpAsmPrinter &printer, mlir::Operation *,
                       mlir::OperandRange inputs, mlir::TypeRange types);

/// The type of a result and of the optional operand that it continues.
mlir::ParseResult parseOntoType(mlir::OpAsmParser &parser,
                                const std::optional<UnresolvedOperand> &onto,
                                mlir::Type &ontoType, mlir::Type &result);
void printOntoType(mlir::OpAsmPrinter &printer, mlir::Operation *,
                   mlir::Value onto, mlir::Type ontoType, mlir::Type result);

} // namespace piper

#endif // PIPER_DIALECT_SYNTAX_H
