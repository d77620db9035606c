// Clusters that count or report something else than everything, once.
// RUN: piper-opt %s -split-input-file -verify-diagnostics --piper-verify

// A tangent is that of a loss of the step.

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
  // expected-error @+1 {{expected a loss of @train, got "other"}}
  %t = tangent "other" count %c : !n coeff 0.5 at 0 -> !s
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

// It has the step's coefficient.

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
  // expected-error @+1 {{expected coefficient 5.000000e-01, got 1.000000e+00}}
  %t = tangent "loss" count %c : !n coeff 1.0 at 0 -> !s
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

// It has a count if the step's has.

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
  // expected-error @+1 {{expected a count, as in @train}}
  %t = tangent "loss" coeff 0.5 at 0 -> !s
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

// It has none if the step's has none.

!x = tensor<4xf32>
!s = tensor<f32>
!n = tensor<i64>
piper.mesh @mesh [pp = 1 unrolled]
piper.chunk @p$P0 pass = P (%n: !n) -> !n { return %n : !n }
piper.chunk @a.0$F pass = F stage = 0 (%s: !s) -> !s { return %s : !s }
piper.step @train phase = bucketed mesh = @mesh inputs ["s", "n"] dims [0, 0] microbatches = 2 homes [[0]] (%s: !s, %n: !n) {
  %c = run @p$P0(%n) : (!n) -> !n
  %t = tangent "loss" coeff 0.5 -> !s
  %0 = run @a.0$F(%s) : (!s) -> !s
  output "loss" %0 scale %t : !s, !s
}
piper.cluster @train$cluster of @train phase = ordered mesh = @mesh microbatches = 2 {
  %n0 = input "n" mb 0 at 0 : !n
  %n1 = input "n" mb 1 at 0 : !n
  %c0 = run @p$P0(%n0) mb 0 at 0 : (!n) -> !n
  %c1 = run @p$P0(%n1) mb 1 at 0 : (!n) -> !n
  %c = sum %c0, %c1 at 0 : !n -> !n
  // expected-error @+1 {{expected no count, as in @train}}
  %t = tangent "loss" count %c : !n coeff 0.5 at 0 -> !s
  %s0 = input "s" mb 0 at 0 : !s
  %a0 = run @a.0$F(%s0) mb 0 at 0 : (!s) -> !s
  %s1 = input "s" mb 1 at 0 : !s
  %a1 = run @a.0$F(%s1) mb 1 at 0 : (!s) -> !s
  %l = sum %a0, %a1 at 0 : !s -> !s
  output "loss" %l scale %t at 0 : !s, !s
}

// -----

// The count is that of all microbatches.

