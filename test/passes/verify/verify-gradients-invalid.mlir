// Clusters that lose a gradient.
// RUN: piper-opt %s -split-input-file -verify-diagnostics --piper-verify

//===----------------------------------------------------------------------===//
// Clusters: gradients
//===----------------------------------------------------------------------===//

// A contribution goes to the bucket that it was packed for, although both are of
// one type.

!x = tensor<4xf32>
piper.mesh @mesh [pp = 2 unrolled]
piper.state @w parameter : !x holders [0]
piper.state @v parameter : !x holders [0]
piper.bucket @w$b [@w] value : !x grad : !x
piper.bucket @v$b [@v] value : !x grad : !x
piper.chunk @a.0$F pass = F stage = 0 (%x: !x) -> !x { return %x : !x }
piper.chunk @b.0$F pass = F stage = 0 (%x: !x) -> !x { return %x : !x }
piper.chunk @a.0$B pass = B of @a.0$F stage = 0 (%x: !x) -> !x {
  %g = pack @w$b %x : !x -> !x
  return %g : !x
}
piper.chunk @b.0$B pass = B of @b.0$F stage = 0 (%x: !x) -> !x {
  %g = pack @v$b %x : !x -> !x
  return %g : !x
}
piper.step @train phase = bucketed mesh = @mesh inputs ["x"] dims [0] microbatches = 1 homes [[0, 1]] (%x: !x) {
  %0 = run @a.0$F(%x) : (!x) -> !x
  %1 = run @b.0$F(%0) : (!x) -> !x
  %2 = run @b.0$B(%1) : (!x) -> !x
  %3 = run @a.0$B(%1) : (!x) -> !x
}
piper.cluster @train$cluster of @train phase = connected mesh = @mesh microbatches = 1 {
  %i = input "x" mb 0 at 0 : !x
  %0 = run @a.0$F(%i) mb 0 at 0 : (!x) -> !x
  %1 = run @b.0$F(%0) mb 0 at 0 : (!x) -> !x
  // expected-note @+1 {{it is made here}}
  %h = run @b.0$B(%1) mb 0 at 0 : (!x) -> !x
  %g = run @a.0$B(%1) mb 0 at 0 : (!x) -> !x
  // expected-error @+1 {{expected a contribution to @w$b, got one to @v$b}}
  %G = sum bucket @w$b %h at 0 : !x -> !x
}

// -----

// What no chunk packed is no gradient.

!x = tensor<4xf32>
piper.mesh @mesh [pp = 2 unrolled]
piper.state @w parameter : !x holders [0]
piper.state @v parameter : !x holders [0]
piper.bucket @w$b [@w] value : !x grad : !x
piper.bucket @v$b [@v] value : !x grad : !x
piper.chunk @a.0$F pass = F stage = 0 (%x: !x) -> !x { return %x : !x }
piper.chunk @b.0$F pass = F stage = 0 (%x: !x) -> !x { return %x : !x }
piper.chunk @a.0$B pass = B of @a.0$F stage = 0 (%x: !x) -> !x {
  %g = pack @w$b %x : !x -> !x
  return %g : !x
}
piper.chunk @b.0$B pass = B of @b.0$F stage = 0 (%x: !x) -> !x {
  %g = pack @v$b %x : !x -> !x
  return %g : !x
}
piper.step @train phase = bucketed mesh = @mesh inputs ["x"] dims [0] microbatches = 1 homes [[0, 1]] (%x: !x) {
  %0 = run @a.0$F(%x) : (!x) -> !x
  %1 = run @b.0$F(%0) : (!x) -> !x
  %2 = run @b.0$B(%1) : (!x) -> !x
  %3 = run @a.0$B(%1) : (!x) -> !x
}
piper.cluster @train$cluster of @train phase = ordered mesh = @mesh microbatches = 1 {
  %i = input "x" mb 0 at 0 : !x
  %0 = run @a.0$F(%i) mb 0 at 0 : (!x) -> !x
  %1 = run @b.0$F(%0) mb 0 at 0 : (!x) -> !x
  %h = run @b.0$B(%1) mb 0 at 0 : (!x) -> !x
  %g = run @a.0$B(%1) mb 0 at 0 : (!x) -> !x
  // expected-note @+1 {{it is made here}}
  %j = input "x" mb 0 at 0 : !x
  // expected-error @+1 {{expected a contribution to @w$b, got another value}}
  %G = accumulate @w$b %j at 0 : !x -> !x
}

