// What a backward pass computes again instead of keeping it.
// RUN: piper-opt %s -split-input-file --piper-remat | FileCheck %s

// Of a product and its activation only the product is kept: it is heavy, and the
// activation can be made from it again, right before its first use.
!x = tensor<4x8xf32>
!w = tensor<8x8xf32>

// CHECK-LABEL: piper.step @product
// CHECK: %[[H:.*]] = torch "aten.mm.default"{{.*}} tag <"a.0" F>
// CHECK-NEXT: %[[Y:.*]] = torch "aten.gelu.default"(%[[H]]) {{.*}} tag <"a.0" F>
// CHECK-NEXT: torch "aten.sum.default"(%[[Y]])
// CHECK-NEXT: %[[D:.*]] = torch "aten.gelu_backward.default"(%x, %[[H]])
// CHECK-NEXT: %[[AGAIN:.*]] = torch "aten.gelu.default"(%[[H]]) facts <pure, flops = 32> tag <"a.0" B>
// CHECK-NEXT: torch "aten.mul.Tensor"(%[[D]], %[[AGAIN]])
// CHECK-NEXT: torch "aten.add.Tensor"(%{{.*}}, %[[AGAIN]])
piper.mesh @mesh [pp = 2 unrolled]
piper.state @w parameter : !w
piper.step @product phase = captured mesh = @mesh inputs ["x"] dims [0] (%x: !x) {
  %w = read @w : !w
  %h = torch "aten.mm.default"(%x, %w) facts <pure, flops = 512, heavy> tag <"a.0" F> : (!x, !w) -> !x
  %y = torch "aten.gelu.default"(%h) facts <pure, flops = 32> tag <"a.0" F> : (!x) -> !x
  %l = torch "aten.sum.default"(%y) facts <pure> tag <"a.0" F> : (!x) -> tensor<f32>
  %d = torch "aten.gelu_backward.default"(%x, %h) facts <pure> tag <"a.0" B> : (!x, !x) -> !x
  %e = torch "aten.mul.Tensor"(%d, %y) facts <pure> tag <"a.0" B> : (!x, !x) -> !x
  %f = torch "aten.add.Tensor"(%e, %y) facts <pure> tag <"a.0" B> : (!x, !x) -> !x
  output "l" %l : tensor<f32>
}

// -----

// Of equal choices the one next to the backward pass is taken: what is kept is
// the last of the chain, and nothing is computed again.
!x = tensor<4x8xf32>

// CHECK-LABEL: piper.step @chain
// CHECK: %[[C:.*]] = torch "aten.cos.default"
// CHECK-NEXT: torch "aten.mul.Tensor"(%x, %[[C]]) {{.*}} tag <"a.0" B>
// CHECK-NEXT: }
piper.mesh @mesh [pp = 2 unrolled]
piper.step @chain phase = captured mesh = @mesh inputs ["x"] dims [0] (%x: !x) {
  %h = torch "aten.mm.default"(%x, %x) facts <pure, heavy> tag <"a.0" F> : (!x, !x) -> !x
  %b = torch "aten.sin.default"(%h) facts <pure> tag <"a.0" F> : (!x) -> !x
  %c = torch "aten.cos.default"(%b) facts <pure> tag <"a.0" F> : (!x) -> !x
  %d = torch "aten.mul.Tensor"(%x, %c) facts <pure> tag <"a.0" B> : (!x, !x) -> !x
}

// -----

// What costs the fewest bytes is kept: the half-precision value in the middle.
!x = tensor<4x8xf32>
!h = tensor<4x8xbf16>