!x = tensor<4xf32>
!s = tensor<f32>
!n = tensor<i64>
piper.mesh @mesh [pp = 1 unrolled]
piper.chunk @p$P0 pass = P (%n: !n) -> !n { return %n : !n }
piper.chunk @a.0$F pass = F stage = 0 (%x: !x, %y: !x, %s: !s) -> (!x, !s) { return %x, %s : !x, !s }
piper.step @train phase = bucketed mesh = @mesh inputs ["x", "y", "s", "n"] dims [0, 0, 0, 0] microbatches = 2 homes [[0]] (%x: !x, %y: !x, %s: !s, %n: !n) {
  %c = run @p$P0(%n) : (!n) -> !n
  // expected-note @+1 {{@train has it here}}
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
  // expected-error @+1 {{expected the sum of result 0 of 'piper.run' of @p$P0 over every microbatch once, got none for microbatch 1}}
  %t = tangent "loss" count %c0 : !n coeff 0.5 at 0 -> !s
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

// None counts twice.

!x = tensor<4xf32>
!s = tensor<f32>
!n = tensor<i64>
piper.mesh @mesh [pp = 1 unrolled]
piper.chunk @p$P0 pass = P (%n: !n) -> !n { return %n : !n }
piper.chunk @a.0$F pass = F stage = 0 (%x: !x, %y: !x, %s: !s) -> (!x, !s) { return %x, %s : !x, !s }
piper.step @train phase = bucketed mesh = @mesh inputs ["x", "y", "s", "n"] dims [0, 0, 0, 0] microbatches = 2 homes [[0]] (%x: !x, %y: !x, %s: !s, %n: !n) {
  %c = run @p$P0(%n) : (!n) -> !n
  // expected-note @+1 {{@train has it here}}
  %t = tangent "loss" count %c : !n coeff 0.5 -> !s
  %0:2 = run @a.0$F(%x, %y, %s) : (!x, !x, !s) -> (!x, !s)
  output "loss" %0#1 scale %t : !s, !s
}
piper.cluster @train$cluster of @train phase = ordered mesh = @mesh microbatches = 2 {
  %n0 = input "n" mb 0 at 0 : !n
  %n1 = input "n" mb 1 at 0 : !n
  %c0 = run @p$P0(%n0) mb 0 at 0 : (!n) -> !n
  %c1 = run @p$P0(%n1) mb 1 at 0 : (!n) -> !n
  %c = sum %c0, %c1, %c1 at 0 : !n -> !n
  // expected-error @+1 {{expected the sum of result 0 of 'piper.run' of @p$P0 over every microbatch once, got again result 0 of 'piper.run' of @p$P0 for microbatch 1}}
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

// Nothing else counts.

!x = tensor<4xf32>
!s = tensor<f32>
!n = tensor<i64>
piper.mesh @mesh [pp = 1 unrolled]
piper.chunk @p$P0 pass = P (%n: !n) -> !n { return %n : !n }
piper.chunk @a.0$F pass = F stage = 0 (%x: !x, %y: !x, %s: !s) -> (!x, !s) { return %x, %s : !x, !s }
piper.step @train phase = bucketed mesh = @mesh inputs ["x", "y", "s", "n"] dims [0, 0, 0, 0] microbatches = 2 homes [[0]] (%x: !x, %y: !x, %s: !s, %n: !n) {
  %c = run @p$P0(%n) : (!n) -> !n
  // expected-note @+1 {{@train has it here}}
  %t = tangent "loss" count %c : !n coeff 0.5 -> !s
  %0:2 = run @a.0$F(%x, %y, %s) : (!x, !x, !s) -> (!x, !s)
  output "loss" %0#1 scale %t : !s, !s
}
piper.cluster @train$cluster of @train phase = ordered mesh = @mesh microbatches = 2 {
  %n0 = input "n" mb 0 at 0 : !n
  %n1 = input "n" mb 1 at 0 : !n
  %c0 = run @p$P0(%n0) mb 0 at 0 : (!n) -> !n
  %c1 = run @p$P0(%n1) mb 1 at 0 : (!n) -> !n
  %c = sum %c0, %n1 at 0 : !n -> !n
  // expected-error @+1 {{expected the sum of result 0 of 'piper.run' of @p$P0 over every microbatch once, got result 0 of 'piper.input' of "n" for microbatch 1}}
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

// So are losses.

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
  // expected-note @+1 {{@train has it here}}
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
  // expected-error @+1 {{expected the sum of result 1 of 'piper.run' of @a.0$F over every microbatch once, got none for microbatch 1}}
  output "loss" %a0#1 scale %t at 0 : !s, !s
}

// -----

// They are scaled by their tangent.

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
  // expected-error @+1 {{expected the scale that @train gives "loss"}}
  output "loss" %l scale %s0 at 0 : !s, !s
}

// -----

// A coordinate reports a loss once.

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
  output "loss" %l scale %t at 0 : !s, !s
  // expected-error @+1 {{expected one output of "loss" at a coordinate, got a second}}
  output "loss" %l scale %t at 0 : !s, !s
}

// -----

// No loss is left out.

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
  // expected-note @+1 {{@train has it here}}
  output "loss" %0#1 scale %t : !s, !s
}
// expected-error @+1 {{expected an output of "loss", got none}}
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
}

// -----

// Losses are summed in their own dtype.

!x = tensor<4xf32>
!s = tensor<f32>
!h = tensor<bf16>
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
  // expected-error @+1 {{expected a sum of type 'tensor<f32>', as its operands are, got 'tensor<bf16>'}}
  %l = sum %a0#1, %a1#1 at 0 : !s -> !h
}
