// What cannot be outlined.
// RUN: piper-opt %s -split-input-file -verify-diagnostics --piper-outline-chunks

// A chunk that another interrupts cannot run as one.
!x = tensor<4xf32>

piper.mesh @mesh [pp = 2 unrolled]
piper.step @train phase = captured mesh = @mesh inputs ["x"] dims [0] (%x: !x) {
  %0 = torch "aten.relu.default"(%x) facts <pure> tag <"a.0" F> : (!x) -> !x
  // expected-note @+1 {{the value is made here}}
  %1 = torch "aten.neg.default"(%0) facts <pure> tag <"b.0" F> : (!x) -> !x
  // expected-error @+1 {{chunk 'a.0' is not convex: pass F needs a value of chunk 'b.0', which in turn needs this chunk; annotate them as one}}
  %2 = torch "aten.add.Tensor"(%0, %1) facts <pure> tag <"a.0" F> : (!x, !x) -> !x
  output "y" %2 : !x
}

// -----

// The count of a loss is known before the tangent is used.
!x = tensor<4xf32>
!s = tensor<f32>
!n = tensor<i64>

piper.mesh @mesh [pp = 2 unrolled]
piper.state @w parameter : !x
piper.step @train phase = captured mesh = @mesh inputs ["x"] dims [0] (%x: !x) {
  %l = torch "aten.sum.default"(%x) facts <pure> tag <"a.0" F> : (!x) -> !s
  %n = torch "aten.count.default"(%x) facts <pure> tag <"a.0" B> : (!x) -> !n
  // expected-error @+1 {{expected a count that does not wait for what uses the tangent}}
  %t = tangent "loss" count %n : !n coeff 1.0 -> !s
  output "loss" %l scale %t : !s, !s
  %g = torch "aten.mul.Tensor"(%x, %t) facts <pure> tag <"a.0" B> : (!x, !s) -> !x
  grad @w %g tag <"a.0" B> : !x
}

// -----

// A gradient belongs to a chunk that has a forward pass.
!x = tensor<4xf32>

piper.mesh @mesh [pp = 2 unrolled]
piper.state @w parameter : !x
piper.step @train phase = captured mesh = @mesh inputs ["x"] dims [0] (%x: !x) {
  // expected-error @+1 {{expected a forward chunk 'a.0' for its backward}}
  %0 = torch "aten.relu.default"(%x) facts <pure> tag <"a.0" B> : (!x) -> !x
  grad @w %0 tag <"a.0" B> : !x
}
