//===- Dialect.td - The Piper dialect and its base classes ------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef PIPER_DIALECT_TD
#define PIPER_DIALECT_TD

include "mlir/IR/OpBase.td"
include "mlir/IR/SymbolInterfaces.td"
include "mlir/IR/OpAsmInterface.td"
include "mlir/Interfaces/SideEffectInterfaces.td"

def Piper_Dialect : Dialect {
  let name = "piper";
  let summary = "The training step of a whole cluster, as one program";
  let description = [{
    One dialect carries a training step from the captured PyTorch graph down to
    the instructions of every rank. A program passes through four levels, each
    with its own container:

    | level | container | contents |
    |---|---|---|
    | L1 | `piper.step` (captured) | one microbatch of one rank, op by op |
    | L2 | `piper.step` (outlined), `piper.chunk`, `piper.kernel` | runs of chunks, which launch deduplicated kernels |
    | L3 | `piper.cluster` | every microbatch, placed, all communication explicit |
    | L4 | `piper.program` | one coordinate's instructions in host issue order |

    Only `builtin.module` is a symbol table. Symbols made by the compiler
    contain `$`, which no PyTorch name can; states keep their PyTorch names.
  }];
  let cppNamespace = "::piper";
  let useDefaultAttributePrinterParser = 1;
  let useDefaultTypePrinterParser = 1;
  let extraClassDeclaration = "void registerAttributes();";
}

class Piper_Op<string mnemonic, list<Trait> traits = []>
    : Op<Piper_Dialect, mnemonic, traits>;

// Ops inside a container print without the `piper.` prefix.
def Piper_BodyNames
    : DeclareOpInterfaceMethods<OpAsmOpInterface, ["getDefaultDialect"]>;

// Results are named after what makes them, so that a long block can be followed.
def Piper_ResultNames
    : DeclareOpInterfaceMethods<OpAsmOpInterface, ["getAsmResultNames"]>;
def Piper_SymbolUser : DeclareOpInterfaceMethods<SymbolUserOpInterface>;

def Piper_ReadsState : Resource<"::piper::StateResource">;
def Piper_IssueOrder : Resource<"::piper::OrderResource">;

// The op is an instruction: it may not be duplicated, merged or dropped, since
// what it does (messages, device time, a state change, storage that is freed
// later) is not in its results.
def Piper_Ordered : MemoryEffects<[MemWrite<Piper_IssueOrder>]>;

#endif // PIPER_DIALECT_TD
