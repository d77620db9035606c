// RUN: piper-opt %s | FileCheck %s
// RUN: piper-opt %s -mlir-print-debuginfo=false | FileCheck %s --check-prefix=BARE
// RUN: piper-opt %s --pass-pipeline='builtin.module(piper-verify,cse,canonicalize,symbol-dce,strip-debuginfo,print-op-stats)' 2>&1 | FileCheck %s --check-prefix=PASSES

// Locations are printed unless turned off.
// CHECK: piper.stream @compute loc(#[[$LOC:.+]])
// CHECK: #[[$LOC]] = loc("{{.*}}piper-opt.mlir":[[@LINE+5]]:
// BARE: piper.stream @compute{{$}}

// MLIR's passes that are of use on Piper's IR are there.
// PASSES: piper.stream , 1
piper.stream @compute
