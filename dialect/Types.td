//===- Types.td - Types besides tensors -------------------------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef PIPER_TYPES_TD
#define PIPER_TYPES_TD

include "dialect/Dialect.td"
include "mlir/IR/AttrTypeBase.td"

class Piper_Type<string name, string typeMnemonic>
    : TypeDef<Piper_Dialect, name> {
  let mnemonic = typeMnemonic;
}

def Piper_Event : Piper_Type<"Event", "event">,
    BuildableType<"::piper::EventType::get($_builder.getContext())"> {
  let summary = "the moment at which an instruction has finished";
  let description = [{
    Made by communication and by `record`; an op that lists an event under
    `after` starts on its own stream only once the event has happened.
  }];
}

def Piper_Sizes : Piper_Type<"Sizes", "sizes">,
    BuildableType<"::piper::SizesType::get($_builder.getContext())"> {
  let summary = "row counts that the host knows";
  let description = [{
    Made by `host_wait` from integers on the device; names how many rows an
    uneven `all_to_all` sends to and receives from each rank.
  }];
}

def Piper_Value : AnyTypeOf<[AnyRankedTensor, Piper_Sizes]>;
def Piper_Result : AnyTypeOf<[AnyRankedTensor, Piper_Sizes, Piper_Event]>;

#endif // PIPER_TYPES_TD
