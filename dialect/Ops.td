//===- Ops.td - All ops, by level -------------------------------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef PIPER_OPS_TD
#define PIPER_OPS_TD

include "dialect/SymbolOps.td"
include "dialect/StrategyOps.td"
include "dialect/StepOps.td"
include "dialect/ClusterOps.td"
include "dialect/ProgramOps.td"

#endif // PIPER_OPS_TD
