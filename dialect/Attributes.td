#ifndef PIPER_DIALECT_ATTRIBUTES
#define PIPER_DIALECT_ATTRIBUTES

include "dialect/Enums.td"
include "mlir/IR/AttrTypeBase.td"

def Piper_AxisRoleAttr : EnumAttr<Piper_Dialect, Piper_AxisRole, "axis_role">;

class Piper_Attr<string name, list<Trait> traits = []> : AttrDef<Piper_Dialect, name, traits>;

def Piper_AxisAttr : Piper_Attr<"Axis"> {
  let summary = "Describe one axis of a mesh.";
  let mnemonic = "axis";
  let parameters = (ins StringRefParameter<>:$name, "int64_t":$size);
  let assemblyFormat = "`<` $name `=` $size `>`";
}

#endif // PIPER_DIALECT_ATTRIBUTES
