// What ranks along an auto axis hold is not what is needed of it.
// RUN: piper-opt %s -split-input-file -verify-diagnostics --piper-verify

// A sum is dropped between two linear layers: the product takes terms.

!x = tensor<4x8xf32>
!h = tensor<4x4xf32>
!u = tensor<8x4xf32>
!d = tensor<4x8xf32>
piper.mesh @mesh [tp = 2 auto]
piper.stream @compute
piper.stream @tp
piper.state @up parameter : tensor<8x8xf32> layout <tp = shard(1)>
piper.state @down parameter : tensor<8x8xf32> layout <tp = shard(0)>
piper.kernel @mlp(%x: !x, %u: !u, %d: !d) -> !x {
  %0 = torch "aten.mm.default"(%x, %u) facts <pure, rule = "m k, k n -> m n; sum k"> : (!x, !u) -> !h
  %1 = torch "aten.mm.default"(%0, %d) facts <pure, rule = "m k, k n -> m n; sum k"> : (!h, !d) -> !x
  return %1 : !x
}
piper.kernel @mm(%x: !x, %u: !u) -> !h {
  // expected-error @+1 {{aten.mm.default expected operands on axis 'tp' that go together by its rule "m k, k n -> m n; sum k", got partial, shard(1)}}
  %0 = torch "aten.mm.default"(%x, %u) facts <pure, rule = "m k, k n -> m n; sum k"> : (!x, !u) -> !h
  return %0 : !h
}
piper.chunk @a.0$F pass = F (%x: !x) -> !x {
  %u = read @up : !u
  %d = read @down : !d
  %0 = launch @mlp(%x, %u, %d) on @compute : (!x, !u, !d) -> !x
  return %0 : !x
}
piper.chunk @b.0$F pass = F (%x: !x) -> !h {
  %u = read @up : !u
  %0 = launch @mm(%x, %u) on @compute : (!x, !u) -> !h
  // expected-note @+1 {{so it is not known what ranks hold of result 0 of the chunk here}}
  return %0 : !h
}
piper.step @train phase = outlined mesh = @mesh inputs ["x"] dims [0] (%x: !x) {
  %a = run @a.0$F(%x) : (!x) -> !x
  %b = run @b.0$F(%a) : (!x) -> !h
}

// -----

// What is whole is summed: a sum is done twice.

!x = tensor<4x8xf32>
piper.mesh @mesh [tp = 2 auto]
piper.stream @compute
piper.stream @tp
piper.kernel @copy(%x: !x) -> !x {
  // expected-note @+1 {{aten.relu.default makes it here}}
  %0 = torch "aten.relu.default"(%x) facts <pure, rule = "a b -> a b"> : (!x) -> !x
  return %0 : !x
}
piper.chunk @a.0$F pass = F (%x: !x) -> !x {
  %0 = launch @copy(%x) on @compute : (!x) -> !x
  return %0 : !x
}
piper.step @train phase = outlined mesh = @mesh inputs ["x"] dims [0] (%x: !x) {
  %a = run @a.0$F(%x) : (!x) -> !x
  // expected-error @+1 {{'piper.all_reduce' op expected an operand that is partial on axis 'tp', got replicated}}
  %b = all_reduce %a over ["tp"] as "a.0 reduce" on @tp : !x -> !x
}

// -----

// Parts are gathered along another dim.

!x = tensor<4x8xf32>
!h = tensor<4x4xf32>
!u = tensor<8x4xf32>
piper.mesh @mesh [tp = 2 auto]
piper.stream @compute
piper.stream @tp
piper.state @up parameter : tensor<8x8xf32> layout <tp = shard(1)>
piper.kernel @mm(%x: !x, %u: !u) -> !h {
  // expected-note @+1 {{aten.mm.default makes it here}}
  %0 = torch "aten.mm.default"(%x, %u) facts <pure, rule = "m k, k n -> m n; sum k"> : (!x, !u) -> !h
  return %0 : !h
}
piper.chunk @a.0$F pass = F (%x: !x) -> !h {
  %u = read @up : !u
  %0 = launch @mm(%x, %u) on @compute : (!x, !u) -> !h
  return %0 : !h
}
piper.step @train phase = outlined mesh = @mesh inputs ["x"] dims [0] (%x: !x) {
  %a = run @a.0$F(%x) : (!x) -> !h
  // expected-error @+1 {{'piper.all_gather' op expected an operand that is shard(0) on axis 'tp', got shard(1)}}
  %b = all_gather %a dim 0 over ["tp"] as "a.0 gather" on @tp : !h -> tensor<8x4xf32>
}

