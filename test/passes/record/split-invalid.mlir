// A split that disagrees with the captured step.
// RUN: piper-opt %s -split-input-file -verify-diagnostics --piper-split

!x = tensor<4x8xf32>
piper.mesh @mesh [dp = 2 manual]
piper.strategy @strategy mesh = @mesh {
  // expected-error @+1 {{expected an input of ["x"], got 'y'}}
  piper.do.split microbatches = 2 dims = {x = 0, y = 0}
}
piper.step @train phase = outlined mesh = @mesh inputs ["x"] dims [0] (%x: !x) {}

// -----

!x = tensor<4x8xf32>
piper.mesh @mesh [dp = 2 manual]
piper.strategy @strategy mesh = @mesh {
  // expected-error @+1 {{expected dim 0 for input "x", as the step was captured, got 1}}
  piper.do.split microbatches = 2 dims = {x = 1}
}
piper.step @train phase = outlined mesh = @mesh inputs ["x"] dims [0] (%x: !x) {}

// -----

// An input that the directive leaves out is replicated.
!x = tensor<4x8xf32>
piper.mesh @mesh [dp = 2 manual]
piper.strategy @strategy mesh = @mesh {
  // expected-error @+1 {{expected dim 0 for input "x", as the step was captured, got -1}}
  piper.do.split microbatches = 2 dims = {}
}
piper.step @train phase = outlined mesh = @mesh inputs ["x"] dims [0] (%x: !x) {}

// -----

// The captured shape is that of one microbatch of one rank.
!x = tensor<4x8xf32>
piper.mesh @mesh [dp = 2 manual]
piper.strategy @strategy mesh = @mesh {
  // expected-error @+1 {{expected 16 examples in 4 microbatches on 2 data-parallel ranks, but the step was captured with 4 examples of input "x" per microbatch and rank}}
  piper.do.split microbatches = 4 dims = {x = 0}
  piper.do.replicate <all> axes = ["dp"] zero = 0 bucket = 1 reduce = "last"
}
piper.step @train phase = outlined mesh = @mesh inputs ["x"] dims [0] batch = 16 (%x: !x) {}

// -----

// Two directives of one kind must agree.
!x = tensor<4x8xf32>
piper.mesh @mesh [dp = 2 manual]
piper.strategy @strategy mesh = @mesh {
  // expected-note @+1 {{the other directive is here}}
  piper.do.split microbatches = 2 dims = {x = 0}
  // expected-error @+1 {{sets microbatches to 4 : i64, which another directive sets to 2 : i64}}
  piper.do.split microbatches = 4 dims = {x = 0}
}
piper.step @train phase = outlined mesh = @mesh inputs ["x"] dims [0] (%x: !x) {}
