// What is summed over microbatches must be made in each of them.
// RUN: piper-opt %s -split-input-file -verify-diagnostics --piper-unroll-microbatches

!x = tensor<4xf32>
piper.mesh @mesh [pp = 1 unrolled]
piper.step @train phase = bucketed mesh = @mesh inputs ["x"] dims [0] axes [] microbatches = 2 homes [[0]] (%x: !x) {
  // expected-error @+1 {{expected the sum of what a run makes in every microbatch, got another value}}
  output "y" %x : !x
}
