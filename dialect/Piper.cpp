//===- Piper.cpp - Registration, and how types are named in print
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "dialect/Piper.h"

#include "dialect/Syntax.h"
#include "mlir/IR/Builders.h"
#include "mlir/IR/DialectImplementation.h"
#include "llvm/ADT/TypeSwitch.h"

using namespace mlir;
using namespace piper;

#include "dialect/Dialect.cpp.inc"
#include "dialect/Enums.cpp.inc"
#include "dialect/Interfaces.cpp.inc"

#define GET_TYPEDEF_CLASSES
#include "dialect/Types.cpp.inc"

#define GET_OP_CLASSES
#include "dialect/Ops.cpp.inc"

static char kindLetter(Kind kind) {
  switch (kind) {
  case Kind::Replicated:
    return 'R';
  case Kind::Partial:
    return 'P';
  case Kind::Shard:
    return 'S';
  case Kind::Varying:
    return 'V';
  }
  llvm_unreachable("unknown kind");
}

/// Prints `_dpV_tpS1` for a layout, so that a type says where it lies.
static void nameLayout(LayoutAttr layout, raw_ostream &os) {
  for (AxisKindAttr axis : layout.getAxes()) {
    os << '_' << axis.getAxis().getValue() << kindLetter(axis.getKind());
    if (axis.getKind() == Kind::Shard)
      os << axis.getDim();
  }
}

namespace {

/// Names every tensor type, as in `!f32_4x8x16_dpV`: MLIR prints a type with
/// each operand, and whole tensor types would bury the program.
class TypeNames : public OpAsmDialectInterface {
public:
  using OpAsmDialectInterface::OpAsmDialectInterface;

  AliasResult getAlias(Type type, raw_ostream &os) const override {
    auto tensor = dyn_cast<RankedTensorType>(type);
    if (!tensor || !tensor.getElementType().isIntOrFloat())
      return AliasResult::NoAlias;
    os << tensor.getElementType() << '_';
    if (tensor.getRank() == 0)
      os << "scalar";
    llvm::interleave(
        tensor.getShape(), os,
        [&](int64_t size) {
          if (ShapedType::isDynamic(size))
            os << 'q';
          else
            os << size;
        },
        "x");
    if (auto layout = dyn_cast_or_null<LayoutAttr>(tensor.getEncoding()))
      nameLayout(layout, os);
    return AliasResult::FinalAlias;
  }
};

} // namespace

void PiperDialect::initialize() {
  registerAttributes();
  addTypes<
#define GET_TYPEDEF_LIST
#include "dialect/Types.cpp.inc"
      >();
  addOperations<
#define GET_OP_LIST
#include "dialect/Ops.cpp.inc"
      >();
  addInterfaces<TypeNames>();
}