// -----

// A contribution counts once.

!x = tensor<4xf32>
piper.mesh @mesh [pp = 2 unrolled]
piper.state @w parameter : !x holders [0]
piper.state @v parameter : !x holders [0]
piper.bucket @w$b [@w] value : !x grad : !x
piper.bucket @v$b [@v] value : !x grad : !x
piper.chunk @a.0$F pass = F stage = 0 (%x: !x) -> !x { return %x : !x }
piper.chunk @b.0$F pass = F stage = 0 (%x: !x) -> !x { return %x : !x }
piper.chunk @a.0$B pass = B of @a.0$F stage = 0 (%x: !x) -> !x {
  %g = pack @w$b %x : !x -> !x
  return %g : !x
}
piper.chunk @b.0$B pass = B of @b.0$F stage = 0 (%x: !x) -> !x {
  %g = pack @v$b %x : !x -> !x
  return %g : !x
}
piper.step @train phase = bucketed mesh = @mesh inputs ["x"] dims [0] microbatches = 1 homes [[0, 1]] (%x: !x) {
  %0 = run @a.0$F(%x) : (!x) -> !x
  %1 = run @b.0$F(%0) : (!x) -> !x
  %2 = run @b.0$B(%1) : (!x) -> !x
  %3 = run @a.0$B(%1) : (!x) -> !x
}
piper.cluster @train$cluster of @train phase = connected mesh = @mesh microbatches = 1 {
  %i = input "x" mb 0 at 0 : !x
  %0 = run @a.0$F(%i) mb 0 at 0 : (!x) -> !x
  %1 = run @b.0$F(%0) mb 0 at 0 : (!x) -> !x
  %h = run @b.0$B(%1) mb 0 at 0 : (!x) -> !x
  %g = run @a.0$B(%1) mb 0 at 0 : (!x) -> !x
  %H = sum bucket @v$b %h at 0 : !x -> !x
  // expected-error @+2 {{expected each contribution once, got one twice}}
  // expected-note @+1 {{it is added here, too}}
  %G = sum bucket @w$b %g, %g at 0 : !x -> !x
}

// -----

// None is forgotten.

!x = tensor<4xf32>
piper.mesh @mesh [pp = 2 unrolled]
piper.state @w parameter : !x holders [0]
piper.state @v parameter : !x holders [0]
piper.bucket @w$b [@w] value : !x grad : !x
piper.bucket @v$b [@v] value : !x grad : !x
piper.chunk @a.0$F pass = F stage = 0 (%x: !x) -> !x { return %x : !x }
piper.chunk @b.0$F pass = F stage = 0 (%x: !x) -> !x { return %x : !x }
piper.chunk @a.0$B pass = B of @a.0$F stage = 0 (%x: !x) -> !x {
  %g = pack @w$b %x : !x -> !x
  return %g : !x
}
piper.chunk @b.0$B pass = B of @b.0$F stage = 0 (%x: !x) -> !x {
  %g = pack @v$b %x : !x -> !x
  return %g : !x
}
piper.step @train phase = bucketed mesh = @mesh inputs ["x"] dims [0] microbatches = 1 homes [[0, 1]] (%x: !x) {
  %0 = run @a.0$F(%x) : (!x) -> !x
  %1 = run @b.0$F(%0) : (!x) -> !x
  %2 = run @b.0$B(%1) : (!x) -> !x
  %3 = run @a.0$B(%1) : (!x) -> !x
}
// expected-error @+1 {{expected 1 contributions to @v$b at coordinate 0, got 0}}
piper.cluster @train$cluster of @train phase = ordered mesh = @mesh microbatches = 1 {
  %i = input "x" mb 0 at 0 : !x
  %0 = run @a.0$F(%i) mb 0 at 0 : (!x) -> !x
  %1 = run @b.0$F(%0) mb 0 at 0 : (!x) -> !x
  %h = run @b.0$B(%1) mb 0 at 0 : (!x) -> !x
  %g = run @a.0$B(%1) mb 0 at 0 : (!x) -> !x
  %G = accumulate @w$b %g at 0 : !x -> !x
}

