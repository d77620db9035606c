#include "dialect/Piper.h"

#include "llvm/ADT/TypeSwitch.h"
#include "mlir/IR/Builders.h"
#include "mlir/IR/DialectImplementation.h"

using namespace mlir;
using namespace piper;

#include "dialect/Dialect.cpp.inc"
#include "dialect/Enums.cpp.inc"
#include "dialect/Interfaces.cpp.inc"

#define GET_ATTRDEF_CLASSES
#include "dialect/Attributes.cpp.inc"

#define GET_TYPEDEF_CLASSES
#include "dialect/Types.cpp.inc"

#define GET_OP_CLASSES
#include "dialect/Ops.cpp.inc"

void PiperDialect::initialize() {
  addAttributes<
#define GET_ATTRDEF_LIST
#include "dialect/Attributes.cpp.inc"
      >();
  addTypes<
#define GET_TYPEDEF_LIST
#include "dialect/Types.cpp.inc"
      >();
  addOperations<
#define GET_OP_LIST
#include "dialect/Ops.cpp.inc"
      >();
}
