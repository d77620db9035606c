// What ranks along an auto axis hold of each value, by the rules of ops.
// RUN: piper-opt %s -split-input-file --piper-assign-kinds --piper-verify | FileCheck %s
// RUN: piper-opt %s -split-input-file --piper-assign-kinds --piper-form-buckets --piper-verify | FileCheck %s --check-prefix=BUCKETS

// A product by some outputs and one by some inputs, forward and backward: a nonlinear op keeps parts,
// the second product makes terms, which are summed. Beside it ranks along dp have batches of their
// own.

!x = tensor<4x8xf32>
!h = tensor<4x4xf32>
!u = tensor<8x4xf32>
!d = tensor<4x8xf32>
!s = tensor<f32>
piper.mesh @mesh [dp = 2 manual, tp = 2 auto]
piper.stream @compute
piper.stream @tp
piper.state @up parameter : tensor<8x8xf32> layout <dp = replicated, tp = shard(1)>
piper.state @down parameter : tensor<8x8xf32> layout <dp = replicated, tp = shard(0)>
piper.state @bias parameter : tensor<8xf32>
piper.kernel @mlp(%x: !x, %u: !u, %d: !d) -> (!h, !x) {
  %0 = torch "aten.mm.default"(%x, %u) facts <pure, rule = "m k, k n -> m n; sum k"> : (!x, !u) -> !h
  %1 = torch "aten.relu.default"(%0) facts <pure, rule = "a b -> a b"> : (!h) -> !h
  %2 = torch "aten.mm.default"(%1, %d) facts <pure, rule = "m k, k n -> m n; sum k"> : (!h, !d) -> !x
  return %1, %2 : !h, !x
}
piper.kernel @loss(%x: !x, %b: tensor<8xf32>) -> !s {
  %0 = torch "aten.add.Tensor"(%x, %b) facts <pure, rule = "a b, b -> a b; linear"> : (!x, tensor<8xf32>) -> !x
  %1 = torch "aten.sum.default"(%0) facts <pure, rule = "a b -> ; linear, sum a, sum b"> : (!x) -> !s
  return %1 : !s
}
piper.kernel @loss_backward(%t: !s) -> (!x, tensor<8xf32>) {
  %0 = torch "aten.expand.default"(%t, [4, 8]) facts <view, rule = " -> a b; linear, 1.0 = a, 1.1 = b"> : (!s) -> !x
  %1 = torch "aten.clone.default"(%0) facts <pure, rule = "a b -> a b; linear"> : (!x) -> !x
  %2 = torch "aten.sum.dim_IntList"(%1, [0]) facts <pure, rule = "a b -> b; linear, sum a"> : (!x) -> tensor<8xf32>
  return %1, %2 : !x, tensor<8xf32>
}
piper.kernel @mlp_backward(%dy: !x, %x: !x, %h: !h, %u: !u, %d: !d) -> (!d, !u, !x) {
  %0 = torch "aten.t.default"(%d) facts <view, rule = "a b -> b a; linear"> : (!d) -> !u
  %1 = torch "aten.mm.default"(%dy, %0) facts <pure, rule = "m k, k n -> m n; sum k"> : (!x, !u) -> !h
  %2 = torch "aten.t.default"(%h) facts <view, rule = "a b -> b a; linear"> : (!h) -> !h
  %3 = torch "aten.mm.default"(%2, %dy) facts <pure, rule = "m k, k n -> m n; sum k"> : (!h, !x) -> !d
  %4 = torch "aten.threshold_backward.default"(%1, %h, 0) facts <pure, rule = "a b, a b -> a b"> : (!h, !h) -> !h
  %5 = torch "aten.t.default"(%x) facts <view, rule = "a b -> b a; linear"> : (!x) -> !u
  %6 = torch "aten.mm.default"(%5, %4) facts <pure, rule = "m k, k n -> m n; sum k"> : (!u, !h) -> !u
  %7 = torch "aten.t.default"(%u) facts <view, rule = "a b -> b a; linear"> : (!u) -> !d
  %8 = torch "aten.mm.default"(%4, %7) facts <pure, rule = "m k, k n -> m n; sum k"> : (!h, !d) -> !x
  return %3, %6, %8 : !d, !u, !x
}
// CHECK-LABEL: piper.chunk @a.0$F pass = F
// CHECK-SAME: (%{{.*}}: !f32_4x8_dpV_tpR{{.*}}) -> (!f32_4x4_dpV_tpS1, !f32_4x8_dpV_tpP)
piper.chunk @a.0$F pass = F (%x: !x) -> (!h, !x) {
  %u = read @up : !u
  %d = read @down : !d
  // CHECK: launch @mlp({{.*}} : (!f32_4x8_dpV_tpR, !f32_8x4_dpR_tpS1, !f32_4x8_dpR_tpS0) -> (!f32_4x4_dpV_tpS1, !f32_4x8_dpV_tpP)
  // BUCKETS: launch @mlp({{.*}} : (!f32_4x8_dpV_tpR, !f32_8x4_dpR_tpS1, !f32_4x8_dpR_tpS0) -> (!f32_4x4_dpV_tpS1, !f32_4x8_dpV_tpP)
  %0:2 = launch @mlp(%x, %u, %d) on @compute : (!x, !u, !d) -> (!h, !x)
  return %0#0, %0#1 : !h, !x
}
// A rank's loss is partial on the data axis alone.
// CHECK-LABEL: piper.chunk @b.0$F pass = F
// CHECK-SAME: -> !f32_scalar_dpP_tpR
piper.chunk @b.0$F pass = F (%x: !x) -> !s {
  %b = read @bias : tensor<8xf32>
  %0 = launch @loss(%x, %b) on @compute : (!x, tensor<8xf32>) -> !s
  return %0 : !s
}
piper.chunk @b.0$B pass = B of @b.0$F (%t: !s) -> !x {
  %0:2 = launch @loss_backward(%t) on @compute : (!s) -> (!x, tensor<8xf32>)
  grad @bias %0#1 : tensor<8xf32>
  return %0#0 : !x
}
// CHECK-LABEL: piper.chunk @a.0$B pass = B
// CHECK-SAME: -> !f32_4x8_dpV_tpP
piper.chunk @a.0$B pass = B of @a.0$F (%dy: !x, %x: !x, %h: !h) -> !x {
  %u = read @up : !u
  %d = read @down : !d
  %0:3 = launch @mlp_backward(%dy, %x, %h, %u, %d) on @compute : (!x, !x, !h, !u, !d) -> (!d, !u, !x)
  // CHECK: grad @down %{{.*}} : !f32_4x8_dpV_tpS0
  // CHECK: grad @up %{{.*}} : !f32_8x4_dpV_tpS1
  // A bucket of parts, one behind the other, is no part of anything.
  // BUCKETS: pack @down$b %{{.*}} : !f32_4x8_dpV_tpS0 -> !f32_32_dpP_tpV
  grad @down %0#0 : !d
  grad @up %0#1 : !u
  return %0#2 : !x
}
// CHECK-LABEL: piper.step @train
// CHECK: all_reduce %{{.*}} : !f32_4x8_dpV_tpP -> !f32_4x8_dpV_tpR
// CHECK: all_reduce %{{.*}} : !f32_4x8_dpV_tpP -> !f32_4x8_dpV_tpR
piper.step @train phase = outlined mesh = @mesh inputs ["x"] dims [0] axes ["dp"] (%x: !x) {
  %a:2 = run @a.0$F(%x) : (!x) -> (!h, !x)
  %y = all_reduce %a#1 over ["tp"] as "a.0 reduce" on @tp : !x -> !x
  %l = run @b.0$F(%y) : (!x) -> !s
  %t = tangent "loss" coeff 1.0 examples 4 -> !s
  %dy = run @b.0$B(%t) : (!s) -> !x
  %da = run @a.0$B(%dy, %x, %a#0) : (!x, !x, !h) -> !x
  %dx = all_reduce %da over ["tp"] as "a.0 reduce" on @tp : !x -> !x
  output "loss" %l scale %t : !s, !s
}

// -----

// Ops that take parts know which by a rank's index. Of a loss the number of labels is the same on all
// ranks, also where they have parts of the classes. What is linear in terms makes terms.

!x = tensor<4x8xf32>
!l = tensor<4x3xf32>
!i = tensor<4xi64>
!n = tensor<1xi64>
!s = tensor<f32>
piper.mesh @mesh [tp = 2 auto]
piper.stream @compute
piper.stream @tp
piper.state @tp$index constant : tensor<2xi64> layout <tp = shard(0)>
piper.state @table parameter : tensor<6x8xf32> layout <tp = shard(0)>
piper.kernel @embed(%t: tensor<3x8xf32>, %i: !i, %n: !n) -> (!x, !x) {
  %0 = torch "piper.embedding_part.default"(%t, %i, arg "index" = %n, arg "parts" = 2, arg "size" = 6) facts <pure, rule = "v w, a, 1 -> a w; sum v, v at 2"> : (tensor<3x8xf32>, !i, !n) -> !x
  %1 = torch "aten.add.Tensor"(%0, %0) facts <pure, rule = "a b, a b -> a b; linear"> : (!x, !x) -> !x
  return %0, %1 : !x, !x
}
piper.kernel @part(%x: !x, %n: !n) -> tensor<2x8xf32> {
  %0 = torch "piper.part.default"(%x, %n, 0, 2) facts <pure, rule = "d0 d1, 1 -> p d1; p at 1"> : (!x, !n) -> tensor<2x8xf32>
  return %0 : tensor<2x8xf32>
}
piper.kernel @loss(%x: !x, %t: tensor<3x8xf32>, %i: !i, %n: !n) -> (!s, !s) {
  %0 = torch "aten.t.default"(%t) facts <view, rule = "a b -> b a; linear"> : (tensor<3x8xf32>) -> tensor<8x3xf32>
  %1 = torch "aten.mm.default"(%x, %0) facts <pure, rule = "m k, k n -> m n; sum k"> : (!x, tensor<8x3xf32>) -> !l
  %2:2 = torch "piper.nll_loss_part.default"(%1, %i, #piper.const<"None">, 2, -100, arg "index" = %n, arg "parts" = 2, arg "size" = 6) facts <pure, rule = "a c, a, 1 -> , ; sum a, sum c but 1, c at 2"> : (!l, !i, !n) -> (!s, !s)
  return %2#0, %2#1 : !s, !s
}
// CHECK-LABEL: piper.chunk @a.0$F pass = F
// CHECK-SAME: -> (!f32_4x8_tpP, !f32_4x8_tpP)
piper.chunk @a.0$F pass = F (%i: !i) -> (!x, !x) {
  %t = read @table : tensor<3x8xf32>
  // CHECK: %[[INDEX:.*]] = read @tp$index : !i64_1_tpS0
  %n = read @tp$index : !n
  %0:2 = launch @embed(%t, %i, %n) on @compute : (tensor<3x8xf32>, !i, !n) -> (!x, !x)
  return %0#0, %0#1 : !x, !x
}
// CHECK-LABEL: piper.chunk @b.0$F pass = F
// CHECK-SAME: (%{{.*}}: !f32_4x8_tpR{{.*}}, %{{.*}}: !i64_4_tpR{{.*}}) -> (!f32_2x8_tpS0, !f32_scalar_tpP, !f32_scalar_tpR)
piper.chunk @b.0$F pass = F (%x: !x, %i: !i) -> (tensor<2x8xf32>, !s, !s) {
  %t = read @table : tensor<3x8xf32>
  %n = read @tp$index : !n
  %0 = launch @part(%x, %n) on @compute : (!x, !n) -> tensor<2x8xf32>
  %1:2 = launch @loss(%x, %t, %i, %n) on @compute : (!x, tensor<3x8xf32>, !i, !n) -> (!s, !s)
  return %0, %1#0, %1#1 : tensor<2x8xf32>, !s, !s
}
// CHECK-LABEL: piper.step @train
// CHECK: reduce_scatter %{{.*}} dim 0 {{.*}} : !f32_4x8_tpP -> !f32_2x8_tpS0
// CHECK: all_gather %{{.*}} dim 0 {{.*}} : !f32_2x8_tpS0 -> !f32_4x8_tpR
piper.step @train phase = outlined mesh = @mesh inputs ["ids"] dims [0] (%i: !i) {
  %a:2 = run @a.0$F(%i) : (!i) -> (!x, !x)
  %p = reduce_scatter %a#1 dim 0 over ["tp"] as "a.0 scatter" on @tp : !x -> tensor<2x8xf32>
  %x = all_gather %p dim 0 over ["tp"] as "a.0 gather" on @tp : tensor<2x8xf32> -> !x
  %b:3 = run @b.0$F(%x, %i) : (!x, !i) -> (tensor<2x8xf32>, !s, !s)
  %l = all_reduce %b#1 over ["tp"] as "b.0 reduce" on @tp : !s -> !s
  output "loss" %l : !s
}
