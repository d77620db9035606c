// Each of two ranks along `cp` has a part of the sequence, each of two along `ep` half of the experts.

// RUN: piper-opt %s --piper-shard --piper-partition | FileCheck %s

// Rows are those of a rank's own tokens, so along `cp` nothing is exchanged.
!i = tensor<2x4x3xi64>
!t = tensor<8x3xi64>
!x = tensor<2x4x8xf32>
!r = tensor<8x8xf32>
!n = tensor<24x8xf32>
!o = tensor<24xi64>
!c = tensor<1x4xi64>
!w = tensor<4x8x8xf32>
piper.mesh @mesh [cp = 2 manual, ep = 2 manual]
piper.state @w parameter : !w
piper.strategy @strategy mesh = @mesh {
  piper.do.sequence axis = "cp" dims = {x = 1, index = 1}
  piper.do.shard <state = "w"> axis = "ep" dim = 0
}
// CHECK-LABEL: piper.step @train
// CHECK-NOT: over ["cp"]
piper.step @train phase = captured mesh = @mesh inputs ["x", "index"] dims [0, 0] (%x: !x, %index: !i) {
  %w = read @w : !w
  %t = torch "aten.view.default"(%index, [8, 3]) facts <view, rule = "a b c -> a c; linear, 1.1 = c"> tag <"a.0" F> : (!i) -> !t
  %r = torch "aten.view.default"(%x, [8, 8]) facts <view, rule = "a b c -> a c; linear, 1.1 = c"> tag <"a.0" F> : (!x) -> !r
  // CHECK: %[[SORTED:.*]]:2 = torch "piper.moe_sort.default"{{.*}} -> (!i64_24, !i64_2x2)
  // CHECK: %[[ROWS:.*]] = torch "piper.moe_permute.default"
  // CHECK: %[[RECEIVED:.*]] = all_to_all %[[SORTED]]#1 dim 0 over ["ep"]
  // CHECK: %[[SIZES:.*]]:2 = host_wait %[[SORTED]]#1, %[[RECEIVED]]
  // CHECK: all_to_all %[[ROWS]] dim 0 sizes %[[SIZES]]#0, %[[SIZES]]#1 over ["ep"]
  %order, %counts = torch "piper.moe_sort.default"(%t, 4, 1) facts <pure, rule = "t k -> n, r e; 2 = r"> tag <"a.0" F> : (!t) -> (!o, !c)
  %rows = torch "piper.moe_permute.default"(%r, %order, 3) facts <pure, rule = "t d, n -> n d"> tag <"a.0" F> : (!r, !o) -> !n
  %received = torch "piper.moe_exchange_counts.default"(%counts) facts <pure, rule = "r e -> r e"> tag <"a.0" F> : (!c) -> !c
  %came = torch "piper.moe_dispatch.default"(%rows, %counts, %received) facts <pure, rule = "n d, r e, r e -> m d"> tag <"a.0" F> : (!n, !c, !c) -> !n
  // What is computed row by row may have any op between.
  %y = torch "piper.moe_linear.default"(%came, %w, %received) facts <pure, rule = "m i, e o i, r e -> m o; sum i"> tag <"a.0" F> : (!n, !w, !c) -> !n
  %z = torch "aten.relu.default"(%y) facts <pure, rule = "a b -> a b"> tag <"a.0" F> : (!n) -> !n
  // CHECK: %[[BACK:.*]] = all_to_all %{{.*}} dim 0 sizes %[[SIZES]]#1, %[[SIZES]]#0 over ["ep"]
  %back = torch "piper.moe_collect.default"(%z, %counts, %received) facts <pure, rule = "m d, r e, r e -> n d"> tag <"a.0" F> : (!n, !c, !c) -> !n
  // Behind, what tokens get is at their positions again.
  // CHECK: torch "piper.moe_permute_backward.default"(%[[BACK]], %[[SORTED]]#0, 3)
  %sum = torch "piper.moe_permute_backward.default"(%back, %order, 3) facts <pure, rule = "n d, n -> t d"> tag <"a.0" F> : (!n, !o) -> !r
  %out = torch "aten.view.default"(%sum, [2, 4, 8]) facts <view, rule = "a b -> a c b; linear, 1.2 = b"> tag <"a.0" F> : (!r) -> !x
  // Zeros are the same everywhere, whatever they have their dtype from.
  %zeros = torch "aten.new_zeros.default"(%x, [2, 4, 8]) facts <pure, rule = "a b c -> d e f; 1.0 = d, 1.1 = e, 1.2 = f"> tag <"a.0" F> : (!x) -> !x
  %added = torch "aten.add.Tensor"(%out, %zeros) facts <pure, rule = "a b c, a b c -> a b c; linear"> tag <"a.0" F> : (!x, !x) -> !x
  output "y" %added : !x
  // Of weights a rank has a term, of the rows that it got.
  // CHECK: grad @w %{{.*}} : !f32_2x8x8
  %dw = torch "piper.moe_linear_weight.default"(%z, %came, %received) facts <pure, rule = "m o, m i, r e -> e o i"> tag <"a.0" B> : (!n, !n, !c) -> !w
  grad @w %dw tag <"a.0" B> : !w
}
