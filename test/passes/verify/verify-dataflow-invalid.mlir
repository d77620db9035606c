// Clusters whose runs take something else than their step says.
// RUN: piper-opt %s -split-input-file -verify-diagnostics --piper-verify

// A run takes what belongs to its microbatch.

!x = tensor<4xf32>
!s = tensor<f32>
!n = tensor<i64>
piper.mesh @mesh [pp = 1 unrolled]
piper.chunk @p$P0 pass = P (%n: !n) -> !n { return %n : !n }
piper.chunk @a.0$F pass = F stage = 0 (%x: !x, %y: !x, %s: !s) -> (!x, !s) { return %x, %s : !x, !s }
piper.step @train phase = bucketed mesh = @mesh inputs ["x", "y", "s", "n"] dims [0, 0, 0, 0] microbatches = 2 homes [[0]] (%x: !x, %y: !x, %s: !s, %n: !n) {
  %c = run @p$P0(%n) : (!n) -> !n
  %t = tangent "loss" count %c : !n coeff 0.5 -> !s
  // expected-note @+1 {{@train has it here}}
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
  // expected-error @+1 {{expected operand 0 to be input "x" for microbatch 1, as in @train, got result 0 of 'piper.input' of "x" for microbatch 0}}
  %a1:2 = run @a.0$F(%x0, %y1, %s1) mb 1 at 0 : (!x, !x, !s) -> (!x, !s)
  %l = sum %a0#1, %a1#1 at 0 : !s -> !s
  output "loss" %l scale %t at 0 : !s, !s
}

// -----

// Each operand is the step's, although both have one type.

!x = tensor<4xf32>
!s = tensor<f32>
!n = tensor<i64>
piper.mesh @mesh [pp = 1 unrolled]
piper.chunk @p$P0 pass = P (%n: !n) -> !n { return %n : !n }
piper.chunk @a.0$F pass = F stage = 0 (%x: !x, %y: !x, %s: !s) -> (!x, !s) { return %x, %s : !x, !s }
piper.step @train phase = bucketed mesh = @mesh inputs ["x", "y", "s", "n"] dims [0, 0, 0, 0] microbatches = 2 homes [[0]] (%x: !x, %y: !x, %s: !s, %n: !n) {
  %c = run @p$P0(%n) : (!n) -> !n
  %t = tangent "loss" count %c : !n coeff 0.5 -> !s
  // expected-note @+1 {{@train has it here}}
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
  // expected-error @+1 {{expected operand 0 to be input "x" for microbatch 1, as in @train, got result 0 of 'piper.input' of "y" for microbatch 1}}
  %a1:2 = run @a.0$F(%y1, %x1, %s1) mb 1 at 0 : (!x, !x, !s) -> (!x, !s)
  %l = sum %a0#1, %a1#1 at 0 : !s -> !s
  output "loss" %l scale %t at 0 : !s, !s
}

// -----

// Preambles are of a microbatch, too.

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
  // expected-error @+1 {{expected a microbatch below 2, got <<NULL ATTRIBUTE>>}}
  %c1 = run @p$P0(%n1) at 0 : (!n) -> !n
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
  output "loss" %l scale %t at 0 : !s, !s
}

// -----

// A half takes what the whole takes.

