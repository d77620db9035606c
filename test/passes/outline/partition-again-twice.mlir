// A chunk that sorts the same choices twice: for experts that ranks share out, and for
// others that they do not.

// RUN: piper-opt %s --piper-remat | FileCheck %s --check-prefix=REMAT
// RUN: piper-opt %s --piper-remat --piper-shard --piper-partition | FileCheck %s
// RUN: piper-opt %s --piper-remat --piper-shard --piper-partition --piper-outline-chunks --piper-verify | FileCheck %s --check-prefix=OUTLINED --implicit-check-not="again ="

// The backward pass needs the second sort first, so it repeats this one first. Each copy
// has the number of its sort, and is for as many ranks; kernels know nothing of it.
// REMAT: "piper.moe_sort.default"{{.*}} F> {again = [[FIRST:[0-9]+]] : index}
// REMAT: "piper.moe_sort.default"{{.*}} F> {again = [[SECOND:[0-9]+]] : index}
// REMAT: "piper.moe_sort.default"{{.*}} B> {again = [[SECOND]] : index}
// REMAT: "piper.moe_sort.default"{{.*}} B> {again = [[FIRST]] : index}
// OUTLINED: piper.step @train

!x = tensor<6x8xf32>
!i = tensor<6x2xi64>
!n = tensor<12xi64>
!c = tensor<1x4xi64>
!r = tensor<12x8xf32>
!w = tensor<4x8x8xf32>
!l = tensor<f32>
piper.mesh @mesh [ep = 2 manual]
piper.state @in parameter : !x
piper.state @moe.experts.w parameter : !w
piper.state @whole.w parameter : !w
piper.strategy @strategy mesh = @mesh {
  piper.do.shard <state = "*.experts.*"> axis = "ep" dim = 0
  piper.do.remat <tag = "layer"> policy = "full"
}

// CHECK-LABEL: piper.step @train
piper.step @train phase = captured mesh = @mesh inputs ["i"] dims [0] (%i: !i) {
  %x = read @in : !x
  %w = read @moe.experts.w : !w
  %v = read @whole.w : !w
  %t = tangent "loss" coeff 1.0 examples 6 -> !l
  // CHECK: torch "piper.moe_sort.default"(%{{.*}}, 4, 2) {{.*}} F>
  %j = torch "aten.neg.default"(%i) facts <pure, rule = "a b -> a b"> tag <"layer.0" F> : (!i) -> !i
  %order, %c = torch "piper.moe_sort.default"(%j, 4, 1) facts <pure, rule = "t k -> n, r e; 2 = r"> tag <"layer.0" F> : (!i) -> (!n, !c)
  %received = torch "piper.moe_exchange_counts.default"(%c) facts <pure, rule = "r e -> r e"> tag <"layer.0" F> : (!c) -> !c
  %rows = torch "piper.moe_permute.default"(%x, %order, 2) facts <pure, rule = "t d, n -> n d"> tag <"layer.0" F> : (!x, !n) -> !r
  %in = torch "piper.moe_dispatch.default"(%rows, %c, %received) facts <pure, rule = "n d, r e, r e -> m d"> tag <"layer.0" F> : (!r, !c, !c) -> !r
  %g = torch "piper.moe_group.default"(%in, %received) facts <pure, rule = "m d, r e -> m d"> tag <"layer.0" F> : (!r, !c) -> !r
  %y = torch "piper.moe_linear.default"(%g, %w, %received) facts <pure, rule = "m i, e o i, r e -> m o"> tag <"layer.0" F> : (!r, !w, !c) -> !r
  %u = torch "piper.moe_ungroup.default"(%y, %received) facts <pure, rule = "m d, r e -> m d"> tag <"layer.0" F> : (!r, !c) -> !r
  %back = torch "piper.moe_collect.default"(%u, %c, %received) facts <pure, rule = "m d, r e, r e -> n d"> tag <"layer.0" F> : (!r, !c, !c) -> !r
  // CHECK: torch "piper.moe_sort.default"(%{{.*}}, 4, 1) {{.*}} F>
  %order2, %c2 = torch "piper.moe_sort.default"(%j, 4, 1) facts <pure, rule = "t k -> n, r e; 2 = r"> tag <"layer.0" F> : (!i) -> (!n, !c)
  %rows2 = torch "piper.moe_permute.default"(%x, %order2, 2) facts <pure, rule = "t d, n -> n d"> tag <"layer.0" F> : (!x, !n) -> !r
  %z = torch "piper.moe_linear.default"(%rows2, %v, %c2) facts <pure, rule = "m i, e o i, r e -> m o"> tag <"layer.0" F> : (!r, !w, !c) -> !r
  %l1 = torch "aten.sum.default"(%back) facts <pure> tag <"layer.0" F> : (!r) -> !l
  %l2 = torch "aten.sum.default"(%z) facts <pure> tag <"layer.0" F> : (!r) -> !l
  %l = torch "aten.add.Tensor"(%l1, %l2) facts <pure> tag <"layer.0" F> : (!l, !l) -> !l
  output "loss" %l scale %t : !l, !l
  %dz = torch "aten.expand.default"(%t, [12, 8]) facts <view, strided> tag <"layer.0" B> : (!l) -> !r
  // CHECK: torch "piper.moe_sort.default"(%{{.*}}, 4, 1) {{.*}} B>
  %drows2 = torch "piper.moe_linear_input.default"(%dz, %v, %c2) facts <pure, rule = "m o, e o i, r e -> m i"> tag <"layer.0" B> : (!r, !w, !c) -> !r
  %dx2 = torch "piper.moe_permute_backward.default"(%drows2, %order2, 2) facts <pure, rule = "n d, n -> t d"> tag <"layer.0" B> : (!r, !n) -> !x
  // CHECK: torch "piper.moe_sort.default"(%{{.*}}, 4, 2) {{.*}} B>
  // CHECK: all_to_all {{.*}} as "layer.0 dispatch" on @ep {tag = #piper.tag<"layer.0" B>} : !f32_12x8 -> !f32_qx8
  %du = torch "piper.moe_dispatch.default"(%dz, %c, %received) facts <pure, rule = "n d, r e, r e -> m d"> tag <"layer.0" B> : (!r, !c, !c) -> !r
  %dy = torch "piper.moe_group.default"(%du, %received) facts <pure, rule = "m d, r e -> m d"> tag <"layer.0" B> : (!r, !c) -> !r
  %dg = torch "piper.moe_linear_input.default"(%dy, %w, %received) facts <pure, rule = "m o, e o i, r e -> m i"> tag <"layer.0" B> : (!r, !w, !c) -> !r
  %din = torch "piper.moe_ungroup.default"(%dg, %received) facts <pure, rule = "m d, r e -> m d"> tag <"layer.0" B> : (!r, !c) -> !r
  %drows = torch "piper.moe_collect.default"(%din, %c, %received) facts <pure, rule = "m d, r e, r e -> n d"> tag <"layer.0" B> : (!r, !c, !c) -> !r
  %dx1 = torch "piper.moe_permute_backward.default"(%drows, %order, 2) facts <pure, rule = "n d, n -> t d"> tag <"layer.0" B> : (!r, !n) -> !x
  %dx = torch "aten.add.Tensor"(%dx1, %dx2) facts <pure> tag <"layer.0" B> : (!x, !x) -> !x
  grad @in %dx tag <"layer.0" B> : !x
}
