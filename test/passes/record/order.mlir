// The schedule becomes a fact of steps.
// RUN: piper-opt %s -split-input-file --piper-order | FileCheck %s

// CHECK: piper.step @train
// CHECK-SAME: microbatches = 2 order = @order
!x = tensor<4xf32>
piper.mesh @mesh [pp = 2 unrolled]
piper.strategy @strategy mesh = @mesh {
  piper.do.order @order
}
piper.schedule @order axis = "pp" stages = 2 microbatches = 2 ["0F0 0F1", "1F0 1F1"]
piper.chunk @a.0$F pass = F stage = 0 (%x: !x) -> !x { return %x : !x }
piper.chunk @a.1$F pass = F stage = 1 (%x: !x) -> !x { return %x : !x }
piper.step @train phase = outlined mesh = @mesh inputs ["x"] dims [0] microbatches = 2 (%x: !x) {}

// -----

// One coordinate needs no schedule.
// CHECK: piper.step @train
// CHECK-NOT: order
// CHECK-SAME: (%x
!x = tensor<4xf32>
piper.mesh @mesh [dp = 2 manual]
piper.step @train phase = outlined mesh = @mesh inputs ["x"] dims [0] microbatches = 2 (%x: !x) {}