!x = tensor<4xf32>
piper.mesh @mesh [pp = 1 unrolled]
piper.chunk @a.0$F pass = F stage = 0 (%x: !x) -> !x { return %x : !x }
piper.chunk @a.0$B pass = B of @a.0$F input <@a.0$I [0] -> [0]> weight <@a.0$W [1] -> [1]> stage = 0 (%d: !x, %x: !x) -> (!x, !x) { return %d, %x : !x, !x }
piper.chunk @a.0$I pass = I of @a.0$F stage = 0 (%d: !x) -> (!x, !x, !x) { return %d, %d, %d : !x, !x, !x }
piper.chunk @a.0$W pass = W of @a.0$F stage = 0 (%x: !x, %p: !x, %q: !x) -> !x { return %x : !x }
piper.step @train phase = bucketed mesh = @mesh inputs ["x"] dims [0] microbatches = 1 homes [[0]] (%x: !x) {
  %0 = run @a.0$F(%x) : (!x) -> !x
  // expected-note @+1 {{@train has it here}}
  %1:2 = run @a.0$B(%0, %x) : (!x, !x) -> (!x, !x)
}
piper.cluster @train$cluster of @train phase = ordered mesh = @mesh microbatches = 1 {
  %x = input "x" mb 0 at 0 : !x
  %a = run @a.0$F(%x) mb 0 at 0 : (!x) -> !x
  %i:3 = run @a.0$I(%a) mb 0 at 0 : (!x) -> (!x, !x, !x)
  // expected-error @+1 {{expected operand 0 to be input "x" for microbatch 0, as in @train, got result 0 of 'piper.run' of @a.0$F for microbatch 0}}
  %w = run @a.0$W(%a, %i#1, %i#2) mb 0 at 0 : (!x, !x, !x) -> !x
}

// -----

// The second takes what the first passes on, in that order.

!x = tensor<4xf32>
piper.mesh @mesh [pp = 1 unrolled]
piper.chunk @a.0$F pass = F stage = 0 (%x: !x) -> !x { return %x : !x }
piper.chunk @a.0$B pass = B of @a.0$F input <@a.0$I [0] -> [0]> weight <@a.0$W [1] -> [1]> stage = 0 (%d: !x, %x: !x) -> (!x, !x) { return %d, %x : !x, !x }
piper.chunk @a.0$I pass = I of @a.0$F stage = 0 (%d: !x) -> (!x, !x, !x) { return %d, %d, %d : !x, !x, !x }
piper.chunk @a.0$W pass = W of @a.0$F stage = 0 (%x: !x, %p: !x, %q: !x) -> !x { return %x : !x }
piper.step @train phase = bucketed mesh = @mesh inputs ["x"] dims [0] microbatches = 1 homes [[0]] (%x: !x) {
  %0 = run @a.0$F(%x) : (!x) -> !x
  %1:2 = run @a.0$B(%0, %x) : (!x, !x) -> (!x, !x)
}
piper.cluster @train$cluster of @train phase = ordered mesh = @mesh microbatches = 1 {
  %x = input "x" mb 0 at 0 : !x
  %a = run @a.0$F(%x) mb 0 at 0 : (!x) -> !x
  %i:3 = run @a.0$I(%a) mb 0 at 0 : (!x) -> (!x, !x, !x)
  // expected-error @+1 {{expected operand 1 to be what the first half passes on, got result 2 of 'piper.run' of @a.0$I for microbatch 0}}
  %w = run @a.0$W(%x, %i#2, %i#1) mb 0 at 0 : (!x, !x, !x) -> !x
}

// -----

// A run reads its own bucket.

!x = tensor<4xf32>
piper.mesh @mesh [pp = 1 unrolled]
piper.state @w parameter : !x holders [0]
piper.state @v parameter : !x holders [0]
piper.bucket @w$b [@w] value : !x grad : !x
piper.bucket @v$b [@v] value : !x grad : !x
piper.chunk @a.0$F pass = F stage = 0 (%x: !x) -> !x { return %x : !x }
piper.step @train phase = bucketed mesh = @mesh inputs ["x"] dims [0] microbatches = 1 homes [[0]] (%x: !x) {
  %w = read @w$b slot value : !x
  // expected-note @+1 {{@train has it here}}
  %0 = run @a.0$F(%w) : (!x) -> !x
}
piper.cluster @train$cluster of @train phase = ordered mesh = @mesh microbatches = 1 {
  %v = read @v$b slot value at 0 : !x
  // expected-error @+1 {{expected operand 0 to be result 0 of 'piper.read' of @w$b for microbatch 0, as in @train, got result 0 of 'piper.read' of @v$b}}
  %a = run @a.0$F(%v) mb 0 at 0 : (!x) -> !x
}