// CHECK-LABEL: piper.step @bytes
// CHECK: %[[H:.*]] = torch "aten._to_copy.default"{{.*}} tag <"a.0" F>
// CHECK: %[[UP:.*]] = torch "aten._to_copy.default"(%[[H]], dtype = f32) facts <pure> tag <"a.0" B>
// CHECK-NEXT: torch "aten.mul.Tensor"(%x, %[[UP]]) {{.*}} tag <"a.0" B>
piper.mesh @mesh [pp = 2 unrolled]
piper.step @bytes phase = captured mesh = @mesh inputs ["x"] dims [0] (%x: !x) {
  %a = torch "aten.mm.default"(%x, %x) facts <pure, heavy> tag <"a.0" F> : (!x, !x) -> !x
  %h = torch "aten._to_copy.default"(%a, dtype = bf16) facts <pure> tag <"a.0" F> : (!x) -> !h
  %u = torch "aten._to_copy.default"(%h, dtype = f32) facts <pure> tag <"a.0" F> : (!h) -> !x
  %d = torch "aten.mul.Tensor"(%x, %u) facts <pure> tag <"a.0" B> : (!x, !x) -> !x
}

// -----

// States, inputs and preambles are there anyway, so what is made of them alone is
// made again; in the order of the forward pass.
!x = tensor<4x8xf32>

// CHECK-LABEL: piper.step @free
// CHECK: tag <"a.0" F>
// CHECK: tag <"a.0" F>
// CHECK-NEXT: %[[M:.*]] = torch "aten.mul.Tensor"(%x, %w) facts <pure> tag <"a.0" B>
// CHECK-NEXT: %[[S:.*]] = torch "aten.add.Tensor"(%[[M]], %0) facts <pure> tag <"a.0" B>
// CHECK-NEXT: torch "aten.sub.Tensor"(%[[S]], %[[M]])
piper.mesh @mesh [pp = 2 unrolled]
piper.state @w parameter : !x
piper.step @free phase = captured mesh = @mesh inputs ["x"] dims [0] (%x: !x) {
  %w = read @w : !x
  %p = torch "aten.ne.Scalar"(%x, 0) facts <pure> tag <"preamble" P> : (!x) -> !x
  %m = torch "aten.mul.Tensor"(%x, %w) facts <pure> tag <"a.0" F> : (!x, !x) -> !x
  %s = torch "aten.add.Tensor"(%m, %p) facts <pure> tag <"a.0" F> : (!x, !x) -> !x
  %d = torch "aten.sub.Tensor"(%s, %m) facts <pure> tag <"a.0" B> : (!x, !x) -> !x
}

// -----

// A value of another chunk must stay for the backward pass that uses it. So chunk
// b, whose input is larger than what it makes of it, keeps the latter; chunk c,
// which uses its input anyway, makes the rest of it again.
!x = tensor<4x8xf32>
!s = tensor<4x1xf32>

// CHECK-LABEL: piper.step @inputs
// CHECK: %[[S:.*]] = torch "aten.mean.dim"{{.*}} tag <"b.0" F>
// CHECK: %[[T:.*]] = torch "aten.mean.dim"{{.*}} tag <"c.0" F>
// CHECK-NEXT: %[[AGAIN:.*]] = torch "aten.mean.dim"(%[[X:.*]], [1], true) facts <pure> tag <"c.0" B>
// CHECK-NEXT: torch "aten.mul.Tensor"(%[[X]], %[[AGAIN]]) {{.*}} tag <"c.0" B>
// CHECK-NEXT: torch "aten.mul.Tensor"(%x, %[[S]]) {{.*}} tag <"b.0" B>
piper.mesh @mesh [pp = 2 unrolled]
piper.step @inputs phase = captured mesh = @mesh inputs ["x"] dims [0] (%x: !x) {
  %a = torch "aten.mm.default"(%x, %x) facts <pure, heavy> tag <"a.0" F> : (!x, !x) -> !x
  %b = torch "aten.mean.dim"(%a, [1], true) facts <pure> tag <"b.0" F> : (!x) -> !s
  %e = torch "aten.mm.default"(%a, %b) facts <pure, heavy> tag <"b.0" F> : (!x, !s) -> !x
  %c = torch "aten.mean.dim"(%e, [1], true) facts <pure> tag <"c.0" F> : (!x) -> !s
  %d = torch "aten.mul.Tensor"(%e, %c) facts <pure> tag <"c.0" B> : (!x, !s) -> !x
  %g = torch "aten.mul.Tensor"(%x, %b) facts <pure> tag <"b.0" B> : (!x, !s) -> !x
}

