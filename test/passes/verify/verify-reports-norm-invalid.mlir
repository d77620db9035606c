// Clusters that clip or skip by something else than the norm of every gradient.
// RUN: piper-opt %s -split-input-file -verify-diagnostics --piper-verify

// What else is reported is the norm.

!x = tensor<4xf32>
!s = tensor<f32>
!n = tensor<i64>
piper.mesh @mesh [pp = 1 unrolled]
piper.chunk @p$P0 pass = P (%n: !n) -> !n { return %n : !n }
piper.chunk @a.0$F pass = F stage = 0 (%x: !x, %y: !x, %s: !s) -> (!x, !s) { return %x, %s : !x, !s }
piper.step @train phase = bucketed mesh = @mesh inputs ["x", "y", "s", "n"] dims [0, 0, 0, 0] microbatches = 2 homes [[0]] (%x: !x, %y: !x, %s: !s, %n: !n) {
  %c = run @p$P0(%n) : (!n) -> !n
  %t = tangent "loss" count %c : !n coeff 0.5 -> !s
  %0:2 = run @a.0$F(%x, %y, %s) : (!x, !x, !s) -> (!x, !s)
  output "loss" %0#1 scale %t : !s, !s
}
piper.cluster @train$cluster of @train phase = ordered mesh = @mesh microbatches = 2 {
  %n0 = input "n" mb 0 at 0 : !n
  %n1 = input "n" mb 1 at 0 : !n
  %c0 = run @p$P0(%n0) mb 0 at 0 : (!n) -> !n
  %c1 = run @p$P0(%n1) mb 1 at 0 : (!n) -> !n
  %c = sum %c0, %c1 at 0 : !n -> !n
  %t = tangent "loss" count %c : !n coeff 0.5 at 0 -> !s
  %x0 = input "x" mb 0 at 0 : !x
  %y0 = input "y" mb 0 at 0 : !x
  %s0 = input "s" mb 0 at 0 : !s
  %a0:2 = run @a.0$F(%x0, %y0, %s0) mb 0 at 0 : (!x, !x, !s) -> (!x, !s)
  %x1 = input "x" mb 1 at 0 : !x
  %y1 = input "y" mb 1 at 0 : !x
  %s1 = input "s" mb 1 at 0 : !s
  %a1:2 = run @a.0$F(%x1, %y1, %s1) mb 1 at 0 : (!x, !x, !s) -> (!x, !s)
  %l = sum %a0#1, %a1#1 at 0 : !s -> !s
  // expected-error @+1 {{expected the sum of squares of gradients, got result 0 of 'piper.input' of "s" for microbatch 0}}
  output "other" %s0 at 0 : !s
}

// -----

// The norm is of every gradient.

!x = tensor<4xf32>
!s = tensor<f32>
piper.mesh @mesh [pp = 1 unrolled]
piper.state @w parameter : !x holders [0] optimization <"train:sgd", clip = 1.0>
piper.state @v parameter : !x holders [0] optimization <"train:sgd", clip = 1.0>
piper.bucket @w$b [@w] value : !x grad : !x
piper.bucket @v$b [@v] value : !x grad : !x
piper.chunk @a.0$F pass = F stage = 0 (%x: !x) -> !x { return %x : !x }
piper.chunk @a.0$B pass = B of @a.0$F stage = 0 (%x: !x) -> (!x, !x) {
  %g = pack @w$b %x : !x -> !x
  %h = pack @v$b %x : !x -> !x
  return %g, %h : !x, !x
}
piper.step @train phase = bucketed mesh = @mesh inputs ["x"] dims [0] microbatches = 2 homes [[0]] (%x: !x) {
  %0 = run @a.0$F(%x) : (!x) -> !x
  %1:2 = run @a.0$B(%0) : (!x) -> (!x, !x)
}
piper.cluster @train$cluster of @train phase = ordered mesh = @mesh microbatches = 2 {
  %x0 = input "x" mb 0 at 0 : !x
  %a0 = run @a.0$F(%x0) mb 0 at 0 : (!x) -> !x
  %b0:2 = run @a.0$B(%a0) mb 0 at 0 : (!x) -> (!x, !x)
  %w0 = accumulate @w$b %b0#0 at 0 : !x -> !x
  %v0 = accumulate @v$b %b0#1 at 0 : !x -> !x
  %x1 = input "x" mb 1 at 0 : !x
  %a1 = run @a.0$F(%x1) mb 1 at 0 : (!x) -> !x
  %b1:2 = run @a.0$B(%a1) mb 1 at 0 : (!x) -> (!x, !x)
  %w1 = accumulate @w$b %b1#0 onto %w0 at 0 : !x -> !x
  %v1 = accumulate @v$b %b1#1 onto %v0 at 0 : !x -> !x
  %s = sumsq %w1 at 0 : (!x) -> !s
  // expected-error @+1 {{expected each gradient once in the norm, got none of @v$b}}
  output "grad_norm" %s at 0 : !s
  %p = update @w$b %w1 norm %s : !s at 0 optimizer "train:sgd" clip 1.0 : !x -> !x
  %q = update @v$b %v1 norm %s : !s at 0 optimizer "train:sgd" clip 1.0 : !x -> !x
}

