#ifndef PIPER_DIALECT_ENUMS
#define PIPER_DIALECT_ENUMS

include "dialect/Dialect.td"
include "mlir/IR/EnumAttr.td"

def Piper_AxisRole : I32EnumAttr<"AxisRole", "what a mesh axis is used for", [
  I32EnumAttrCase<"Unrolled", 0, "unrolled">,
  I32EnumAttrCase<"Manual", 1, "manual">,
  I32EnumAttrCase<"Auto", 2, "auto">,
]> {
  let cppNamespace = "::piper";
  let genSpecializedAttr = 0;
}

#endif // PIPER_DIALECT_ENUMS
