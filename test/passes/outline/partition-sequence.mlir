// A step of which each of two ranks has a part of the sequence, four of eight positions.
// What sees one position at a time stays; attention gathers keys and values.

// RUN: piper-opt %s --piper-partition | FileCheck %s
// RUN: piper-opt %s --piper-partition --piper-outline-chunks | FileCheck %s --check-prefix=L2

!i = tensor<3x4xi64>
!p = tensor<12xi64>
!x = tensor<3x4x8xf32>
!r = tensor<12x8xf32>
!q = tensor<3x2x4x4xf32>
!l = tensor<3x2x4xf32>
!e = tensor<32x8xf32>
!w = tensor<8x8xf32>
piper.mesh @mesh [pp = 1 unrolled, dp = 2 manual, cp = 2 manual]
piper.state @embed parameter : !e
piper.state @k parameter : !w
piper.schedule @order axis = "pp" stages = 1 microbatches = 1 ["0F0 0B0"]
piper.strategy @strategy mesh = @mesh {
  piper.do.place <all> stages = 1 axis = "pp"
  piper.do.split microbatches = 1 dims = {ids = 0}
  piper.do.sequence axis = "cp" dims = {ids = 1}
  piper.do.replicate <all> axes = ["dp", "cp"] zero = 0 bucket = 25000000 reduce = "last"
  piper.do.order @order
}

