// What MLIR itself gives up on is an error with exit code 1, not a signal, on which
// `not` fails. A quoted name without an op's name gets its parser there.
// RUN: not piper-opt %s 2>&1 | FileCheck %s
// RUN: rm -f %t.mlir
// RUN: not piper-opt %s --piper-verify -o %t.mlir 2>&1 | FileCheck %s
// RUN: test ! -e %t.mlir
// RUN: not piper-reduce %s -reduction-tree='traversal-mode=0 test=%S/Inputs/has-stream.sh' 2>&1 | FileCheck %s
// RUN: echo '"piper"() : () -> ()' | not piper-opt 2>&1 | FileCheck %s
// RUN: echo '"builtin"() : () -> ()' | not piper-opt 2>&1 | FileCheck %s
// RUN: echo '"builtin."() : () -> ()' | not piper-opt 2>&1 | FileCheck %s

// CHECK-NOT: Stack dump
// CHECK: error: {{(piper|builtin)\.?}} created with unregistered dialect
// CHECK-NOT: Stack dump
"piper."() : () -> ()
