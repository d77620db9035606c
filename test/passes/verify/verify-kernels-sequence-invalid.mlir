// Along a manual axis ranks have parts of the sequence from inputs on: what kernels make of them.
// RUN: piper-opt %s -split-input-file -verify-diagnostics --piper-verify

// Nothing is wrong: positions are joined with the batch, and split off again; what is filled with one
// number, or repeated, is as long as a part; keys are gathered, and their gradients are scattered;
// of weights and the loss ranks have terms.

!i = tensor<2x4xi64>
!x = tensor<2x4x8xf32>
!r = tensor<8x8xf32>
!q = tensor<2x1x4x8xf32>
!k = tensor<2x1x8x8xf32>
!l = tensor<2x1x4xf32>
!w = tensor<8x8xf32>
!s = tensor<f32>
!n = tensor<1xi64>
piper.mesh @mesh [cp = 2 manual]
piper.stream @compute
piper.stream @cp
piper.state @cp$index constant : tensor<2xi64> layout <cp = shard(0)>
piper.state @table parameter : !w
piper.state @w parameter : !w
piper.strategy @strategy mesh = @mesh {
  piper.do.sequence axis = "cp" dims = {ids = 1}
}
piper.kernel @project(%t: !w, %i: !i, %w: !w) -> (!q, !r) {
  %0 = torch "aten.embedding.default"(%t, %i) facts <pure, rule = "v w, a b -> a b w"> : (!w, !i) -> !x
  %1 = torch "aten.full.default"([2, 4, 8], 1) facts <pure> : () -> !x
  %2 = torch "aten.mul.Tensor"(%0, %1) facts <pure, rule = "a b c, a b c -> a b c"> : (!x, !x) -> !x
  %3 = torch "aten.view.default"(%2, [8, 8]) facts <view, rule = "a b c -> a c; linear, 1.0 = a, 1.1 = c"> : (!x) -> !r
  %4 = torch "aten.mm.default"(%3, %w) facts <pure, rule = "m k, k n -> m n; sum k"> : (!r, !w) -> !r
  %5 = torch "aten.view.default"(%4, [2, 4, 8]) facts <view, rule = "a b -> a d b; linear"> : (!r) -> !x
  %6 = torch "aten.unsqueeze.default"(%5, 1) facts <view, rule = "a b c -> a 1 b c; linear"> : (!x) -> !q
  %7 = torch "aten.clone.default"(%6) facts <pure, rule = "a b c d -> a b c d; linear"> : (!q) -> !q
  return %7, %4 : !q, !r
}
piper.kernel @attend(%q: !q, %k: !k, %n: !n) -> (!q, !l, !s) {
  %0:2 = torch "piper.attention_part.default"(%q, %k, %k, %n, true, 1.0, 2) facts <pure, rule = "b h s d, b h t d, b h t e, 1 -> b h s e, b h s; s at 3"> : (!q, !k, !k, !n) -> (!q, !l)
  %1 = torch "aten.sum.default"(%0#0) facts <pure, rule = "a b c d -> ; linear, sum a, sum b, sum c, sum d"> : (!q) -> !s
  return %0#0, %0#1, %1 : !q, !l, !s
}
piper.kernel @attend_backward(%q: !q, %k: !k, %l: !l, %n: !n) -> (!q, !k, !k) {
  %0:3 = torch "piper.attention_part_backward.default"(%q, %q, %k, %k, %q, %l, %n, true, 1.0, 2) facts <pure, rule = "b h s e, b h s d, b h t d, b h t e, b h s e, b h s, 1 -> b h s d, b h t d, b h t e; sum s, s at 6"> : (!q, !q, !k, !k, !q, !l, !n) -> (!q, !k, !k)
  return %0#0, %0#1, %0#2 : !q, !k, !k
}
piper.kernel @weight(%r: !r, %q: !q) -> !w {
  %0 = torch "aten.view.default"(%q, [8, 8]) facts <view, rule = "a b c d -> a d; linear, 1.0 = a, 1.1 = d"> : (!q) -> !r
  %1 = torch "aten.t.default"(%r) facts <view, rule = "a b -> b a; linear"> : (!r) -> !r
  %2 = torch "aten.mm.default"(%1, %0) facts <pure, rule = "m k, k n -> m n; sum k"> : (!r, !r) -> !w
  return %2 : !w
}
piper.chunk @a.0$F pass = F (%i: !i) -> (!q, !r) {
  %t = read @table : !w
  %w = read @w : !w
  %0:2 = launch @project(%t, %i, %w) on @compute : (!w, !i, !w) -> (!q, !r)
  return %0#0, %0#1 : !q, !r
}
piper.chunk @a.0$F1 pass = F (%q: !q, %k: !k) -> (!l, !s) {
  %n = read @cp$index : !n
  %0:3 = launch @attend(%q, %k, %n) on @compute : (!q, !k, !n) -> (!q, !l, !s)
  return %0#1, %0#2 : !l, !s
}
piper.chunk @a.0$B pass = B of @a.0$F1 (%q: !q, %k: !k, %l: !l) -> (!q, !k) {
  %n = read @cp$index : !n
  %0:3 = launch @attend_backward(%q, %k, %l, %n) on @compute : (!q, !k, !l, !n) -> (!q, !k, !k)
  return %0#0, %0#1 : !q, !k
}
piper.chunk @a.0$B1 pass = B of @a.0$F (%r: !r, %dq: !q) {
  %0 = launch @weight(%r, %dq) on @compute : (!r, !q) -> !w
  grad @w %0 : !w
  return
}
piper.step @train phase = outlined mesh = @mesh inputs ["ids"] dims [0] axes ["cp"] (%i: !i) {
  %a:2 = run @a.0$F(%i) : (!i) -> (!q, !r)
  %k = all_gather %a#0 dim 2 over ["cp"] as "a.0 keys" on @cp : !q -> !k
  %b:2 = run @a.0$F1(%a#0, %k) : (!q, !k) -> (!l, !s)
  %c:2 = run @a.0$B(%a#0, %k, %b#0) : (!q, !k, !l) -> (!q, !k)
  %dk = reduce_scatter %c#1 dim 2 over ["cp"] as "a.0 keys" on @cp : !k -> !q
  run @a.0$B1(%a#1, %dk) : (!r, !q) -> ()
  output "loss" %b#1 : !s
}

// -----

// An op that a pass has put into a kernel sees several positions.

!x = tensor<2x4xf32>
piper.mesh @mesh [cp = 2 manual]
piper.stream @compute
piper.strategy @strategy mesh = @mesh {
  piper.do.sequence axis = "cp" dims = {x = 1}
}
piper.kernel @softmax(%x: !x) -> !x {
  // expected-error @+1 {{aten._softmax.default expected operands on axis 'cp' that go together by its rule "a b -> a c", got shard(1)}}
  %0 = torch "aten._softmax.default"(%x, 1, false) facts <pure, rule = "a b -> a c"> : (!x) -> !x
  return %0 : !x
}
piper.chunk @a.0$F pass = F (%x: !x) -> !x {
  %0 = launch @softmax(%x) on @compute : (!x) -> !x
  // expected-note @+1 {{so it is not known what ranks hold of result 0 of the chunk here}}
  return %0 : !x
}
piper.step @train phase = outlined mesh = @mesh inputs ["x"] dims [0] axes ["cp"] (%x: !x) {
  %a = run @a.0$F(%x) : (!x) -> !x
}

// -----

// Positions joined with the batch are no part of rows in a row.

!x = tensor<2x4xf32>
piper.mesh @mesh [cp = 2 manual]
piper.stream @compute
piper.strategy @strategy mesh = @mesh {
  piper.do.sequence axis = "cp" dims = {x = 1}
}
piper.kernel @rows(%x: !x) -> tensor<8xf32> {
  %0 = torch "aten.view.default"(%x, [8]) facts <view, rule = "a b -> a; linear, 1.0 = a"> : (!x) -> tensor<8xf32>
  // expected-error @+1 {{mine.op.default expected operands on axis 'cp' that are replicated, as it has no rule, got shard(0) by runs of 4}}
  %1 = torch "mine.op.default"(%0) facts <pure> : (tensor<8xf32>) -> tensor<8xf32>
  return %1 : tensor<8xf32>
}
piper.chunk @a.0$F pass = F (%x: !x) -> tensor<8xf32> {
  %0 = launch @rows(%x) on @compute : (!x) -> tensor<8xf32>
  // expected-note @+1 {{so it is not known what ranks hold of result 0 of the chunk here}}
  return %0 : tensor<8xf32>
}
piper.step @train phase = outlined mesh = @mesh inputs ["x"] dims [0] axes ["cp"] (%x: !x) {
  %a = run @a.0$F(%x) : (!x) -> tensor<8xf32>
}

// -----

// A view cuts a part of the sequence apart.

!x = tensor<2x4xf32>
piper.mesh @mesh [cp = 2 manual]
piper.stream @compute
piper.strategy @strategy mesh = @mesh {
  piper.do.sequence axis = "cp" dims = {x = 1}
}
piper.kernel @halves(%x: !x) -> tensor<4x2xf32> {
  %0 = torch "aten.view.default"(%x, [8]) facts <view, rule = "a b -> a; linear, 1.0 = a"> : (!x) -> tensor<8xf32>
  // expected-error @+1 {{aten.view.default expected operands on axis 'cp' that go together by its rule "a -> a c; linear", got shard(0) by runs of 4}}
  %1 = torch "aten.view.default"(%0, [4, 2]) facts <view, rule = "a -> a c; linear"> : (tensor<8xf32>) -> tensor<4x2xf32>
  %2 = torch "aten.clone.default"(%1) facts <pure, rule = "a b -> a b; linear"> : (tensor<4x2xf32>) -> tensor<4x2xf32>
  return %2 : tensor<4x2xf32>
}
piper.chunk @a.0$F pass = F (%x: !x) -> tensor<4x2xf32> {
  %0 = launch @halves(%x) on @compute : (!x) -> tensor<4x2xf32>
  // expected-note @+1 {{so it is not known what ranks hold of result 0 of the chunk here}}
  return %0 : tensor<4x2xf32>
}
piper.step @train phase = outlined mesh = @mesh inputs ["x"] dims [0] axes ["cp"] (%x: !x) {
  %a = run @a.0$F(%x) : (!x) -> tensor<4x2xf32>
}

// -----

// A gradient that is the same on all ranks would be added up as often.

!w = tensor<4xf32>
piper.mesh @mesh [cp = 2 manual]
piper.stream @compute
piper.state @w parameter : !w
piper.strategy @strategy mesh = @mesh {
  piper.do.sequence axis = "cp" dims = {x = 1}
}
piper.kernel @double(%w: !w) -> !w {
  // expected-note @+1 {{aten.mul.Tensor makes it here}}
  %0 = torch "aten.mul.Tensor"(%w, 2.0) facts <pure, rule = "a -> a; linear"> : (!w) -> !w
  return %0 : !w
}
piper.chunk @a.0$F pass = F () { return }
piper.chunk @a.0$B pass = B of @a.0$F () {
  %w = read @w : !w
  %0 = launch @double(%w) on @compute : (!w) -> !w
  // expected-error @+1 {{'piper.grad' op expected a gradient of @w that is partial on axis 'cp', the dual of the state's kind, got replicated}}
  grad @w %0 : !w
  return
}
piper.step @train phase = outlined mesh = @mesh inputs ["x"] dims [0] axes ["cp"] (%x: tensor<2x4xf32>) {
  run @a.0$F() : () -> ()
  run @a.0$B() : () -> ()
}

// -----

// What is reported is a sum, or the same on all ranks.

!x = tensor<4xf32>
piper.mesh @mesh [cp = 2 manual]
piper.stream @compute
piper.strategy @strategy mesh = @mesh {
  piper.do.sequence axis = "cp" dims = {x = 0}
}
piper.kernel @relu(%x: !x) -> !x {
  // expected-note @+1 {{aten.relu.default makes it here}}
  %0 = torch "aten.relu.default"(%x) facts <pure, rule = "a -> a"> : (!x) -> !x
  return %0 : !x
}
piper.chunk @a.0$F pass = F (%x: !x) -> !x {
  %0 = launch @relu(%x) on @compute : (!x) -> !x
  return %0 : !x
}
piper.step @train phase = outlined mesh = @mesh inputs ["x"] dims [0] axes ["cp"] (%x: !x) {
  %a = run @a.0$F(%x) : (!x) -> !x
  // expected-error @+1 {{'piper.output' op expected a value that is partial on axis 'cp', got shard(0)}}
  output "x" %a : !x
}

// -----

// Nothing is wrong with rows of a rank's own tokens, which are in an order of their own until they
// are sums of tokens again; with those of other tokens nobody knows what they are.

!x = tensor<2x4xf32>
!t = tensor<8x1xf32>
!i = tensor<8x1xi64>
!j = tensor<2x4xi64>
!o = tensor<8xi64>
!c = tensor<1x4xi64>
!w = tensor<4x1x1xf32>
piper.mesh @mesh [cp = 2 manual]
piper.stream @compute
piper.state @w parameter : !w
piper.strategy @strategy mesh = @mesh {
  piper.do.sequence axis = "cp" dims = {x = 1, j = 1}
}
piper.kernel @experts(%x: !x, %j: !j, %w: !w) -> (!x, !t, !o, !c, !w) {
  %i = torch "aten.view.default"(%j, [8, 1]) facts <view, rule = "a b -> a 1; linear"> : (!j) -> !i
  %t = torch "aten.view.default"(%x, [8, 1]) facts <view, rule = "a b -> a 1; linear"> : (!x) -> !t
  %o, %c = torch "piper.moe_sort.default"(%i, 4, 1) facts <pure, rule = "t k -> n, r e; 2 = r"> : (!i) -> (!o, !c)
  %0 = torch "piper.moe_permute.default"(%t, %o, 1) facts <pure, rule = "t d, n -> n d"> : (!t, !o) -> !t
  %1 = torch "piper.moe_linear.default"(%0, %w, %c) facts <pure, rule = "m i, e o i, r e -> m o; sum i"> : (!t, !w, !c) -> !t
  %2 = torch "piper.moe_linear_weight.default"(%1, %0, %c) facts <pure, rule = "m o, m i, r e -> e o i"> : (!t, !t, !c) -> !w
  %3 = torch "piper.moe_permute_backward.default"(%1, %o, 1) facts <pure, rule = "n d, n -> t d"> : (!t, !o) -> !t
  %4 = torch "aten.view.default"(%3, [2, 4]) facts <view, rule = "a b -> a c; linear"> : (!t) -> !x
  %5 = torch "aten.new_empty.default"(%x, [2, 4]) facts <pure, rule = "a b -> c d; 1.0 = c, 1.1 = d"> : (!x) -> !x
  %6 = torch "aten.add.Tensor"(%4, %5) facts <pure, rule = "a b, a b -> a b; linear"> : (!x, !x) -> !x
  return %6, %1, %o, %c, %2 : !x, !t, !o, !c, !w
}
piper.kernel @mixed(%x: !x, %rows: !t) -> !t {
  %t = torch "aten.view.default"(%x, [8, 1]) facts <view, rule = "a b -> a 1; linear"> : (!x) -> !t
  // expected-error @+1 {{aten.add.Tensor expected operands on axis 'cp' that go together by its rule "a b, a b -> a b; linear", got shard(0) by runs of 4, shard(0) in an order of rows}}
  %0 = torch "aten.add.Tensor"(%t, %rows) facts <pure, rule = "a b, a b -> a b; linear"> : (!t, !t) -> !t
  return %0 : !t
}
piper.chunk @a.0$F pass = F (%x: !x, %j: !j) -> (!x, !t, !o, !c) {
  %w = read @w : !w
  %0:5 = launch @experts(%x, %j, %w) on @compute : (!x, !j, !w) -> (!x, !t, !o, !c, !w)
  grad @w %0#4 : !w
  return %0#0, %0#1, %0#2, %0#3 : !x, !t, !o, !c
}
piper.chunk @b.0$F pass = F (%x: !x, %rows: !t) -> !t {
  %0 = launch @mixed(%x, %rows) on @compute : (!x, !t) -> !t
  // expected-note @+1 {{so it is not known what ranks hold of result 0 of the chunk here}}
  return %0 : !t
}
piper.step @train phase = outlined mesh = @mesh inputs ["x", "j"] dims [0, 0] axes ["cp"] (%x: !x, %j: !j) {
  %a:4 = run @a.0$F(%x, %j) : (!x, !j) -> (!x, !t, !o, !c)
  // What is reported of counts is a sum.
  output "counts" %a#3 : !c
  %b = run @b.0$F(%a#0, %a#1) : (!x, !t) -> !t
}

// -----

// Rows by an order of other tokens.

!t = tensor<8x1xf32>
!i = tensor<8x1xi64>
!o = tensor<8xi64>
!c = tensor<1x4xi64>
piper.mesh @mesh [cp = 2 manual]
piper.stream @compute
piper.strategy @strategy mesh = @mesh {
  piper.do.sequence axis = "cp" dims = {i = 0}
}
piper.kernel @permute(%t: !t, %i: !i) -> !t {
  %o, %c = torch "piper.moe_sort.default"(%i, 4, 1) facts <pure, rule = "t k -> n, r e; 2 = r"> : (!i) -> (!o, !c)
  // expected-error @+1 {{piper.moe_permute.default expected operands on axis 'cp' that go together by its rule "t d, n -> n d", got replicated, shard(0) in an order of rows}}
  %0 = torch "piper.moe_permute.default"(%t, %o, 1) facts <pure, rule = "t d, n -> n d"> : (!t, !o) -> !t
  return %0 : !t
}
piper.chunk @a.0$F pass = F (%t: !t, %i: !i) -> !t {
  %0 = launch @permute(%t, %i) on @compute : (!t, !i) -> !t
  // expected-note @+1 {{so it is not known what ranks hold of result 0 of the chunk here}}
  return %0 : !t
}
piper.step @train phase = outlined mesh = @mesh inputs ["t", "i"] dims [0, 0] axes ["cp"] (%t: !t, %i: !i) {
  %a = run @a.0$F(%t, %i) : (!t, !i) -> !t
}

// -----

// Nothing is wrong: the gradient of a sum of losses takes how many labels count only to divide by
// it, also where ranks along an auto axis have parts of the classes.

!x = tensor<8x2xf32>
!y = tensor<8xi64>
!s = tensor<f32>
!n = tensor<1xi64>
piper.mesh @mesh [cp = 2 manual]
piper.stream @compute
piper.strategy @strategy mesh = @mesh {
  piper.do.sequence axis = "cp" dims = {x = 0, y = 0}
}
piper.kernel @loss(%t: !s, %x: !x, %y: !y, %n: !n) -> (!s, !x) {
  %count = torch "aten.sum.default"(%x) facts <pure, rule = "a b -> ; linear, sum a, sum b"> : (!x) -> !s
  %0 = torch "piper.nll_loss_backward_part.default"(%t, %x, %y, %count, %n) facts <pure, rule = ", a c, a, , 1 -> a c; c at 4"> : (!s, !x, !y, !s, !n) -> !x
  return %count, %0 : !s, !x
}
piper.chunk @a.0$F pass = F (%t: !s, %x: !x, %y: !y, %n: !n) -> (!s, !x) {
  %0:2 = launch @loss(%t, %x, %y, %n) on @compute : (!s, !x, !y, !n) -> (!s, !x)
  return %0#0, %0#1 : !s, !x
}
piper.step @train phase = outlined mesh = @mesh inputs ["t", "x", "y", "n"] dims [-1, 0, 0, -1] axes ["cp"] (%t: !s, %x: !x, %y: !y, %n: !n) {
  %a:2 = run @a.0$F(%t, %x, %y, %n) : (!s, !x, !y, !n) -> (!s, !x)
  output "count" %a#0 : !s
}