// -----

// Views are free: they are taken again of what is computed again, whether pass F
// or pass B took them, and those that nobody needs any more go.
!x = tensor<4x8xf32>
!t = tensor<8x4xf32>

// CHECK-LABEL: piper.step @views
// CHECK: %[[H:.*]] = torch "aten.mm.default"
// CHECK-NEXT: %[[Y:.*]] = torch "aten.relu.default"(%[[H]]) {{.*}} tag <"a.0" F>
// CHECK-NEXT: torch "aten.threshold_backward.default"(%x, %[[H]], 0)
// CHECK-NEXT: %[[AGAIN:.*]] = torch "aten.relu.default"(%[[H]]) facts <pure> tag <"a.0" B>
// CHECK-NEXT: %[[V:.*]] = torch "aten.t.default"(%[[AGAIN]]) facts <view> tag <"a.0" B>
// CHECK-NEXT: torch "aten.mm.default"(%[[V]], %x)
// CHECK-NEXT: %[[U:.*]] = torch "aten.view.default"(%[[V]], [4, 8]) facts <view> tag <"a.0" B>
// CHECK-NEXT: torch "aten.mm.default"(%[[V]], %[[U]])
// CHECK-NEXT: }
piper.mesh @mesh [pp = 2 unrolled]
piper.step @views phase = captured mesh = @mesh inputs ["x"] dims [0] (%x: !x) {
  %h = torch "aten.mm.default"(%x, %x) facts <pure, heavy> tag <"a.0" F> : (!x, !x) -> !x
  %y = torch "aten.relu.default"(%h) facts <pure> tag <"a.0" F> : (!x) -> !x
  %v = torch "aten.t.default"(%y) facts <view> tag <"a.0" F> : (!x) -> !t
  %d = torch "aten.threshold_backward.default"(%x, %h, 0) facts <pure> tag <"a.0" B> : (!x, !x) -> !x
  %u = torch "aten.view.default"(%v, [4, 8]) facts <view> tag <"a.0" B> : (!t) -> !x
  %e = torch "aten.mm.default"(%v, %x) facts <pure> tag <"a.0" B> : (!t, !x) -> !t
  %f = torch "aten.mm.default"(%v, %u) facts <pure> tag <"a.0" B> : (!t, !x) -> !t
}

// -----

// Results of one op count one by one: chunk b keeps the two small ones that it
// needs, since its input is larger. Chunk c, which keeps its input anyway, makes
// all that it needs in one op. A gradient is a use, too.
!x = tensor<4x8xf32>
!s = tensor<4x1xf32>

