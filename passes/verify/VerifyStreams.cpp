//===- VerifyStreams.cpp - What communication holds of a device
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

// Each communicator that a program uses is a queue of its own. Its instruction
// holds the SMs of its stream until it is done; one whose other members come
// late spins and holds them no less. As queues run at once, what communication
// holds is bounded by the sum over all queues, and by nothing smaller: a kernel
// of compute that needs more than is left may wait for a message that waits, on
// another device, for that kernel's result.

#include "passes/verify/Verify.h"

#include "dialect/Layouts.h"
#include "llvm/ADT/DenseSet.h"
#include "llvm/Support/MathExtras.h"

using namespace mlir;

namespace piper {

namespace {

/// A queue of a program, and the stream that says what it holds.
struct Queue {
  FlatSymbolRefAttr name;
  StreamOp stream;
};

class StreamVerifier {
public:
  StreamVerifier(ModuleOp module, SymbolTable &symbols, uint64_t limit)
      : mesh(findMesh(module)), symbols(symbols), limit(limit) {}

  LogicalResult check(ProgramOp program) {
    uint64_t total = 0;
    SmallVector<Queue> queues = collect(program);
    for (Queue &queue : queues) {
      if (!queue.stream.getSms())
        return queue.stream.emitOpError("expected @")
               << queue.stream.getSymName()
               << " to state sms, since those of communication are limited and "
               << FlatSymbolRefAttr::get(program.getSymNameAttr())
               << " communicates on " << queue.name;
      total = llvm::SaturatingAdd<uint64_t>(total, *queue.stream.getSms());
    }
    if (total <= limit)
      return success();
    InFlightDiagnostic error =
        emitContainerError(program)
        << "expected communication of "
        << FlatSymbolRefAttr::get(program.getSymNameAttr())
        << " to hold at most " << limit << " SMs at once, got " << total;
    for (Queue &queue : queues)
      error.attachNote(queue.stream.getLoc())
          << queue.name << " holds " << *queue.stream.getSms()
          << ", the sms of @" << queue.stream.getSymName();
    return failure();
  }

private:
  /// The queues that a program uses, in the order of their first instructions.
  SmallVector<Queue> collect(ProgramOp program) {
    llvm::DenseSet<Attribute> seen;
    SmallVector<Queue> queues;
    for (Operation &op : program.getBlock()) {
      FlatSymbolRefAttr name = getCommunicator(&op);
      if (!name || !seen.insert(name).second)
        continue;
      if (StreamOp stream = getStream(name))
        queues.push_back({name, stream});
    }
    return queues;
  }

  /// The stream of a queue; null for a communicator of one rank, which nothing
  /// runs on.
  StreamOp getStream(FlatSymbolRefAttr name) {
    Operation *symbol = symbols.lookup(name.getValue());
    auto comm = dyn_cast<CommOp>(symbol);
    if (!comm)
      return cast<StreamOp>(symbol);
    if (product(mesh, comm.getAxes()) * comm.getCoordinates().size() == 1)
      return {};
    return symbols.lookup<StreamOp>(comm.getStream());
  }

  MeshOp mesh;
  SymbolTable &symbols;
  uint64_t limit;
};

} // namespace

LogicalResult verifyStreams(ModuleOp module, SymbolTable &symbols,
                            uint64_t limit) {
  StreamVerifier verifier(module, symbols, limit);
  for (auto program : module.getOps<ProgramOp>())
    if (failed(verifier.check(program)))
      return failure();
  return success();
}

} // namespace piper