// -----

// An op without a rule takes a part, and one with a rule a part beside the whole.

!u = tensor<4x4xf32>
piper.mesh @mesh [tp = 2 auto]
piper.stream @compute
piper.state @up parameter : tensor<4x8xf32> layout <tp = shard(1)>
piper.kernel @mine(%u: !u) -> !u {
  // expected-error @+1 {{mine.scale.default expected operands on axis 'tp' that are replicated, as it has no rule, got shard(1)}}
  %0 = torch "mine.scale.default"(%u) facts <pure> : (!u) -> !u
  return %0 : !u
}
piper.chunk @a.0$F pass = F () -> !u {
  %u = read @up : !u
  %0 = launch @mine(%u) on @compute : (!u) -> !u
  // expected-note @+1 {{so it is not known what ranks hold of result 0 of the chunk here}}
  return %0 : !u
}
piper.step @train phase = outlined mesh = @mesh inputs [] dims [] () {
  %a = run @a.0$F() : () -> !u
}

// -----

!u = tensor<4x4xf32>
piper.mesh @mesh [tp = 2 auto]
piper.stream @compute
piper.state @up parameter : tensor<4x8xf32> layout <tp = shard(1)>
piper.kernel @add(%u: !u, %x: !u) -> !u {
  // expected-error @+1 {{aten.add.Tensor expected operands on axis 'tp' that go together by its rule "a b, a b -> a b; linear", got shard(1), replicated}}
  %0 = torch "aten.add.Tensor"(%u, %x) facts <pure, rule = "a b, a b -> a b; linear"> : (!u, !u) -> !u
  return %0 : !u
}
piper.chunk @a.0$F pass = F (%x: !u) -> !u {
  %u = read @up : !u
  %0 = launch @add(%u, %x) on @compute : (!u, !u) -> !u
  // expected-note @+1 {{so it is not known what ranks hold of result 0 of the chunk here}}
  return %0 : !u
}
piper.step @train phase = outlined mesh = @mesh inputs ["x"] dims [0] (%x: !u) {
  %a = run @a.0$F(%x) : (!u) -> !u
}

// -----

// A sum behind a nonlinear op: what that makes of terms are none.

!h = tensor<4x4xf32>
piper.mesh @mesh [tp = 2 auto]
piper.stream @compute
piper.stream @tp
piper.state @down parameter : tensor<8x4xf32> layout <tp = shard(0)>
piper.state @x parameter : tensor<4x8xf32> layout <tp = shard(1)>
piper.kernel @down_relu(%x: !h, %d: !h) -> !h {
  %0 = torch "aten.mm.default"(%x, %d) facts <pure, rule = "m k, k n -> m n; sum k"> : (!h, !h) -> !h
  // expected-error @+1 {{aten.relu.default expected operands on axis 'tp' that go together by its rule "a b -> a b", got partial}}
  %1 = torch "aten.relu.default"(%0) facts <pure, rule = "a b -> a b"> : (!h) -> !h
  return %1 : !h
}
piper.chunk @a.0$F pass = F () -> !h {
  %x = read @x : !h
  %d = read @down : !h
  %0 = launch @down_relu(%x, %d) on @compute : (!h, !h) -> !h
  // expected-note @+1 {{so it is not known what ranks hold of result 0 of the chunk here}}
  return %0 : !h
}
piper.step @train phase = outlined mesh = @mesh inputs [] dims [] () {
  %a = run @a.0$F() : () -> !h
  %b = all_reduce %a over ["tp"] as "a.0 reduce" on @tp : !h -> !h
}

// -----

// Of a state that is whole on every rank the gradient is not summed.

!h = tensor<4x4xf32>
piper.mesh @mesh [tp = 2 auto]
piper.stream @compute
piper.state @w parameter : !h
piper.state @x parameter : tensor<8x4xf32> layout <tp = shard(0)>
piper.kernel @weight(%x: !h, %y: !h) -> !h {
  // expected-note @+1 {{aten.mm.default makes it here}}
  %0 = torch "aten.mm.default"(%x, %y) facts <pure, rule = "k m, k n -> m n; sum k"> : (!h, !h) -> !h
  return %0 : !h
}
piper.chunk @a.0$F pass = F () {
  return
}
piper.chunk @a.0$B pass = B of @a.0$F () {
  %x = read @x : !h
  %0 = launch @weight(%x, %x) on @compute : (!h, !h) -> !h
  // expected-error @+1 {{'piper.grad' op expected a gradient of @w that is replicated on axis 'tp', as the state is, got partial}}
  grad @w %0 : !h
  return
}
piper.step @train phase = outlined mesh = @mesh inputs [] dims [] () {
  run @a.0$F() : () -> ()
  run @a.0$B() : () -> ()
}