// -----

// Each counts once, however many coordinates hold it.

!x = tensor<4xf32>
!s = tensor<f32>
piper.mesh @mesh [pp = 1 unrolled]
piper.state @w parameter : !x holders [0] optimization <"train:sgd", clip = 1.0>
piper.state @v parameter : !x holders [0] optimization <"train:sgd", clip = 1.0>
piper.bucket @w$b [@w] value : !x grad : !x
piper.bucket @v$b [@v] value : !x grad : !x
piper.chunk @a.0$F pass = F stage = 0 (%x: !x) -> !x { return %x : !x }
piper.chunk @a.0$B pass = B of @a.0$F stage = 0 (%x: !x) -> (!x, !x) {
  %g = pack @w$b %x : !x -> !x
  %h = pack @v$b %x : !x -> !x
  return %g, %h : !x, !x
}
piper.step @train phase = bucketed mesh = @mesh inputs ["x"] dims [0] microbatches = 2 homes [[0]] (%x: !x) {
  %0 = run @a.0$F(%x) : (!x) -> !x
  %1:2 = run @a.0$B(%0) : (!x) -> (!x, !x)
}
piper.cluster @train$cluster of @train phase = ordered mesh = @mesh microbatches = 2 {
  %x0 = input "x" mb 0 at 0 : !x
  %a0 = run @a.0$F(%x0) mb 0 at 0 : (!x) -> !x
  %b0:2 = run @a.0$B(%a0) mb 0 at 0 : (!x) -> (!x, !x)
  %w0 = accumulate @w$b %b0#0 at 0 : !x -> !x
  %v0 = accumulate @v$b %b0#1 at 0 : !x -> !x
  %x1 = input "x" mb 1 at 0 : !x
  %a1 = run @a.0$F(%x1) mb 1 at 0 : (!x) -> !x
  %b1:2 = run @a.0$B(%a1) mb 1 at 0 : (!x) -> (!x, !x)
  %w1 = accumulate @w$b %b1#0 onto %w0 at 0 : !x -> !x
  %v1 = accumulate @v$b %b1#1 onto %v0 at 0 : !x -> !x
  %s = sumsq %w1, %v1, %w1 at 0 : (!x, !x, !x) -> !s
  // expected-error @+1 {{expected each gradient once in the norm, got that of @w$b again}}
  output "grad_norm" %s at 0 : !s
  %p = update @w$b %w1 norm %s : !s at 0 optimizer "train:sgd" clip 1.0 : !x -> !x
  %q = update @v$b %v1 norm %s : !s at 0 optimizer "train:sgd" clip 1.0 : !x -> !x
}

// -----

// It counts when all of it is there.

