// RUN: piper-opt %s -split-input-file -verify-diagnostics --piper-insert-reductions

// A copy of a trained state that gets no gradient would drift away.

!x = tensor<4xf32>

piper.mesh @mesh [pp = 2 unrolled]
// expected-error @+1 {{is used at coordinate 1 but gets no gradient there}}
piper.state @w parameter : !x holders [0, 1]
piper.bucket @w$b [@w] value : !x grad : !x
piper.chunk @a.0$F pass = F stage = 0 (%x: !x) -> !x { return %x : !x }
piper.chunk @a.0$B pass = B of @a.0$F stage = 0 (%x: !x) -> !x { return %x : !x }
piper.cluster @train$cluster of @train phase = connected mesh = @mesh microbatches = 1 {
  %x = input "x" mb 0 at 0 : !x
  %g = run @a.0$B(%x) mb 0 at 0 : (!x) -> !x
  %G = sum bucket @w$b %g at 0 : !x -> !x
}
