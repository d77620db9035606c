// The optimizer becomes a fact of states.
// RUN: piper-opt %s --piper-update | FileCheck %s

// CHECK: piper.state @a.weight parameter : !f32_4 optimization <"train:adamw", clip = 1.000000e+00>
// CHECK: piper.state @a.bias parameter : !f32_4 optimization <"train:sgd", master = f64, skip_nonfinite>
// CHECK: piper.state @frozen parameter frozen : !f32_4 loc
// CHECK: piper.state @table buffer : !f32_4 loc
!x = tensor<4xf32>
piper.mesh @mesh [dp = 2 manual]
piper.state @a.weight parameter : !x
piper.state @a.bias parameter : !x
piper.state @frozen parameter frozen : !x
piper.state @table buffer : !x
piper.strategy @strategy mesh = @mesh {
  piper.do.update <state = "*.weight"> optimizer = "train:adamw" clip = 1.0
  piper.do.update <not state = "*.weight"> optimizer = "train:sgd" master = f64 skip_nonfinite
}