!x = tensor<4xf32>
!s = tensor<f32>
piper.mesh @mesh [pp = 1 unrolled]
piper.state @w parameter : !x holders [0] optimization <"train:sgd", clip = 1.0>
piper.state @v parameter : !x holders [0] optimization <"train:sgd", clip = 1.0>
piper.bucket @w$b [@w] value : !x grad : !x
piper.bucket @v$b [@v] value : !x grad : !x
piper.chunk @a.0$F pass = F stage = 0 (%x: !x) -> !x { return %x : !x }
piper.chunk @a.0$B pass = B of @a.0$F stage = 0 (%x: !x) -> (!x, !x) {
  %g = pack @w$b %x : !x -> !x
  %h = pack @v$b %x : !x -> !x
  return %g, %h : !x, !x
}
piper.step @train phase = bucketed mesh = @mesh inputs ["x"] dims [0] microbatches = 2 homes [[0]] (%x: !x) {
  %0 = run @a.0$F(%x) : (!x) -> !x
  %1:2 = run @a.0$B(%0) : (!x) -> (!x, !x)
}
piper.cluster @train$cluster of @train phase = ordered mesh = @mesh microbatches = 2 {
  %x0 = input "x" mb 0 at 0 : !x
  %a0 = run @a.0$F(%x0) mb 0 at 0 : (!x) -> !x
  %b0:2 = run @a.0$B(%a0) mb 0 at 0 : (!x) -> (!x, !x)
  %w0 = accumulate @w$b %b0#0 at 0 : !x -> !x
  %v0 = accumulate @v$b %b0#1 at 0 : !x -> !x
  %x1 = input "x" mb 1 at 0 : !x
  %a1 = run @a.0$F(%x1) mb 1 at 0 : (!x) -> !x
  %b1:2 = run @a.0$B(%a1) mb 1 at 0 : (!x) -> (!x, !x)
  %w1 = accumulate @w$b %b1#0 onto %w0 at 0 : !x -> !x
  %v1 = accumulate @v$b %b1#1 onto %v0 at 0 : !x -> !x
  // expected-error @+1 {{expected gradients as updates take them, got result 0 of 'piper.accumulate' of @v$b}}
  %s = sumsq %w1, %v0 at 0 : (!x, !x) -> !s
  output "grad_norm" %s at 0 : !s
  %p = update @w$b %w1 norm %s : !s at 0 optimizer "train:sgd" clip 1.0 : !x -> !x
  %q = update @v$b %v1 norm %s : !s at 0 optimizer "train:sgd" clip 1.0 : !x -> !x
}

// -----

// The norm is reported.

!x = tensor<4xf32>
!s = tensor<f32>
piper.mesh @mesh [pp = 1 unrolled]
piper.state @w parameter : !x holders [0] optimization <"train:sgd", clip = 1.0>
piper.state @v parameter : !x holders [0] optimization <"train:sgd", clip = 1.0>
piper.bucket @w$b [@w] value : !x grad : !x
piper.bucket @v$b [@v] value : !x grad : !x
piper.chunk @a.0$F pass = F stage = 0 (%x: !x) -> !x { return %x : !x }
piper.chunk @a.0$B pass = B of @a.0$F stage = 0 (%x: !x) -> (!x, !x) {
  %g = pack @w$b %x : !x -> !x
  %h = pack @v$b %x : !x -> !x
  return %g, %h : !x, !x
}
piper.step @train phase = bucketed mesh = @mesh inputs ["x"] dims [0] microbatches = 2 homes [[0]] (%x: !x) {
  %0 = run @a.0$F(%x) : (!x) -> !x
  %1:2 = run @a.0$B(%0) : (!x) -> (!x, !x)
}
piper.cluster @train$cluster of @train phase = ordered mesh = @mesh microbatches = 2 {
  %x0 = input "x" mb 0 at 0 : !x
  %a0 = run @a.0$F(%x0) mb 0 at 0 : (!x) -> !x
  %b0:2 = run @a.0$B(%a0) mb 0 at 0 : (!x) -> (!x, !x)
  %w0 = accumulate @w$b %b0#0 at 0 : !x -> !x
  %v0 = accumulate @v$b %b0#1 at 0 : !x -> !x
  %x1 = input "x" mb 1 at 0 : !x
  %a1 = run @a.0$F(%x1) mb 1 at 0 : (!x) -> !x
  %b1:2 = run @a.0$B(%a1) mb 1 at 0 : (!x) -> (!x, !x)
  %w1 = accumulate @w$b %b1#0 onto %w0 at 0 : !x -> !x
  %v1 = accumulate @v$b %b1#1 onto %v0 at 0 : !x -> !x
  %s = sumsq %w1, %v1 at 0 : (!x, !x) -> !s
  // expected-error @+1 {{expected its norm to be an output, too}}
  %p = update @w$b %w1 norm %s : !s at 0 optimizer "train:sgd" clip 1.0 : !x -> !x
  %q = update @v$b %v1 norm %s : !s at 0 optimizer "train:sgd" clip 1.0 : !x -> !x
}

