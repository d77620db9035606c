// Data axes become facts of steps and states.
// RUN: piper-opt %s -split-input-file --piper-replicate | FileCheck %s

// Only trainable states are replicated with a reduction dtype; several
// directives may each take some of them.
// CHECK: piper.state @a.weight parameter : !f32_4 replication <["dp"], zero = 0, bucket = 100, dtype = f32>
// CHECK: piper.state @a.bias parameter : !f32_4 replication <["dp"], zero = 0, bucket = 200>
// CHECK: piper.state @frozen parameter frozen : !f32_4 loc
// CHECK: piper.state @table buffer : !f32_4 loc
// CHECK: piper.step @train
// CHECK-SAME: axes ["dp"]
!x = tensor<4xf32>
piper.mesh @mesh [dp = 2 manual]
piper.state @a.weight parameter : !x
piper.state @a.bias parameter : !x
piper.state @frozen parameter frozen : !x
piper.state @table buffer : !x
piper.strategy @strategy mesh = @mesh {
  piper.do.replicate <state = "*.weight"> axes = ["dp"] zero = 0 bucket = 100 reduce = "last" dtype = f32
  piper.do.replicate <not state = "*.weight"> axes = ["dp"] zero = 0 bucket = 200 reduce = "last"
}
piper.step @train phase = outlined mesh = @mesh inputs ["x"] dims [0] (%x: !x) {}

// -----

// Stage 3 shares out frozen parameters, too; buffers are not replicated.
// CHECK: piper.state @a.weight parameter : !f32_4 replication <["dp"], zero = 3,
// CHECK: piper.state @frozen parameter frozen : !f32_4 replication <["dp"], zero = 3,
// CHECK: piper.state @table buffer : !f32_4 loc
// CHECK: piper.step @train
// CHECK-SAME: axes ["dp"]
!x = tensor<4xf32>
piper.mesh @mesh [dp = 2 manual]
piper.state @a.weight parameter : !x
piper.state @frozen parameter frozen : !x
piper.state @table buffer : !x
piper.strategy @strategy mesh = @mesh {
  piper.do.replicate <all> axes = ["dp"] zero = 3 bucket = 100 reduce = "each"
}
piper.step @train phase = outlined mesh = @mesh inputs ["x"] dims [0] (%x: !x) {}

// -----

// A step may be replicated on several axes, and an axis of one rank needs no
// directive.
// CHECK: piper.step @train
// CHECK-SAME: axes ["dp", "ep"]
!x = tensor<4xf32>
piper.mesh @mesh [dp = 2 manual, ep = 2 manual, cp = 1 manual]
piper.state @w parameter : !x
piper.strategy @strategy mesh = @mesh {
  piper.do.replicate <all> axes = ["dp", "ep"] zero = 0 bucket = 1 reduce = "last"
}
piper.step @train phase = outlined mesh = @mesh inputs ["x"] dims [0] (%x: !x) {}

// -----

// Without a directive there are no data axes.
// CHECK: piper.step @train
// CHECK-SAME: axes []
!x = tensor<4xf32>
piper.mesh @mesh [pp = 2 unrolled]
piper.step @train phase = outlined mesh = @mesh inputs ["x"] dims [0] (%x: !x) {}