// Where a rank is along the axis.
// CHECK: piper.state @cp$index constant
// CHECK-LABEL: piper.step @train
piper.step @train phase = captured mesh = @mesh inputs ["ids"] dims [0] (%ids: !i) {
  // CHECK: %[[INDEX:.*]] = read @cp$index : !i64_1
  %e = read @embed : !e
  %w = read @k : !w
  %t = tangent "loss" coeff 1.0 examples 6 -> tensor<f32>
  // Rows and positions joined to the rows of a product, and taken apart again.
  // CHECK-NOT: all_gather
  // CHECK: %[[X:.*]] = torch "aten.embedding.default"
  // CHECK: %[[Q:.*]] = torch "aten.transpose.int"
  %x = torch "aten.embedding.default"(%e, %ids) facts <pure, flops = 96, rule = "v w, a b -> a b w"> tag <"a.0" F> : (!e, !i) -> !x
  %qs = torch "aten.view.default"(%x, [3, 4, 2, 4]) facts <view, rule = "a b c -> a b c d; linear, 1.0 = a, 1.1 = b, 1.2 = c"> tag <"a.0" F> : (!x) -> tensor<3x4x2x4xf32>
  %q = torch "aten.transpose.int"(%qs, 1, 2) facts <view, strided, rule = "a b c d -> a c b d; linear"> tag <"a.0" F> : (tensor<3x4x2x4xf32>) -> !q
  %rows = torch "aten.view.default"(%x, [12, 8]) facts <view, rule = "a b c -> a c; linear, 1.1 = c"> tag <"a.0" F> : (!x) -> !r
  %made = torch "aten.mm.default"(%rows, %w) facts <pure, flops = 1536, heavy, rule = "m k, k n -> m n; sum k"> tag <"a.0" F> : (!r, !w) -> !r
  %apart = torch "aten.view.default"(%made, [3, 4, 2, 4]) facts <view, rule = "a b -> a c b d; linear, 1.0 = a, 1.2 = b"> tag <"a.0" F> : (!r) -> tensor<3x4x2x4xf32>
  // CHECK: %[[K:.*]] = torch "aten.transpose.int"
  %k = torch "aten.transpose.int"(%apart, 1, 2) facts <view, strided, rule = "a b c d -> a c b d; linear"> tag <"a.0" F> : (tensor<3x4x2x4xf32>) -> !q
  // What several positions are needed of is gathered.
  // CHECK: %[[KEYS:.*]] = all_gather %[[K]] dim 2 over ["cp"] as "a.0 keys" on @cp {{.*}} : !f32_3x2x4x4 -> !f32_3x2x8x4
  // CHECK: %[[VALUES:.*]] = all_gather %[[Q]] dim 2 over ["cp"] as "a.0 values" on @cp {{.*}} : !f32_3x2x4x4 -> !f32_3x2x8x4
  // CHECK: %[[A:.*]]:2 = torch "piper.attention_part.default"(%[[Q]], %[[KEYS]], %[[VALUES]], %[[INDEX]], true, 5.{{0*}}e-01, 2)
  // CHECK-SAME: {primals = {{\[\[}}0], []]}
  // CHECK-SAME: (!f32_3x2x4x4, !f32_3x2x8x4, !f32_3x2x8x4, !i64_1) -> (!f32_3x2x4x4, !f32_3x2x4)
  %a, %lse = torch "piper.attention.default"(%q, %k, %q, none, true, 0.5, 0) facts <pure, flops = 1536, heavy, rule = "b h s d, b h t d, b h t e -> b h u e, b h u"> tag <"a.0" F> {primals = [[0], []]} : (!q, !q, !q) -> (!q, !l)
  %l = torch "aten.sum.default"(%a) facts <pure, flops = 96, rule = "a b c d -> ; linear, sum a, sum b, sum c, sum d"> tag <"a.0" F> : (!q) -> tensor<f32>
  output "loss" %l scale %t : tensor<f32>, tensor<f32>
  %da = torch "aten.expand.default"(%t, [3, 2, 4, 4]) facts <view, strided, rule = " -> a b c d; linear, 1.0 = a, 1.1 = b, 1.2 = c, 1.3 = d"> tag <"a.0" B> : (tensor<f32>) -> !q
  %g = torch "aten.mul.Tensor"(%da, %a) facts <pure, flops = 96, rule = "a b c d, a b c d -> a b c d"> tag <"a.0" B> : (!q, !q) -> !q
  // Backward they are gathered again, and the terms of their gradients are summed to parts:
  // those are no cotangents of what a rank has.
  // CHECK: %[[KEYS:.*]] = all_gather %[[K]] dim 2 over ["cp"]
  // CHECK: %[[VALUES:.*]] = all_gather %[[Q]] dim 2 over ["cp"]
  // CHECK: %[[D:.*]]:3 = torch "piper.attention_part_backward.default"({{.*}}, %[[Q]], %[[KEYS]], %[[VALUES]], %[[A]]#0, %[[A]]#1, %[[INDEX]], true, 5.{{0*}}e-01, 2)
  // CHECK-SAME: {cotangents = {{\[\[}}1], [], []]}
  // CHECK: %[[DK:.*]] = reduce_scatter %[[D]]#1 dim 2 over ["cp"] as "a.0 keys" on @cp {{.*}} : !f32_3x2x8x4 -> !f32_3x2x4x4
  // CHECK: %[[DV:.*]] = reduce_scatter %[[D]]#2 dim 2 over ["cp"] as "a.0 values" on @cp {{.*}} : !f32_3x2x8x4 -> !f32_3x2x4x4
  %dq, %dk, %dv = torch "piper.attention_backward.default"(%g, %q, %k, %q, %a, %lse, none, none, true, 0.5, 0) facts <pure, flops = 3840, heavy, rule = "b h s e, b h s d, b h t d, b h t e, b h s e, b h s -> b h u d, b h w d, b h w e"> tag <"a.0" B> {cotangents = [[1], [2], []]} : (!q, !q, !q, !q, !q, !l) -> (!q, !q, !q)
  // CHECK: torch "aten.add.Tensor"(%[[D]]#0, %[[DV]])
  %dqv = torch "aten.add.Tensor"(%dq, %dv) facts <pure, flops = 96, rule = "a b c d, a b c d -> a b c d; linear"> tag <"a.0" B> : (!q, !q) -> !q
  // CHECK: torch "aten.transpose.int"(%[[DK]], 1, 2)
  %dkt = torch "aten.transpose.int"(%dk, 1, 2) facts <view, strided, rule = "a b c d -> a c b d; linear"> tag <"a.0" B> : (!q) -> tensor<3x4x2x4xf32>
  %drows = torch "aten.clone.default"(%dkt) facts <pure, rule = "a b c d -> a b c d; linear"> tag <"a.0" B> : (tensor<3x4x2x4xf32>) -> tensor<3x4x2x4xf32>
  %dmade = torch "aten.view.default"(%drows, [12, 8]) facts <view, rule = "a b c d -> a c; linear, 1.1 = c"> tag <"a.0" B> : (tensor<3x4x2x4xf32>) -> !r
  %rowst = torch "aten.t.default"(%rows) facts <view, strided, rule = "a b -> b a; linear"> tag <"a.0" B> : (!r) -> tensor<8x12xf32>
  // A gradient of states is summed over the ranks later, as with any data axis.
  // CHECK: grad @k
  %dw = torch "aten.mm.default"(%rowst, %dmade) facts <pure, flops = 1536, heavy, rule = "m k, k n -> m n; sum k"> tag <"a.0" B> : (tensor<8x12xf32>, !r) -> !w
  grad @k %dw tag <"a.0" B> : !w
  %dqt = torch "aten.transpose.int"(%dqv, 1, 2) facts <view, strided, rule = "a b c d -> a c b d; linear"> tag <"a.0" B> : (!q) -> tensor<3x4x2x4xf32>
  %dqc = torch "aten.clone.default"(%dqt) facts <pure, rule = "a b c d -> a b c d; linear"> tag <"a.0" B> : (tensor<3x4x2x4xf32>) -> tensor<3x4x2x4xf32>
  %dx = torch "aten.view.default"(%dqc, [3, 4, 8]) facts <view, rule = "a b c d -> a b c; linear, 1.0 = a, 1.1 = b, 1.2 = c"> tag <"a.0" B> : (tensor<3x4x2x4xf32>) -> !x
  // CHECK-NOT: all_gather
  // CHECK-NOT: all_reduce
  // CHECK: grad @embed
  %de = torch "aten.embedding_dense_backward.default"(%dx, %ids, 32, -1, false) facts <pure, flops = 256, rule = "a b w, a b -> v w; sum a, sum b"> tag <"a.0" B> : (!x, !i) -> !e
  grad @embed %de tag <"a.0" B> : !e
}

// A chunk is cut where ranks exchange.
// L2: %[[F:.*]]:{{.}} = run @a.0$F(
// L2: all_gather {{.*}} as "a.0 keys"
// L2: all_gather {{.*}} as "a.0 values"
// L2: run @a.0$F1(
// L2: all_gather {{.*}} as "a.0 keys"
// L2: all_gather {{.*}} as "a.0 values"
// L2: run @a.0$B{{.*}}(
// L2: reduce_scatter {{.*}} as "a.0 keys"
// L2: reduce_scatter {{.*}} as "a.0 values"
// L2: run @a.0$B{{.*}}(