// -----

// Nor is what is reported, or divided by.

!x = tensor<2xf32>
!s = tensor<f32>
piper.mesh @mesh [tp = 2 auto]
piper.stream @compute
piper.state @x parameter : tensor<4xf32> layout <tp = shard(0)>
piper.kernel @sum(%x: !x) -> !s {
  // expected-note @+1 {{aten.sum.default makes it here}}
  %0 = torch "aten.sum.default"(%x) facts <pure, rule = "a -> ; linear, sum a"> : (!x) -> !s
  return %0 : !s
}
piper.chunk @a.0$F pass = F () -> !s {
  %x = read @x : !x
  %0 = launch @sum(%x) on @compute : (!x) -> !s
  return %0 : !s
}
piper.step @train phase = outlined mesh = @mesh inputs [] dims [] () {
  %a = run @a.0$F() : () -> !s
  // expected-error @+1 {{'piper.output' op expected a value that is replicated on axis 'tp', got partial}}
  output "loss" %a : !s
}

// -----

// What each rank has of its own leaves a chunk.

piper.mesh @mesh [tp = 2 auto]
piper.chunk @a.0$F pass = F () -> tensor<i64> {
  %0 = axis_index "tp" : tensor<i64>
  // expected-error @+1 {{'piper.return' op expected result 0 of the chunk that is replicated on axis 'tp', got varying}}
  return %0 : tensor<i64>
}
piper.step @train phase = outlined mesh = @mesh inputs [] dims [] () {
  %a = run @a.0$F() : () -> tensor<i64>
}

// -----

// Where types say what ranks hold: a kernel does not make it.

!xR = tensor<4x4xf32, #piper.layout<tp = replicated>>
!xP = tensor<4x4xf32, #piper.layout<tp = partial>>
!x = tensor<4x4xf32>
piper.mesh @mesh [tp = 2 auto]
piper.stream @compute
piper.kernel @relu(%x: !x) -> !x {
  %0 = torch "aten.relu.default"(%x) facts <pure, rule = "a b -> a b"> : (!x) -> !x
  return %0 : !x
}
piper.chunk @a.0$F pass = F (%x: !xR) -> !xP {
  // expected-error @+1 {{'piper.launch' op expected result 0 to be replicated on axis 'tp', got partial}}
  %0 = launch @relu(%x) on @compute : (!xR) -> !xP
  return %0 : !xP
}

// -----

// Nor does a claim.

!xR = tensor<4x4xf32, #piper.layout<tp = replicated>>
!xP = tensor<4x4xf32, #piper.layout<tp = partial>>
piper.mesh @mesh [tp = 2 auto]
piper.chunk @a.0$F pass = F (%x: !xP) -> !xR {
  // expected-error @+1 {{'piper.relabel' op expected result 0 to be partial on axis 'tp', got replicated}}
  %0 = relabel %x : !xP -> !xR
  return %0 : !xR
}

// -----

// A packed gradient.

!fR = tensor<16xf32, #piper.layout<tp = replicated>>
!xS = tensor<4x4xf32, #piper.layout<tp = varying>>
piper.mesh @mesh [tp = 2 auto]
piper.state @w parameter : tensor<4x4xf32>
piper.bucket @w$b [@w] value : !fR grad : !fR
piper.chunk @a.0$F pass = F () {
  return
}
piper.chunk @a.0$B pass = B of @a.0$F (%x: !xS) -> !fR {
  // expected-error @+1 {{'piper.pack' op expected a gradient of @w that is replicated on axis 'tp', as the state is, got varying}}
  %0 = pack @w$b %x : !xS -> !fR
  return %0 : !fR
}

// -----

// What a step reports.

!sP = tensor<f32, #piper.layout<tp = partial>>
!sR = tensor<f32, #piper.layout<tp = replicated>>
piper.mesh @mesh [tp = 2 auto]
piper.chunk @a.0$F pass = F (%s: !sP) -> !sP {
  return %s : !sP
}
piper.step @train phase = bucketed mesh = @mesh inputs ["s"] dims [-1] (%s: !sP) {
  %a = run @a.0$F(%s) : (!sP) -> !sP
  // expected-error @+1 {{'piper.output' op expected a value that is replicated on axis 'tp', got partial}}
  output "loss" %a : !sP
}