// CHECK-LABEL: piper.step @results
// CHECK: %[[N:.*]]:3 = torch "aten.native_layer_norm.default"{{.*}} tag <"b.0" F>
// CHECK: %[[O:.*]]:3 = torch "aten.native_layer_norm.default"{{.*}} tag <"c.0" F>
// CHECK-NEXT: %[[AGAIN:.*]]:3 = torch "aten.native_layer_norm.default"(%[[E:.*]], [8], none, none, 5.000000e-01) facts <pure> tag <"c.0" B>
// CHECK-NEXT: torch "aten.mul.Tensor"(%[[E]], %[[AGAIN]]#0)
// CHECK-NEXT: torch "aten.mul.Tensor"(%x, %[[AGAIN]]#2)
// CHECK-NEXT: grad @w %[[AGAIN]]#0 tag <"c.0" B>
// CHECK-NEXT: torch "aten.mul.Tensor"(%x, %[[N]]#1) {{.*}} tag <"b.0" B>
// CHECK-NEXT: torch "aten.mul.Tensor"(%x, %[[N]]#2) {{.*}} tag <"b.0" B>
// CHECK-NEXT: }
piper.mesh @mesh [pp = 2 unrolled]
piper.state @w parameter : !x
piper.step @results phase = captured mesh = @mesh inputs ["x"] dims [0] (%x: !x) {
  %a = torch "aten.mm.default"(%x, %x) facts <pure, heavy> tag <"a.0" F> : (!x, !x) -> !x
  %n:3 = torch "aten.native_layer_norm.default"(%a, [8], none, none, 0.5) facts <pure> tag <"b.0" F> : (!x) -> (!x, !s, !s)
  %e = torch "aten.mm.default"(%n#0, %x) facts <pure, heavy> tag <"b.0" F> : (!x, !x) -> !x
  %o:3 = torch "aten.native_layer_norm.default"(%e, [8], none, none, 0.5) facts <pure> tag <"c.0" F> : (!x) -> (!x, !s, !s)
  %d = torch "aten.mul.Tensor"(%e, %o#0) facts <pure> tag <"c.0" B> : (!x, !x) -> !x
  %f = torch "aten.mul.Tensor"(%x, %o#2) facts <pure> tag <"c.0" B> : (!x, !s) -> !x
  grad @w %o#0 tag <"c.0" B> : !x
  %g = torch "aten.mul.Tensor"(%x, %n#1) facts <pure> tag <"b.0" B> : (!x, !s) -> !x
  %i = torch "aten.mul.Tensor"(%x, %n#2) facts <pure> tag <"b.0" B> : (!x, !s) -> !x
}

// -----

// What is not pure, and what reads a value that is written, is kept under every
// policy: a second time it would be something else.
!x = tensor<4x8xf32>

// CHECK-LABEL: piper.step @impure
// CHECK-NEXT: %[[R:.*]] = torch "aten.bernoulli.default"
// CHECK-NEXT: %[[B:.*]] = torch "aten.sin.default"
// CHECK-NEXT: %[[S:.*]] = torch "aten.add_.Tensor"
// CHECK-NEXT: %[[C:.*]] = torch "aten.cos.default"
// CHECK-NEXT: torch "aten.mul.Tensor"(%[[R]], %[[S]])
// CHECK-NEXT: torch "aten.mul.Tensor"(%[[B]], %[[C]])
// CHECK-NEXT: }
piper.mesh @mesh [pp = 2 unrolled]
piper.strategy @strategy mesh = @mesh {
  piper.do.remat <all> policy = "full"
}
piper.step @impure phase = captured mesh = @mesh inputs ["x"] dims [0] (%x: !x) {
  %r = torch "aten.bernoulli.default"(%x) facts <random> recompute tag <"a.0" F> : (!x) -> !x
  %b = torch "aten.sin.default"(%x) facts <pure> tag <"a.0" F> : (!x) -> !x
  %s = torch "aten.add_.Tensor"(%b, %x) facts <mutating> tag <"a.0" F> : (!x, !x) -> !x
  %c = torch "aten.cos.default"(%b) facts <pure> recompute tag <"a.0" F> : (!x) -> !x
  %d = torch "aten.mul.Tensor"(%r, %s) facts <pure> tag <"a.0" B> : (!x, !x) -> !x
  %e = torch "aten.mul.Tensor"(%b, %c) facts <pure> tag <"a.0" B> : (!x, !x) -> !x
}

// -----

// A strided value is kept as a contiguous copy, with which an op may round
// otherwise. So nothing is made again of the copy, but of the value itself, where
// that is made again, too.
!x = tensor<4x8xf32>
!h = tensor<4x8xbf16>

// CHECK-LABEL: piper.step @strided
// CHECK: %[[B:.*]] = torch "aten.sin.default"{{.*}} tag <"a.0" F>
// CHECK: torch "aten.mul.Tensor"(%x, %[[B]]) {{.*}} tag <"a.0" B>
// CHECK-NEXT: %[[C:.*]] = torch "aten._to_copy.default"(%x, dtype = bf16) facts <pure, strided> tag <"b.0" B>
// CHECK-NEXT: %[[D:.*]] = torch "aten._to_copy.default"(%[[C]], dtype = f32) facts <pure> tag <"b.0" B>
// CHECK-NEXT: torch "aten.mul.Tensor"(%x, %[[D]]) {{.*}} tag <"b.0" B>
piper.mesh @mesh [pp = 2 unrolled]
piper.step @strided phase = captured mesh = @mesh inputs ["x"] dims [0] (%x: !x) {
  %a = torch "aten.mm.default"(%x, %x) facts <pure, strided, heavy> tag <"a.0" F> : (!x, !x) -> !x
  %b = torch "aten.sin.default"(%a) facts <pure> tag <"a.0" F> : (!x) -> !x
  %c = torch "aten._to_copy.default"(%x, dtype = bf16) facts <pure, strided> tag <"b.0" F> : (!x) -> !h
  %d = torch "aten._to_copy.default"(%c, dtype = f32) facts <pure> tag <"b.0" F> : (!h) -> !x
  %e = torch "aten.mul.Tensor"(%a, %b) facts <pure> tag <"a.0" B> : (!x, !x) -> !x
  %f = torch "aten.mul.Tensor"(%x, %b) facts <pure> tag <"a.0" B> : (!x, !x) -> !x
  %g = torch "aten.mul.Tensor"(%x, %d) facts <pure> tag <"b.0" B> : (!x, !x) -> !x
}

// -----

// Policies by chunk: `full` computes products again, `save` nothing. Saying the
// same twice is no conflict.
!x = tensor<4x8xf32>

// CHECK-LABEL: piper.step @chunks
// CHECK: tag <"all.0" F>
// CHECK: tag <"none.0" F>
// CHECK-NEXT: torch "aten.sin.default"
// CHECK-NEXT: torch "aten.mul.Tensor"(%x, %[[SAVED:.*]]) {{.*}} tag <"none.0" B>
// CHECK-NEXT: %[[H:.*]] = torch "aten.mm.default"(%x, %x) facts <pure, heavy> tag <"all.0" B>
// CHECK-NEXT: %[[B:.*]] = torch "aten.sin.default"(%[[H]]) facts <pure> tag <"all.0" B>
// CHECK-NEXT: torch "aten.mul.Tensor"(%[[H]], %[[B]]) {{.*}} tag <"all.0" B>
// CHECK-NEXT: }
piper.mesh @mesh [pp = 2 unrolled]
piper.strategy @strategy mesh = @mesh {
  piper.do.remat <tag = "a*"> policy = "full"
  piper.do.remat <not tag = "none"> policy = "full"
  piper.do.remat <tag = "none"> policy = "save"
}
piper.step @chunks phase = captured mesh = @mesh inputs ["x"] dims [0] (%x: !x) {
  %a = torch "aten.mm.default"(%x, %x) facts <pure, heavy> tag <"all.0" F> : (!x, !x) -> !x
  %b = torch "aten.sin.default"(%a) facts <pure> tag <"all.0" F> : (!x) -> !x
  %c = torch "aten.mm.default"(%b, %x) facts <pure, heavy> tag <"none.0" F> : (!x, !x) -> !x
  %d = torch "aten.sin.default"(%c) facts <pure> tag <"none.0" F> : (!x) -> !x
  %e = torch "aten.mul.Tensor"(%x, %d) facts <pure> tag <"none.0" B> : (!x, !x) -> !x
  %f = torch "aten.mul.Tensor"(%a, %b) facts <pure> tag <"all.0" B> : (!x, !x) -> !x
}

// -----

// Policies by op: only what a glob matches is computed again.
!x = tensor<4x8xf32>

// CHECK-LABEL: piper.step @globs
// CHECK: %[[A:.*]] = torch "aten.mm.default"
// CHECK-NEXT: %[[B:.*]] = torch "aten.sin.default"
// CHECK-NEXT: torch "aten.cos.default"
// CHECK-NEXT: %[[C:.*]] = torch "aten.cos.default"(%[[A]]) facts <pure> tag <"a.0" B>
// CHECK-NEXT: torch "aten.foo.default"(%[[A]], %[[B]], %[[C]]) {{.*}} tag <"a.0" B>
piper.mesh @mesh [pp = 2 unrolled]
piper.strategy @strategy mesh = @mesh {
  piper.do.remat <all> policy = "min_cut" ops ["aten.c?s.*"]
}
piper.step @globs phase = captured mesh = @mesh inputs ["x"] dims [0] (%x: !x) {
  %a = torch "aten.mm.default"(%x, %x) facts <pure, heavy> tag <"a.0" F> : (!x, !x) -> !x
  %b = torch "aten.sin.default"(%a) facts <pure> tag <"a.0" F> : (!x) -> !x
  %c = torch "aten.cos.default"(%a) facts <pure> tag <"a.0" F> : (!x) -> !x
  %d = torch "aten.foo.default"(%a, %b, %c) facts <pure> tag <"a.0" B> : (!x, !x, !x) -> !x
}

// -----

// What the model marks is computed again even under `save` and if it is heavy. It
// ends at the first op without a mark (%d), which is kept under `min_cut`, too,
// since to compute it again would compute all the marked ops again. Marks are
// gone afterwards, also from an evaluation, which is else untouched.
!x = tensor<4x8xf32>

// CHECK-NOT: recompute
// CHECK-LABEL: piper.step @marks
// CHECK: %[[D:.*]] = torch "aten.cos.default"{{.*}} tag <"a.0" F>
// CHECK: %[[E:.*]] = torch "aten.cos.default"{{.*}} tag <"b.0" F>
// CHECK-NEXT: %[[F:.*]] = torch "aten.mm.default"(%[[D]], %[[D]]) {{.*}} tag <"b.0" B>
// CHECK-NEXT: torch "aten.mul.Tensor"(%[[F]], %[[E]]) {{.*}} tag <"b.0" B>
// CHECK-NEXT: %[[B:.*]] = torch "aten.mm.default"(%x, %x) {{.*}} tag <"a.0" B>
// CHECK-NEXT: %[[C:.*]] = torch "aten.sin.default"(%[[B]]) {{.*}} tag <"a.0" B>
// CHECK-NEXT: torch "aten.mul.Tensor"(%[[C]], %[[D]]) {{.*}} tag <"a.0" B>
// CHECK-NEXT: }
// CHECK-LABEL: piper.step @eval
// CHECK-NEXT: %[[B:.*]] = torch "aten.mm.default"(%x, %x)
// CHECK-NEXT: torch "aten.sin.default"(%[[B]])
// CHECK-NEXT: }
piper.mesh @mesh [pp = 2 unrolled]
piper.strategy @strategy mesh = @mesh {
  piper.do.remat <tag = "b"> policy = "save"
}
piper.step @marks phase = captured mesh = @mesh inputs ["x"] dims [0] (%x: !x) {
  %b = torch "aten.mm.default"(%x, %x) facts <pure, heavy> recompute tag <"a.0" F> : (!x, !x) -> !x
  %c = torch "aten.sin.default"(%b) facts <pure> recompute tag <"a.0" F> : (!x) -> !x
  %d = torch "aten.cos.default"(%c) facts <pure> tag <"a.0" F> : (!x) -> !x
  %f = torch "aten.mm.default"(%d, %d) facts <pure, heavy> recompute tag <"b.0" F> : (!x, !x) -> !x
  %e = torch "aten.cos.default"(%f) facts <pure> tag <"b.0" F> : (!x) -> !x
  %g = torch "aten.mul.Tensor"(%f, %e) facts <pure> tag <"b.0" B> : (!x, !x) -> !x
  %h = torch "aten.mul.Tensor"(%c, %d) facts <pure> tag <"a.0" B> : (!x, !x) -> !x
}
piper.step @eval phase = captured mesh = @mesh inputs ["x"] dims [0] (%x: !x) {
  %b = torch "aten.mm.default"(%x, %x) facts <pure, heavy> recompute tag <"a.0" F> : (!x, !x) -> !x
  %c = torch "aten.sin.default"(%b) facts <pure> recompute tag <"a.0" F> : (!x) -> !x
}

// -----

// Without a captured step there is nothing to do.
// CHECK-LABEL: piper.strategy
// CHECK-NEXT: do.remat
piper.mesh @mesh [pp = 2 unrolled]
piper.strategy @strategy mesh = @mesh {
  piper.do.remat <tag = "layer"> policy = "full"
}
