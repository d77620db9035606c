// A module shrinks to what a test script still finds interesting.
// RUN: piper-reduce %s -reduction-tree='traversal-mode=0 test=%S/Inputs/has-stream.sh' | FileCheck %s

// CHECK: piper.stream @pp
// CHECK-NOT: piper.
piper.mesh @mesh [pp = 2 unrolled]
piper.stream @compute
piper.stream @pp
piper.state @w parameter : tensor<4xf32>
