// What has no effect in programs, or no place there.
// RUN: piper-opt %s -split-input-file -verify-diagnostics --piper-lower-programs

// Priorities are of communication: a stream needs a communicator that is for it.

!x = tensor<4xf32>
piper.mesh @mesh [pp = 2 unrolled]
piper.stream @compute priority = 1
piper.stream @pp
piper.strategy @strategy mesh = @mesh {
  piper.do.stream @pp sms = 4
  // expected-error @+1 {{expected a stream that communication runs on, one of @pp, got @compute}}
  piper.do.stream @compute priority = 1
}
piper.chunk @a.0$F pass = F stage = 0 (%x: !x) -> !x { return %x : !x }
piper.cluster @train$cluster of @train phase = ordered mesh = @mesh microbatches = 1 {
  %x = input "x" mb 0 at 0 : !x
  %y = transfer %x from 0 to 1 mb 0 on @pp : !x
  %z = run @a.0$F(%y) mb 0 at 1 : (!x) -> !x
}

// -----

// Without another coordinate or rank nothing communicates.

!x = tensor<4xf32>
piper.mesh @mesh [pp = 1 unrolled]
piper.stream @pp priority = 1
piper.strategy @strategy mesh = @mesh {
  // expected-error @+1 {{expected a stream that communication runs on, of which there is none, got @pp}}
  piper.do.stream @pp priority = 1
}
piper.chunk @a.0$F pass = F stage = 0 (%x: !x) -> !x { return %x : !x }
piper.cluster @train$cluster of @train phase = ordered mesh = @mesh microbatches = 1 {
  %x = input "x" mb 0 at 0 : !x
  %z = run @a.0$F(%x) mb 0 at 0 : (!x) -> !x
}

// -----

// Of collectives, permutations are no instructions yet.

!p = tensor<4xf32, #piper.layout<dp = varying>>
piper.mesh @mesh [pp = 1 unrolled, dp = 2 manual]
piper.stream @dp
piper.chunk @a.0$F pass = F stage = 0 (%x: !p) -> !p { return %x : !p }
piper.cluster @train$cluster of @train phase = ordered mesh = @mesh microbatches = 1 {
  %x = input "x" mb 0 at 0 : !p
  // expected-error @+1 {{cannot be lowered yet: expected an instruction of one coordinate, a transfer, an all_reduce, an all_gather, a reduce_scatter or an all_to_all}}
  %y = permute %x at [0] shift 1 over ["dp"] on @dp : !p -> !p
}
