// Each of two ranks along `cp` has a part of the sequence, each of two along `tp` some heads.

// RUN: piper-opt %s -split-input-file --piper-shard --piper-partition | FileCheck %s

// Keys are gathered of a rank's own heads, fewer than there are of queries, and gradients of keys are
// summed of these: along `tp` nothing is exchanged but terms of the product behind.
!x = tensor<3x4x8xf32>
!r = tensor<12x8xf32>
!n = tensor<12x4xf32>
!h = tensor<3x4x4x2xf32>
!q = tensor<3x4x4x2xf32>
!hk = tensor<3x4x2x2xf32>
!k = tensor<3x2x4x2xf32>
!l = tensor<3x4x4xf32>
!w = tensor<8x8xf32>
!v = tensor<8x4xf32>
piper.mesh @mesh [cp = 2 manual, tp = 2 auto]
piper.state @q parameter : !w
piper.state @k parameter : !v
piper.state @o parameter : !w
piper.strategy @strategy mesh = @mesh {
  piper.do.sequence axis = "cp" dims = {x = 1}
  piper.do.shard <state = "[qk]"> axis = "tp" dim = 1
  piper.do.shard <state = "o"> axis = "tp" dim = 0
}
// CHECK-LABEL: piper.step @train
piper.step @train phase = captured mesh = @mesh inputs ["x"] dims [0] (%x: !x) {
  // CHECK: %[[INDEX:.*]] = read @cp$index
  %wq = read @q : !w
  %wk = read @k : !v
  %wo = read @o : !w
  %rows = torch "aten.view.default"(%x, [12, 8]) facts <view, rule = "a b c -> a c; linear, 1.1 = c"> tag <"a.0" F> : (!x) -> !r
  %mq = torch "aten.mm.default"(%rows, %wq) facts <pure, rule = "m k, k n -> m n; sum k"> tag <"a.0" F> : (!r, !w) -> !r
  %mk = torch "aten.mm.default"(%rows, %wk) facts <pure, rule = "m k, k n -> m n; sum k"> tag <"a.0" F> : (!r, !v) -> !n
  %hq = torch "aten.view.default"(%mq, [3, 4, 4, 2]) facts <view, rule = "a b -> a c b d; linear, 1.0 = a, 1.2 = b"> tag <"a.0" F> : (!r) -> !h
  %hk = torch "aten.view.default"(%mk, [3, 4, 2, 2]) facts <view, rule = "a b -> a c b d; linear, 1.0 = a, 1.2 = b"> tag <"a.0" F> : (!n) -> !hk
  // CHECK: %[[Q:.*]] = torch "aten.transpose.int"{{.*}} -> !f32_3x2x4x2
  // CHECK: %[[K:.*]] = torch "aten.transpose.int"{{.*}} -> !f32_3x1x4x2
  %q = torch "aten.transpose.int"(%hq, 1, 2) facts <view, strided, rule = "a b c d -> a c b d; linear"> tag <"a.0" F> : (!h) -> !q
  %k = torch "aten.transpose.int"(%hk, 1, 2) facts <view, strided, rule = "a b c d -> a c b d; linear"> tag <"a.0" F> : (!hk) -> !k
  // What is both is gathered once, by each pass.
  // CHECK: %[[KEYS:.*]] = all_gather %[[K]] dim 2 over ["cp"] as "a.0 keys" on @cp {{.*}} : !f32_3x1x4x2 -> !f32_3x1x8x2
  // CHECK: %[[A:.*]]:2 = torch "piper.attention_part.default"(%[[Q]], %[[KEYS]], %[[KEYS]], %[[INDEX]], true, 5.{{0*}}e-01, 2)
  // CHECK-SAME: (!f32_3x2x4x2, !f32_3x1x8x2, !f32_3x1x8x2, !i64_1) -> (!f32_3x2x4x2, !f32_3x2x4)
  %a, %lse = torch "piper.attention.default"(%q, %k, %k, none, true, 0.5, 0) facts <pure, rule = "b h s d, b h t d, b h t e -> b h u e, b h u"> tag <"a.0" F> : (!q, !k, !k) -> (!q, !l)
  %back = torch "aten.transpose.int"(%a, 1, 2) facts <view, strided, rule = "a b c d -> a c b d; linear"> tag <"a.0" F> : (!q) -> !h
  %made = torch "aten.clone.default"(%back) facts <pure, rule = "a b c d -> a b c d; linear"> tag <"a.0" F> : (!h) -> !h
  %flat = torch "aten.view.default"(%made, [12, 8]) facts <view, rule = "a b c d -> a c; linear, 1.0 = a, 1.1 = c"> tag <"a.0" F> : (!h) -> !r
  // CHECK: %[[Y:.*]] = torch "aten.mm.default"
  // CHECK-NEXT: %[[SUM:.*]] = all_reduce %[[Y]] over ["tp"]
  %y = torch "aten.mm.default"(%flat, %wo) facts <pure, rule = "m k, k n -> m n; sum k"> tag <"a.0" F> : (!r, !w) -> !r
  %z = torch "aten.relu.default"(%y) facts <pure, rule = "a b -> a b"> tag <"a.0" F> : (!r) -> !r
  output "z" %z : !r
  // CHECK: %[[KEYS:.*]] = all_gather %[[K]] dim 2 over ["cp"]
  // CHECK: %[[D:.*]]:3 = torch "piper.attention_part_backward.default"(%[[A]]#0, %[[Q]], %[[KEYS]], %[[KEYS]], %[[A]]#0, %[[A]]#1, %[[INDEX]], true, 5.{{0*}}e-01, 2)
  // CHECK-SAME: -> (!f32_3x2x4x2, !f32_3x1x8x2, !f32_3x1x8x2)
  // CHECK: reduce_scatter %[[D]]#1 dim 2 over ["cp"] as "a.0 keys" on @cp {{.*}} : !f32_3x1x8x2 -> !f32_3x1x4x2
  // CHECK: reduce_scatter %[[D]]#2 dim 2 over ["cp"] as "a.0 values" on @cp {{.*}} : !f32_3x1x8x2 -> !f32_3x1x4x2
  // CHECK-NOT: over ["tp"]
  // CHECK: grad @k %{{.*}} : !f32_8x2
  %dq, %dk, %dv = torch "piper.attention_backward.default"(%a, %q, %k, %k, %a, %lse, none, none, true, 0.5, 0) facts <pure, rule = "b h s e, b h s d, b h t d, b h t e, b h s e, b h s -> b h u d, b h w d, b h w e"> tag <"a.0" B> : (!q, !q, !k, !k, !q, !l) -> (!q, !k, !k)
  %dkv = torch "aten.add.Tensor"(%dk, %dv) facts <pure, rule = "a b c d, a b c d -> a b c d; linear"> tag <"a.0" B> : (!k, !k) -> !k
  %dkt = torch "aten.transpose.int"(%dkv, 1, 2) facts <view, strided, rule = "a b c d -> a c b d; linear"> tag <"a.0" B> : (!k) -> !hk
  %dkc = torch "aten.clone.default"(%dkt) facts <pure, rule = "a b c d -> a b c d; linear"> tag <"a.0" B> : (!hk) -> !hk
  %dmk = torch "aten.view.default"(%dkc, [12, 4]) facts <view, rule = "a b c d -> a c; linear, 1.0 = a, 1.1 = c"> tag <"a.0" B> : (!hk) -> !n
  %rt = torch "aten.t.default"(%rows) facts <view, strided, rule = "a b -> b a; linear"> tag <"a.0" B> : (!r) -> tensor<8x12xf32>
  %dwk = torch "aten.mm.default"(%rt, %dmk) facts <pure, rule = "m k, k n -> m n; sum k"> tag <"a.0" B> : (tensor<8x12xf32>, !n) -> !v
  grad @k %dwk tag <"a.0" B> : !v
}