// -----

// A step is skipped by what all ranks agree on.

!x = tensor<4xf32>
!s = tensor<f32>
piper.mesh @mesh [pp = 1 unrolled]
piper.state @w parameter : !x holders [0] optimization <"train:sgd", skip_nonfinite>
piper.state @v parameter : !x holders [0] optimization <"train:sgd", skip_nonfinite>
piper.bucket @w$b [@w] value : !x grad : !x
piper.bucket @v$b [@v] value : !x grad : !x
piper.chunk @a.0$F pass = F stage = 0 (%x: !x) -> !x { return %x : !x }
piper.chunk @a.0$B pass = B of @a.0$F stage = 0 (%x: !x) -> (!x, !x) {
  %g = pack @w$b %x : !x -> !x
  %h = pack @v$b %x : !x -> !x
  return %g, %h : !x, !x
}
piper.step @train phase = bucketed mesh = @mesh inputs ["x"] dims [0] microbatches = 2 homes [[0]] (%x: !x) {
  %0 = run @a.0$F(%x) : (!x) -> !x
  %1:2 = run @a.0$B(%0) : (!x) -> (!x, !x)
}
piper.cluster @train$cluster of @train phase = ordered mesh = @mesh microbatches = 2 {
  %x0 = input "x" mb 0 at 0 : !x
  %a0 = run @a.0$F(%x0) mb 0 at 0 : (!x) -> !x
  %b0:2 = run @a.0$B(%a0) mb 0 at 0 : (!x) -> (!x, !x)
  %w0 = accumulate @w$b %b0#0 at 0 : !x -> !x
  %v0 = accumulate @v$b %b0#1 at 0 : !x -> !x
  %x1 = input "x" mb 1 at 0 : !x
  %a1 = run @a.0$F(%x1) mb 1 at 0 : (!x) -> !x
  %b1:2 = run @a.0$B(%a1) mb 1 at 0 : (!x) -> (!x, !x)
  %w1 = accumulate @w$b %b1#0 onto %w0 at 0 : !x -> !x
  %v1 = accumulate @v$b %b1#1 onto %v0 at 0 : !x -> !x
  %s = sumsq %w1, %v1 at 0 : (!x, !x) -> !s
  output "grad_norm" %s at 0 : !s
  // expected-error @+1 {{expected to skip by whether the norm of all gradients is finite, got result 0 of 'piper.sumsq'}}
  %p = update @w$b %w1 skip %s : !s at 0 optimizer "train:sgd" : !x -> !x
  %q = update @v$b %v1 skip %s : !s at 0 optimizer "train:sgd" : !x -> !x
}

// -----

// That is the norm of all gradients.

