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

// Nor can one that another interrupts before what it computes while the host waits.
!x = tensor<4x8xf32>
!c = tensor<2x2xi64>

piper.mesh @mesh [ep = 2 manual]
piper.stream @ep
piper.step @train phase = captured mesh = @mesh inputs ["x"] dims [0] (%x: !x) {
  %h = torch "aten.relu.default"(%x) facts <pure> tag <"a.0" F> : (!x) -> !x
  %c = torch "mine.count.default"(%h) facts <pure> tag <"a.0" F> : (!x) -> !c
  %r = all_to_all %c dim 0 over ["ep"] as "a.0 counts" on @ep {tag = #piper.tag<"a.0" F>} : !c -> !c
  %s:2 = host_wait %c, %r {tag = #piper.tag<"a.0" F>} : !c, !c -> !piper.sizes, !piper.sizes
  %in = all_to_all %h dim 0 sizes %s#0, %s#1 over ["ep"] as "a.0 dispatch" on @ep {tag = #piper.tag<"a.0" F>} : !x -> !x
  %y = torch "aten.tanh.default"(%in) facts <pure> tag <"a.0" F> : (!x) -> !x
  // expected-note @+1 {{the value is made here}}
  %z = torch "aten.neg.default"(%y) facts <pure> tag <"b.0" F> : (!x) -> !x
  // expected-error @+1 {{chunk 'a.0' is not convex: pass F needs a value of chunk 'b.0', which in turn needs this chunk; annotate them as one}}
  %g = torch "aten.relu.default"(%z) facts <pure> tag <"a.0" F> : (!x) -> !x
  output "g" %g : !x
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

// -----

// Ranks exchange values between pieces of a chunk, which a preamble has not.
!x = tensor<4xi64>

piper.mesh @mesh [ep = 2 manual]
piper.stream @ep
piper.step @train phase = captured mesh = @mesh inputs ["x"] dims [0] (%x: !x) {
  %0 = torch "aten.neg.default"(%x) facts <pure> tag <"preamble" P> : (!x) -> !x
  // expected-error @+1 {{'piper.all_to_all' op expected a tag of pass F or B, as ranks exchange nothing in a preamble, got #piper.tag<"preamble" P>}}
  %1 = all_to_all %0 dim 0 over ["ep"] as "preamble counts" on @ep {tag = #piper.tag<"preamble" P>} : !x -> !x
  %2 = torch "aten.relu.default"(%1) facts <pure> tag <"a.0" F> : (!x) -> !x
  output "y" %2 : !x
}

// -----

// An exchange belongs to a chunk.
!x = tensor<4xf32>

piper.mesh @mesh [tp = 2 auto]
piper.stream @tp
piper.step @train phase = captured mesh = @mesh inputs ["x"] dims [0] (%x: !x) {
  %0 = torch "aten.neg.default"(%x) facts <pure> tag <"a.0" F> : (!x) -> !x
  // expected-error @+1 {{'piper.all_reduce' op expected a tag: every op belongs to a chunk}}
  %1 = all_reduce %0 over ["tp"] as "a.0 reduce" on @tp : !x -> !x
  %2 = torch "aten.relu.default"(%1) facts <pure> tag <"a.0" F> : (!x) -> !x
  output "y" %2 : !x
}

// -----

// By its label an exchange is known, by which templates of overlaps name it.
!x = tensor<4xf32>

piper.mesh @mesh [tp = 2 auto]
piper.stream @tp
piper.step @train phase = captured mesh = @mesh inputs ["x"] dims [0] (%x: !x) {
  %0 = torch "aten.neg.default"(%x) facts <pure> tag <"a.0" F> : (!x) -> !x
  // expected-error @+1 {{'piper.all_reduce' op expected a label in a step of phase captured: it names what ranks exchange within a chunk}}
  %1 = all_reduce %0 over ["tp"] on @tp {tag = #piper.tag<"a.0" F>} : !x -> !x
  %2 = torch "aten.relu.default"(%1) facts <pure> tag <"a.0" F> : (!x) -> !x
  output "y" %2 : !x
}

// -----

// What is exchanged is made by a chunk, and not an input,
!x = tensor<4xf32>

piper.mesh @mesh [tp = 2 auto]
piper.stream @tp
piper.step @train phase = captured mesh = @mesh inputs ["x"] dims [0] (%x: !x) {
  // expected-error @+1 {{'piper.all_reduce' op expected operands that a chunk makes, got an input of the step}}
  %1 = all_reduce %x over ["tp"] as "a.0 reduce" on @tp {tag = #piper.tag<"a.0" F>} : !x -> !x
  %2 = torch "aten.relu.default"(%1) facts <pure> tag <"a.0" F> : (!x) -> !x
  output "y" %2 : !x
}

// -----

// nor a state,
!x = tensor<4xf32>

piper.mesh @mesh [tp = 2 auto]
piper.stream @tp
piper.state @w parameter : !x
piper.step @train phase = captured mesh = @mesh inputs [] dims [] () {
  %w = read @w : !x
  // expected-error @+1 {{'piper.all_reduce' op expected operands that a chunk makes, got a result of 'piper.read'}}
  %1 = all_reduce %w over ["tp"] as "a.0 reduce" on @tp {tag = #piper.tag<"a.0" F>} : !x -> !x
  %2 = torch "aten.relu.default"(%1) facts <pure> tag <"a.0" F> : (!x) -> !x
  output "y" %2 : !x
}

// -----

// and neither is what is reported.
!x = tensor<4xf32>

piper.mesh @mesh [tp = 2 auto]
piper.state @w parameter : !x
piper.step @train phase = captured mesh = @mesh inputs [] dims [] () {
  %w = read @w : !x
  // expected-error @+1 {{'piper.output' op expected operands that a chunk makes, got a result of 'piper.read'}}
  output "y" %w : !x
}

// -----

// A tangent scales what is reported, and is not reported itself.
!s = tensor<f32>

piper.mesh @mesh [tp = 2 auto]
piper.step @train phase = captured mesh = @mesh inputs [] dims [] () {
  %t = tangent "loss" coeff 1.0 examples 1 -> !s
  // expected-error @+1 {{'piper.output' op expected operands that a chunk makes, got a result of 'piper.tangent'}}
  output "y" %t : !s
}

// -----

// Chunks, exchanges, tangents and reports are all that an outlined step has.
!x = tensor<4xf32>
!h = tensor<4xf16>

piper.mesh @mesh [tp = 2 auto]
piper.step @train phase = captured mesh = @mesh inputs ["x"] dims [0] (%x: !x) {
  %0 = torch "aten.neg.default"(%x) facts <pure> tag <"a.0" F> : (!x) -> !x
  // expected-error @+1 {{'piper.convert' op is not expected in a step of phase captured}}
  %1 = convert %0 : !x -> !h
  output "y" %1 : !h
}
