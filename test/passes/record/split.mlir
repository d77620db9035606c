// The number of microbatches becomes a fact of the step.
// RUN: piper-opt %s -split-input-file --piper-split | FileCheck %s

// 16 examples are 2 microbatches of 4 on each of 2 data-parallel ranks. An
// input without a batch dim is the same for all.
// CHECK: piper.step @train
// CHECK-SAME: inputs ["x", "table"] dims [0, -1] batch = 16 microbatches = 2
!x = tensor<4x8xf32>
piper.mesh @mesh [dp = 2 manual]
piper.strategy @strategy mesh = @mesh {
  piper.do.split microbatches = 2 dims = {x = 0}
  piper.do.replicate <all> axes = ["dp"] zero = 0 bucket = 1 reduce = "last"
}
piper.step @train phase = outlined mesh = @mesh inputs ["x", "table"] dims [0, -1] batch = 16 (%x: !x, %t: !x) {}

// -----

// Without a directive there is one microbatch, in every step.
// CHECK: piper.step @train
// CHECK-SAME: microbatches = 1
// CHECK: piper.step @eval
// CHECK-SAME: microbatches = 1
!x = tensor<4x8xf32>
piper.mesh @mesh [dp = 1 manual]
piper.step @train phase = outlined mesh = @mesh inputs ["x"] dims [0] (%x: !x) {}
piper.step @eval phase = outlined mesh = @mesh inputs ["x"] dims [0] (%x: !x) {}

// -----

// The batch dim need not be the first.
// CHECK: piper.step @train
// CHECK-SAME: microbatches = 2
!x = tensor<8x4xf32>
piper.mesh @mesh [dp = 1 manual]
piper.strategy @strategy mesh = @mesh {
  piper.do.split microbatches = 2 dims = {x = 1}
}
piper.step @train phase = outlined mesh = @mesh inputs ["x"] dims [1] batch = 8 (%x: !x) {}
