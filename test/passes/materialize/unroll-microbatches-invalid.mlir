// Steps that cannot be unrolled.
// RUN: piper-opt %s -split-input-file -verify-diagnostics --piper-unroll-microbatches

// What is summed over microbatches must be made in each of them.

!x = tensor<4xf32>
piper.mesh @mesh [pp = 1 unrolled]
piper.step @train phase = bucketed mesh = @mesh inputs ["x"] dims [0] axes [] microbatches = 2 homes [[0]] (%x: !x) {
  // expected-error @+1 {{expected the sum of what a run makes in every microbatch, got another value}}
  output "y" %x : !x
}

// -----

!x = tensor<4xf32>
piper.mesh @mesh [pp = 1 unrolled]
// expected-error @+1 {{expected a number of microbatches, which piper-split records}}
piper.step @train phase = bucketed mesh = @mesh inputs ["x"] dims [0] (%x: !x) {
}

// -----

!x = tensor<4xf32>
piper.mesh @mesh [pp = 1 unrolled]
// expected-error @+1 {{is unrolled already}}
piper.step @train phase = bucketed mesh = @mesh inputs ["x"] dims [0] axes [] microbatches = 2 homes [[0]] (%x: !x) {
}
piper.cluster @train$cluster of @train phase = unrolled mesh = @mesh microbatches = 2 {
}

// -----

!x = tensor<4xf32>
piper.mesh @mesh [pp = 1 unrolled]
piper.kernel @f (%x: !x) -> !x {
  %y = torch "aten.sin.default"(%x) facts <pure> : (!x) -> !x
  return %y : !x
}
// expected-error @+1 {{expected a stage that has a home in 'train', got 1}}
piper.chunk @a.0$F pass = F stage = 1 (%x: !x) -> !x {
  %y = launch @f(%x) : (!x) -> !x
  return %y : !x
}
piper.step @train phase = bucketed mesh = @mesh inputs ["x"] dims [0] axes [] microbatches = 2 homes [[0]] (%x: !x) {
  %y = run @a.0$F(%x) : (!x) -> !x
}

// -----

!x = tensor<4xf32>
piper.mesh @mesh [cp = 2 manual]
piper.stream @cp
piper.step @train phase = bucketed mesh = @mesh inputs ["x"] dims [0] axes ["cp"] microbatches = 2 (%x: !x) {
  // expected-error @+1 {{expected what a run makes in every microbatch, got another value}}
  %y = all_reduce %x over ["cp"] as "a.0 reduce" on @cp : !x -> !x
}
