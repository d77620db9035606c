//===- Interfaces.td - What ops of one role share ---------------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef PIPER_INTERFACES_TD
#define PIPER_INTERFACES_TD

include "mlir/IR/OpBase.td"

def Piper_CollectiveOp : OpInterface<"CollectiveOpInterface"> {
  let cppNamespace = "::piper";
  let description = [{
    A collective over named axes. In a cluster its operands, one per coordinate
    in `at`, all take part in the same call; in a program it has one operand,
    names its communicator and yields an event after its result.
  }];
  let extraSharedClassDeclaration = [{
    /// The event of the end of the call, in a program; else null.
    ::mlir::Value getEvent() {
      ::mlir::Value last = $_op->getResults().back();
      return ::llvm::isa<::piper::EventType>(last.getType()) ? last : ::mlir::Value();
    }
    /// The results that are tensors.
    ::mlir::ResultRange getTensors() {
      return $_op->getResults().take_front($_op->getNumResults() - (getEvent() ? 1 : 0));
    }
  }];
  let methods = [
    InterfaceMethod<"the tensors that take part", "::mlir::OperandRange",
                    "getInputs">,
    InterfaceMethod<"the axes over which ranks communicate", "::mlir::ArrayAttr",
                    "getOver">,
    InterfaceMethod<"the coordinate of each operand", 
                    "::std::optional<::llvm::ArrayRef<int64_t>>", "getAt">,
  ];
}

#endif // PIPER_INTERFACES_TD