// -----

// Positions that ranks along `tp` share out are gathered: those along `cp` tell by the size of their
// queries which they have.
!q = tensor<1x4x2x2xf32>
!w = tensor<2x2xf32>
piper.mesh @mesh [cp = 2 manual, tp = 2 auto]
piper.state @w parameter : !w
piper.strategy @strategy mesh = @mesh {
  piper.do.sequence axis = "cp" dims = {x = 2}
  piper.do.sequence axis = "tp" dims = {x = 2}
  piper.do.shard <state = "w"> axis = "tp" dim = 0
}
// CHECK-LABEL: piper.step @train
piper.step @train phase = captured mesh = @mesh inputs ["x"] dims [0] (%x: !q) {
  %w = read @w : !w
  // CHECK: %[[TERM:.*]] = torch "aten.linear.default"
  // CHECK: %[[PART:.*]] = reduce_scatter %[[TERM]] dim 2 over ["tp"]
  // CHECK: %[[WHOLE:.*]] = all_gather %[[PART]] dim 2 over ["tp"]
  // CHECK: torch "piper.attention_part.default"(%[[WHOLE]], %{{.*}} : (!f32_1x4x2x2, !f32_1x4x4x2, !f32_1x4x4x2, !i64_1) -> (!f32_1x4x2x2, !f32_1x4x2)
  %q = torch "aten.linear.default"(%x, %w) facts <pure, rule = "a b c k, k n -> a b c n; sum k"> tag <"a.0" F> : (!q, !w) -> !q
  %0:2 = torch "piper.attention.default"(%q, %q, %q, none, true, 1.0, 0) facts <pure, rule = "b h s d, b h t d, b h t e -> b h u e, b h u"> tag <"a.0" F> : (!q, !q, !q) -> (!q, tensor<1x4x2xf32>)
  output "y" %0#0 : !q
}
