#ifndef PIPER_DIALECT_OPS
#define PIPER_DIALECT_OPS

include "dialect/Attributes.td"
include "dialect/Interfaces.td"
include "dialect/Types.td"
include "dialect/SymbolOps.td"
include "dialect/StrategyOps.td"
include "dialect/StepOps.td"
include "dialect/ClusterOps.td"
include "dialect/ProgramOps.td"

include "mlir/IR/OpBase.td"

class Piper_Op<string mnemonic, list<Trait> traits = []> : Op<Piper_Dialect, mnemonic, traits>;

def Piper_PlaceholderOp : Piper_Op<"placeholder"> {
  let summary = "Prove that every generator runs.";
  let arguments = (ins Piper_AxisAttr:$axis, Piper_AxisRoleAttr:$role, I64Attr:$count);
  let results = (outs Piper_EventType:$event);
  let assemblyFormat = "$axis $role $count attr-dict `:` type($event)";
}

#endif // PIPER_DIALECT_OPS
