// What ranks hold parts of is gathered where an op needs the whole, once for all that
// take it, and once more in the backward pass; weights are not.

// RUN: piper-opt %s --piper-shard --piper-partition | FileCheck %s

!x = tensor<6x8xf32>
!w = tensor<8x8xf32>
!h = tensor<6x4xf32>
piper.mesh @mesh [tp = 2 auto]
piper.state @fused parameter : !w
piper.state @next parameter : !w
piper.strategy @strategy mesh = @mesh {
  piper.do.shard <state = "*"> axis = "tp" dim = 1
}

// CHECK-LABEL: piper.step @train
piper.step @train phase = captured mesh = @mesh inputs ["x", "d"] dims [0, 0] (%x: !x, %d: !x) {
  // CHECK-DAG: %[[FUSED:.*]] = read @fused : !f32_8x4
  // CHECK-DAG: %[[NEXT:.*]] = read @next : !f32_8x4
  %fused = read @fused : !w
  %next = read @next : !w
  // CHECK: %[[PART:.*]] = torch "aten.mm.default"({{.*}}, %[[FUSED]]) {{.*}} -> !f32_6x4
  %0 = torch "aten.mm.default"(%x, %fused) facts <pure, rule = "m k, k n -> m n; sum k"> tag <"a.0" F> : (!x, !w) -> !x
  // Halves of the outputs are no parts of ranks.
  // CHECK: %[[WHOLE:.*]] = all_gather %[[PART]] dim 1 over ["tp"] as "a.0 gather" on @tp
  // CHECK: %[[SPLIT:.*]]:2 = torch "aten.split_with_sizes.default"(%[[WHOLE]], [4, 4], 1)
  %a, %b = torch "aten.split_with_sizes.default"(%0, [4, 4], 1) facts <view, rule = "a b -> a c, a d; linear"> tag <"a.0" F> : (!x) -> (!h, !h)
  // CHECK-NOT: all_gather
  // CHECK: torch "aten.mul.Tensor"(%[[SPLIT]]#0, %[[SPLIT]]#1)
  %1 = torch "aten.mul.Tensor"(%a, %b) facts <pure, rule = "a b, a b -> a b"> tag <"a.0" F> : (!h, !h) -> !h
  // CHECK: torch "aten._softmax.default"(%[[WHOLE]],
  %2 = torch "aten._softmax.default"(%0, 1, false) facts <pure, rule = "a c -> a d"> tag <"a.0" F> : (!x) -> !x
  %3 = torch "aten.cat.default"([%1, %1], 1) facts <pure, rule = "a c, a d -> a e; linear"> tag <"a.0" F> : (!h, !h) -> !x
  %4 = torch "aten.add.Tensor"(%2, %3) facts <pure, rule = "a b, a b -> a b; linear"> tag <"a.0" F> : (!x, !x) -> !x
  output "y" %4 : !x
  // Each half by its own result.
  // CHECK: %[[AGAIN:.*]] = all_gather %[[PART]] dim 1
  // CHECK: %[[SECOND:.*]]:2 = torch "aten.split_with_sizes.default"(%[[AGAIN]], [4, 4], 1) {{.*}} tag <"a.0" B>
  // CHECK: torch "aten.mul.Tensor"({{.*}}, %[[SECOND]]#1)
  %da, %db = torch "aten.split_with_sizes.default"(%d, [4, 4], 1) facts <view, rule = "a b -> a c, a d; linear"> tag <"a.0" B> : (!x) -> (!h, !h)
  %5 = torch "aten.mul.Tensor"(%da, %b) facts <pure, rule = "a b, a b -> a b"> tag <"a.0" B> : (!h, !h) -> !h
  // CHECK-NOT: all_gather
  // CHECK: torch "aten.mul.Tensor"({{.*}}, %{{.*}}#0)
  %6 = torch "aten.mul.Tensor"(%db, %a) facts <pure, rule = "a b, a b -> a b"> tag <"a.0" B> : (!h, !h) -> !h
  %7 = torch "aten.cat.default"([%5, %6], 1) facts <pure, rule = "a c, a d -> a e; linear"> tag <"a.0" B> : (!h, !h) -> !x
  // What is whole is cut where the gradient of a part is made.
  // CHECK: %[[CUT:.*]] = torch "piper.part.default"({{.*}}, 1, 2) {{.*}} : (!f32_6x8, !i64_1) -> !f32_6x4
  // CHECK: torch "aten.mm.default"({{.*}}, %[[CUT]]) {{.*}} -> !f32_8x4
  %8 = torch "aten.t.default"(%x) facts <view, rule = "a b -> b a; linear"> tag <"a.0" B> : (!x) -> tensor<8x6xf32>
  %9 = torch "aten.mm.default"(%8, %7) facts <pure, rule = "m k, k n -> m n; sum k"> tag <"a.0" B> : (tensor<8x6xf32>, !x) -> !w
  grad @fused %9 tag <"a.0" B> : !w
  // A gradient that is whole is cut itself.
  // CHECK: %[[FLIPPED:.*]] = torch "aten.flip.default"
  // CHECK: %[[OWN:.*]] = torch "piper.part.default"(%[[FLIPPED]],
  // CHECK: grad @next %[[OWN]] {{.*}} : !f32_8x4
  %10 = torch "aten.mm.default"(%8, %d) facts <pure, rule = "m k, k n -> m n; sum k"> tag <"a.0" B> : (tensor<8x6xf32>, !x) -> !w
  %11 = torch "aten.flip.default"(%10, [0]) facts <pure> tag <"a.0" B> : (!w) -> !w
  grad @next %11 tag <"a.0" B> : !w
}
