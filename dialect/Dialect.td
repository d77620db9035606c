#ifndef PIPER_DIALECT_DIALECT
#define PIPER_DIALECT_DIALECT

include "mlir/IR/DialectBase.td"

def Piper_Dialect : Dialect {
  let name = "piper";
  let cppNamespace = "::piper";
  let summary = "Distributed training programs.";
  let useDefaultAttributePrinterParser = 1;
  let useDefaultTypePrinterParser = 1;
}

#endif // PIPER_DIALECT_DIALECT