!x = tensor<4xf32>
!s = tensor<f32>
piper.mesh @mesh [pp = 1 unrolled]
piper.state @w parameter : !x holders [0] optimization <"train:sgd", skip_nonfinite>
piper.state @v parameter : !x holders [0] optimization <"train:sgd", skip_nonfinite>
piper.bucket @w$b [@w] value : !x grad : !x
piper.bucket @v$b [@v] value : !x grad : !x
piper.chunk @a.0$F pass = F stage = 0 (%x: !x) -> !x { return %x : !x }
piper.chunk @a.0$B pass = B of @a.0$F stage = 0 (%x: !x) -> (!x, !x) {
  %g = pack @w$b %x : !x -> !x
  %h = pack @v$b %x : !x -> !x
  return %g, %h : !x, !x
}
piper.step @train phase = bucketed mesh = @mesh inputs ["x"] dims [0] microbatches = 2 homes [[0]] (%x: !x) {
  %0 = run @a.0$F(%x) : (!x) -> !x
  %1:2 = run @a.0$B(%0) : (!x) -> (!x, !x)
}
piper.cluster @train$cluster of @train phase = ordered mesh = @mesh microbatches = 2 {
  %x0 = input "x" mb 0 at 0 : !x
  %a0 = run @a.0$F(%x0) mb 0 at 0 : (!x) -> !x
  %b0:2 = run @a.0$B(%a0) mb 0 at 0 : (!x) -> (!x, !x)
  %w0 = accumulate @w$b %b0#0 at 0 : !x -> !x
  %v0 = accumulate @v$b %b0#1 at 0 : !x -> !x
  %x1 = input "x" mb 1 at 0 : !x
  %a1 = run @a.0$F(%x1) mb 1 at 0 : (!x) -> !x
  %b1:2 = run @a.0$B(%a1) mb 1 at 0 : (!x) -> (!x, !x)
  %w1 = accumulate @w$b %b1#0 onto %w0 at 0 : !x -> !x
  %v1 = accumulate @v$b %b1#1 onto %v0 at 0 : !x -> !x
  %s = sumsq %w1, %v1 at 0 : (!x, !x) -> !s
  output "grad_norm" %s at 0 : !s
  %o = sumsq %w1 at 0 : (!x) -> !s
  // expected-error @+1 {{expected each gradient once in the norm, got none of @v$b}}
  %k = nonfinite %o at 0 : !s -> tensor<i1>
  %p = update @w$b %w1 skip %k : tensor<i1> at 0 optimizer "train:sgd" : !x -> !x
  %q = update @v$b %v1 skip %k : tensor<i1> at 0 optimizer "train:sgd" : !x -> !x
}

// -----

// It is reported, so that it is known which steps were skipped.

!x = tensor<4xf32>
!s = tensor<f32>
piper.mesh @mesh [pp = 1 unrolled]
piper.state @w parameter : !x holders [0] optimization <"train:sgd", skip_nonfinite>
piper.state @v parameter : !x holders [0] optimization <"train:sgd", skip_nonfinite>
piper.bucket @w$b [@w] value : !x grad : !x
piper.bucket @v$b [@v] value : !x grad : !x
piper.chunk @a.0$F pass = F stage = 0 (%x: !x) -> !x { return %x : !x }
piper.chunk @a.0$B pass = B of @a.0$F stage = 0 (%x: !x) -> (!x, !x) {
  %g = pack @w$b %x : !x -> !x
  %h = pack @v$b %x : !x -> !x
  return %g, %h : !x, !x
}
piper.step @train phase = bucketed mesh = @mesh inputs ["x"] dims [0] microbatches = 2 homes [[0]] (%x: !x) {
  %0 = run @a.0$F(%x) : (!x) -> !x
  %1:2 = run @a.0$B(%0) : (!x) -> (!x, !x)
}
piper.cluster @train$cluster of @train phase = ordered mesh = @mesh microbatches = 2 {
  %x0 = input "x" mb 0 at 0 : !x
  %a0 = run @a.0$F(%x0) mb 0 at 0 : (!x) -> !x
  %b0:2 = run @a.0$B(%a0) mb 0 at 0 : (!x) -> (!x, !x)
  %w0 = accumulate @w$b %b0#0 at 0 : !x -> !x
  %v0 = accumulate @v$b %b0#1 at 0 : !x -> !x
  %x1 = input "x" mb 1 at 0 : !x
  %a1 = run @a.0$F(%x1) mb 1 at 0 : (!x) -> !x
  %b1:2 = run @a.0$B(%a1) mb 1 at 0 : (!x) -> (!x, !x)
  %w1 = accumulate @w$b %b1#0 onto %w0 at 0 : !x -> !x
  %v1 = accumulate @v$b %b1#1 onto %v0 at 0 : !x -> !x
  %s = sumsq %w1, %v1 at 0 : (!x, !x) -> !s
  %k = nonfinite %s at 0 : !s -> tensor<i1>
  // expected-error @+1 {{expected its norm to be an output, too}}
  %p = update @w$b %w1 skip %k : tensor<i1> at 0 optimizer "train:sgd" : !x -> !x
  %q = update @v$b %v1 skip %k : tensor<i1> at 0 optimizer "train:sgd" : !x -> !x
}
