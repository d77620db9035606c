// A chunk that sorts and sends rows, and experts in another one.

// RUN: piper-opt %s --piper-remat --piper-shard --piper-partition | FileCheck %s
// RUN: piper-opt %s --piper-remat --piper-shard --piper-partition --piper-outline-chunks --piper-verify -o /dev/null

// The backward pass of the first chunk sorts and counts again. Nothing that it computes
// takes a weight of experts; by what it sorts these rows are those of the forward pass, so
// counts are made and exchanged for both ranks, and the rows go back by them.

!x = tensor<6x8xf32>
!i = tensor<6x2xi64>
!n = tensor<12xi64>
!c = tensor<1x4xi64>
!r = tensor<12x8xf32>
!w = tensor<4x8x8xf32>
piper.mesh @mesh [ep = 2 manual]
piper.state @in parameter : !x
piper.state @moe.experts.w parameter : !w
piper.state @whole.w parameter : !w
piper.strategy @strategy mesh = @mesh {
  piper.do.shard <state = "*.experts.*"> axis = "ep" dim = 0
  piper.do.remat <tag = "send"> policy = "full"
}

// CHECK-LABEL: piper.step @train
piper.step @train phase = captured mesh = @mesh inputs ["i"] dims [0] (%i: !i) {
  %x = read @in : !x
  %w = read @moe.experts.w : !w
  %v = read @whole.w : !w
  %t = tangent "loss" coeff 1.0 examples 6 -> tensor<f32>
  %j = torch "aten.neg.default"(%i) facts <pure, rule = "a b -> a b"> tag <"send.0" F> : (!i) -> !i
  // CHECK: torch "piper.moe_sort.default"(%{{.*}}, 4, 2) {{.*}} F>
  %order, %c = torch "piper.moe_sort.default"(%j, 4, 1) facts <pure, rule = "t k -> n, r e; 2 = r"> tag <"send.0" F> : (!i) -> (!n, !c)
  // CHECK: all_to_all {{.*}} as "send.0 counts" on @ep {tag = #piper.tag<"send.0" F>} : !i64_2x2 -> !i64_2x2
  %received = torch "piper.moe_exchange_counts.default"(%c) facts <pure, rule = "r e -> r e"> tag <"send.0" F> : (!c) -> !c
  %rows = torch "piper.moe_permute.default"(%x, %order, 2) facts <pure, rule = "t d, n -> n d"> tag <"send.0" F> : (!x, !n) -> !r
  %in = torch "piper.moe_dispatch.default"(%rows, %c, %received) facts <pure, rule = "n d, r e, r e -> m d"> tag <"send.0" F> : (!r, !c, !c) -> !r
  %g = torch "piper.moe_group.default"(%in, %received) facts <pure, rule = "m d, r e -> m d"> tag <"send.0" F> : (!r, !c) -> !r
  %y = torch "piper.moe_linear.default"(%g, %w, %received) facts <pure, rule = "m i, e o i, r e -> m o"> tag <"moe.0" F> : (!r, !w, !c) -> !r
  %u = torch "piper.moe_ungroup.default"(%y, %received) facts <pure, rule = "m d, r e -> m d"> tag <"moe.0" F> : (!r, !c) -> !r
  %back = torch "piper.moe_collect.default"(%u, %c, %received) facts <pure, rule = "m d, r e, r e -> n d"> tag <"moe.0" F> : (!r, !c, !c) -> !r

  // Another chunk sorts the same choices for experts that ranks do not share out.
  // CHECK: torch "piper.moe_sort.default"(%{{.*}}, 4, 1) {{.*}} F>
  %order2, %c2 = torch "piper.moe_sort.default"(%j, 4, 1) facts <pure, rule = "t k -> n, r e; 2 = r"> tag <"whole.0" F> : (!i) -> (!n, !c)
  // CHECK: torch "piper.moe_linear.default"{{.*}}, !i64_1x4)
  %z = torch "piper.moe_linear.default"(%back, %v, %c2) facts <pure, rule = "m i, e o i, r e -> m o"> tag <"whole.0" F> : (!r, !w, !c) -> !r
  %l = torch "aten.sum.default"(%z) facts <pure> tag <"whole.0" F> : (!r) -> tensor<f32>
  output "loss" %l scale %t : tensor<f32>, tensor<f32>
  %dz = torch "aten.expand.default"(%t, [12, 8]) facts <view, strided> tag <"whole.0" B> : (tensor<f32>) -> !r
  %dback = torch "piper.moe_linear_input.default"(%dz, %v, %c2) facts <pure, rule = "m o, e o i, r e -> m i"> tag <"whole.0" B> : (!r, !w, !c) -> !r
  %du = torch "piper.moe_dispatch.default"(%dback, %c, %received) facts <pure, rule = "n d, r e, r e -> m d"> tag <"moe.0" B> : (!r, !c, !c) -> !r
  %dy = torch "piper.moe_group.default"(%du, %received) facts <pure, rule = "m d, r e -> m d"> tag <"moe.0" B> : (!r, !c) -> !r
  %dg = torch "piper.moe_linear_input.default"(%dy, %w, %received) facts <pure, rule = "m o, e o i, r e -> m i"> tag <"moe.0" B> : (!r, !w, !c) -> !r
  %dw = torch "piper.moe_linear_weight.default"(%dy, %g, %received) facts <pure, rule = "m o, m i, r e -> e o i"> tag <"moe.0" B> : (!r, !r, !c) -> !w
  grad @moe.experts.w %dw tag <"moe.0" B> : !w
  // CHECK: torch "piper.moe_sort.default"(%{{.*}}, 4, 2) {{.*}} B>
  // CHECK: all_to_all {{.*}} as "send.0 counts" on @ep {tag = #piper.tag<"send.0" B>} : !i64_2x2 -> !i64_2x2
  // CHECK: torch "piper.moe_ungroup.default"{{.*}} B> : (!f32_qx8, !i64_2x2) -> !f32_qx8
  %din = torch "piper.moe_ungroup.default"(%dg, %received) facts <pure, rule = "m d, r e -> m d"> tag <"send.0" B> : (!r, !c) -> !r
  // CHECK: all_to_all {{.*}} as "send.0 collect" on @ep {tag = #piper.tag<"send.0" B>} : !f32_qx8 -> !f32_12x8
  %drows = torch "piper.moe_collect.default"(%din, %c, %received) facts <pure, rule = "m d, r e, r e -> n d"> tag <"send.0" B> : (!r, !c, !c) -> !r
  %dx = torch "piper.moe_permute_backward.default"(%drows, %order, 2) facts <pure, rule = "n d, n -> t d"> tag <"send.0" B> : (!r, !n) -> !x
  grad @in %dx tag <"send.0" B> : !x
}