// -----

// An accumulation continues the last one; one that starts anew loses the sum.

!x = tensor<4xf32>
piper.mesh @mesh [pp = 2 unrolled]
piper.state @w parameter : !x holders [0]
piper.state @v parameter : !x holders [0]
piper.bucket @w$b [@w] value : !x grad : !x
piper.bucket @v$b [@v] value : !x grad : !x
piper.chunk @a.0$F pass = F stage = 0 (%x: !x) -> !x { return %x : !x }
piper.chunk @a.0$B pass = B of @a.0$F stage = 0 (%x: !x) -> !x {
  %g = pack @w$b %x : !x -> !x
  return %g : !x
}
piper.step @train phase = bucketed mesh = @mesh inputs ["x"] dims [0] microbatches = 2 homes [[0, 1]] (%x: !x) {
  %0 = run @a.0$F(%x) : (!x) -> !x
  %1 = run @a.0$B(%0) : (!x) -> !x
}
piper.cluster @train$cluster of @train phase = ordered mesh = @mesh microbatches = 2 {
  %i = input "x" mb 0 at 0 : !x
  %y0 = run @a.0$F(%i) mb 0 at 0 : (!x) -> !x
  %g0 = run @a.0$B(%y0) mb 0 at 0 : (!x) -> !x
  %j = input "x" mb 1 at 0 : !x
  %y1 = run @a.0$F(%j) mb 1 at 0 : (!x) -> !x
  %g1 = run @a.0$B(%y1) mb 1 at 0 : (!x) -> !x
  // expected-note @+1 {{the last addition is here}}
  %G0 = accumulate @w$b %g0 at 0 : !x -> !x
  // expected-error @+1 {{expected to continue the sum of @w$b at coordinate 0 so far, got another `onto`}}
  %G1 = accumulate @w$b %g1 at 0 : !x -> !x
}

// -----

// A contribution is not what another rank made, although it is of one type.

!x = tensor<4xf32, #piper.layout<ep = varying>>
piper.mesh @mesh [pp = 1 unrolled, ep = 2 manual]
piper.stream @ep
piper.state @w parameter : tensor<8xf32> layout <ep = shard(0)> holders [0]
piper.bucket @w$b [@w] value : !x grad : !x
piper.chunk @a.0$F pass = F stage = 0 (%x: !x) -> !x { return %x : !x }
piper.chunk @a.0$B pass = B of @a.0$F stage = 0 (%x: !x) -> !x {
  %g = pack @w$b %x : !x -> !x
  return %g : !x
}
piper.step @train phase = bucketed mesh = @mesh inputs ["x"] dims [0] microbatches = 1 homes [[0]] (%x: !x) {
  %0 = run @a.0$F(%x) : (!x) -> !x
  %1 = run @a.0$B(%0) : (!x) -> !x
}
piper.cluster @train$cluster of @train phase = connected mesh = @mesh microbatches = 1 {
  %i = input "x" mb 0 at 0 : !x
  %0 = run @a.0$F(%i) mb 0 at 0 : (!x) -> !x
  %g = run @a.0$B(%0) mb 0 at 0 : (!x) -> !x
  // expected-note @+1 {{it is made here}}
  %h = all_to_all %g at [0] dim 0 over ["ep"] as "a.0 dispatch" mb 0 on @ep : !x -> !x
  // expected-error @+1 {{expected a contribution to @w$b, got another value}}
  %G = sum bucket @w$b %h at 0 : !x -> !x
}
