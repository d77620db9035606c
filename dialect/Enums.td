//===- Enums.td - Closed sets of words --------------------------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef PIPER_ENUMS_TD
#define PIPER_ENUMS_TD

include "dialect/Dialect.td"
include "mlir/IR/EnumAttr.td"

class Piper_Enum<string name, string summary, list<I32EnumAttrCase> cases>
    : I32EnumAttr<name, summary, cases> {
  let cppNamespace = "::piper";
  let genSpecializedAttr = 0;
}

// Prints a space before the word: formats of ops put `` in front of it.
class Piper_EnumAttr<EnumAttrInfo enum, string mnemonic>
    : EnumAttr<Piper_Dialect, enum, mnemonic> {
  let assemblyFormat = "$value";
}

def Piper_AxisRole : Piper_Enum<"AxisRole", "how a mesh axis is compiled", [
    I32EnumAttrCase<"Unrolled", 0, "unrolled">,
    I32EnumAttrCase<"Manual", 1, "manual">,
    I32EnumAttrCase<"Auto", 2, "auto">]>;

def Piper_Kind : Piper_Enum<"Kind", "what ranks along an axis hold of a value", [
    I32EnumAttrCase<"Replicated", 0, "replicated">,
    I32EnumAttrCase<"Partial", 1, "partial">,
    I32EnumAttrCase<"Shard", 2, "shard">,
    I32EnumAttrCase<"Varying", 3, "varying">]>;

def Piper_Pass : Piper_Enum<"Pass", "the part of the step a chunk belongs to", [
    I32EnumAttrCase<"F", 0, "F">, I32EnumAttrCase<"B", 1, "B">,
    I32EnumAttrCase<"I", 2, "I">, I32EnumAttrCase<"W", 3, "W">,
    I32EnumAttrCase<"P", 4, "P">]>;
def Piper_PassAttr : Piper_EnumAttr<Piper_Pass, "pass">;

def Piper_StateKind : Piper_Enum<"StateKind", "what a state is to the optimizer", [
    I32EnumAttrCase<"Parameter", 0, "parameter">,
    I32EnumAttrCase<"Buffer", 1, "buffer">,
    I32EnumAttrCase<"Constant", 2, "constant">]>;
def Piper_StateKindAttr : Piper_EnumAttr<Piper_StateKind, "state_kind">;

def Piper_Slot : Piper_Enum<"Slot", "a storage of a bucket", [
    I32EnumAttrCase<"Value", 0, "value">,
    I32EnumAttrCase<"Compute", 1, "compute">,
    I32EnumAttrCase<"Grad", 2, "grad">]>;
def Piper_SlotAttr : Piper_EnumAttr<Piper_Slot, "slot">;

def Piper_Effect : Piper_Enum<"Effect", "what a torch op does besides its results", [
    I32EnumAttrCase<"Pure", 0, "pure">, I32EnumAttrCase<"View", 1, "view">,
    I32EnumAttrCase<"Random", 2, "random">,
    I32EnumAttrCase<"Mutating", 3, "mutating">,
    I32EnumAttrCase<"HostSync", 4, "host_sync">]>;

def Piper_Phase : Piper_Enum<"Phase", "how far a container has come", [
    I32EnumAttrCase<"Captured", 0, "captured">,
    I32EnumAttrCase<"Outlined", 1, "outlined">,
    I32EnumAttrCase<"Bucketed", 2, "bucketed">,
    I32EnumAttrCase<"Unrolled", 3, "unrolled">,
    I32EnumAttrCase<"Connected", 4, "connected">,
    I32EnumAttrCase<"Reduced", 5, "reduced">,
    I32EnumAttrCase<"Ordered", 6, "ordered">,
    I32EnumAttrCase<"Lowered", 7, "lowered">]>;
def Piper_PhaseAttr : Piper_EnumAttr<Piper_Phase, "phase">;

#endif // PIPER_ENUMS_TD
