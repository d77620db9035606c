#ifndef PIPER_DIALECT_TYPES
#define PIPER_DIALECT_TYPES

include "dialect/Dialect.td"
include "mlir/IR/AttrTypeBase.td"

class Piper_Type<string name, string typeMnemonic> : TypeDef<Piper_Dialect, name> {
  let mnemonic = typeMnemonic;
}

def Piper_EventType : Piper_Type<"Event", "event"> {
  let summary = "A point on a stream that others can wait for.";
}

#endif // PIPER_DIALECT_TYPES
