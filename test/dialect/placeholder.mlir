// RUN: piper-opt %s | piper-opt | FileCheck %s
// RUN: piper-opt %s -mlir-print-debuginfo=false | FileCheck %s --check-prefix=BARE
// RUN: piper-opt %s --pass-pipeline='builtin.module(piper-verify,cse,canonicalize,symbol-dce,strip-debuginfo,print-op-stats)' 2>&1 | FileCheck %s --check-prefix=PASSES

// The op round-trips, with its location unless told otherwise.
// CHECK: piper.placeholder <"pp" = 2> auto 3 : !piper.event loc(#[[$LOC:.+]])
// CHECK: #[[$LOC]] = loc("{{.*}}placeholder.mlir":[[@LINE+3]]:
// BARE: piper.placeholder <"pp" = 2> auto 3 : !piper.event{{$}}
// PASSES: piper.placeholder , 1
piper.placeholder <"pp" = 2> auto 3 : !piper.event
