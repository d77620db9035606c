//===- ProgramOps.td - L4: the instructions of one coordinate ---------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef PIPER_PROGRAM_OPS_TD
#define PIPER_PROGRAM_OPS_TD

include "dialect/ClusterOps.td"

def Piper_ProgramOp : Piper_ContainerOp<"program", [NoTerminator,
    NoRegionArguments]> {
  let summary = "hold one coordinate's instructions in the order the host issues them";
  let description = [{
    The abstract machine: every instruction is asynchronous on its stream; a
    stream is FIFO; communication occupies its stream on all members until all
    have arrived; the host blocks only at `host_wait`. An instruction that uses a
    value made on another stream waits for its event.

    ```mlir
    piper.program @train$pp1 of @train$3 at 1 { ... }
    ```
  }];
  let arguments = (ins SymbolNameAttr:$sym_name, FlatSymbolRefAttr:$of,
                       Piper_Index:$at);
  let assemblyFormat = "$sym_name `of` $of `at` $at $body attr-dict";
  let extraClassDeclaration = [{
    ::mlir::Block &getBlock() { return getBody().front(); }
  }];
}

def Piper_SendOp : Piper_Op<"send", [Piper_Ordered, HasParent<"ProgramOp">,
    Piper_SymbolUser, Piper_ResultNames]> {
  let summary = "send a value to another coordinate";
  let description = [{
    **Constraints**
    - the peer is another coordinate than the program's
    - the stream or communicator exists

    ```mlir
    %e1 = send %x to 1 mb 0 as "layer.0$F#0" on @send$0.1 after %e0 : !x
    ```
  }];
  let arguments = (ins AnyRankedTensor:$value, Piper_Index:$peer, Piper_Index:$mb,
                       OptionalAttr<StrAttr>:$label, FlatSymbolRefAttr:$stream, Variadic<Piper_Event>:$after);
  let results = (outs Piper_Event:$event);
  let assemblyFormat = [{
    $value `to` $peer `mb` $mb (`as` $label^)? `on` $stream (`after` $after^)? attr-dict `:` type($value)
  }];
  let hasVerifier = 1;
}

def Piper_RecvOp : Piper_Op<"recv", [Piper_Ordered, HasParent<"ProgramOp">,
    Piper_SymbolUser, Piper_ResultNames]> {
  let summary = "receive a value from another coordinate";
  let description = [{
    The buffer is taken from the compute stream, so the receive also waits for
    the point of compute where that happened.

    **Constraints**
    - the peer is another coordinate than the program's
    - the stream or communicator exists

    ```mlir
    %x, %e1 = recv from 0 mb 0 as "layer.0$F#0" on @send$0.1 after %e0 : !x
    ```
  }];
  let arguments = (ins Piper_Index:$peer, Piper_Index:$mb, OptionalAttr<StrAttr>:$label,
                       FlatSymbolRefAttr:$stream, Variadic<Piper_Event>:$after);
  let results = (outs AnyRankedTensor:$result, Piper_Event:$event);
  let assemblyFormat = [{
    `from` $peer `mb` $mb (`as` $label^)? `on` $stream (`after` $after^)? attr-dict `:` type($result)
  }];
  let hasVerifier = 1;
}

def Piper_RecordOp : Piper_Op<"record", [Piper_Ordered, HasParent<"ProgramOp">,
    Piper_ResultNames]> {
  let summary = "mark the point that the compute stream has reached";
  let description = [{
    ```mlir
    %e0 = record
    ```
  }];
  let results = (outs Piper_Event:$event);
  let assemblyFormat = "attr-dict";
}

def Piper_FreeOp : Piper_Op<"free", [Piper_Ordered, AttrSizedOperandSegments,
    HasParent<"ProgramOp">]> {
  let summary = "release values after their last use";
  let description = [{
    Runs on the compute stream, after the events of the streams that used the
    values last.

    ```mlir
    free %x, %y after %e1 : !x, !y
    ```
  }];
  let arguments = (ins Variadic<Piper_Value>:$values, Variadic<Piper_Event>:$after);
  let assemblyFormat = "$values (`after` $after^)? attr-dict `:` type($values)";
}

#endif // PIPER_PROGRAM_OPS_TD
