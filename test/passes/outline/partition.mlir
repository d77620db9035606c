// A layer with four experts, two of which each of two ranks holds.

// RUN: piper-opt %s --piper-shard --piper-partition | FileCheck %s
// RUN: piper-opt %s --piper-shard --piper-partition --piper-outline-chunks | FileCheck %s --check-prefix=L2
// RUN: piper-opt %s --piper-shard --piper-partition --piper-outline-chunks --piper-record --piper-materialize | FileCheck %s --check-prefix=L3
// RUN: piper-opt %s --piper-shard --piper-partition --piper-outline-chunks --piper-record --piper-materialize --piper-lower | FileCheck %s --check-prefix=L4

piper.mesh @mesh [pp = 2 unrolled, edp = 2 manual, ep = 2 manual]
piper.state @embed.weight parameter : tensor<32x8xf32>
piper.state @moe.router parameter : tensor<4x8xf32>
piper.state @moe.experts.w parameter : tensor<4x8x8xf32>
piper.schedule @order axis = "pp" stages = 2 microbatches = 2 ["0F0 0F1 0B0 0B1", "1F0 1B0 1F1 1B1"]
piper.strategy @strategy mesh = @mesh {
  piper.do.place <all> stages = 2 axis = "pp"
  piper.do.split microbatches = 2 dims = {ids = 0}
  piper.do.shard <state = "*.experts.*"> axis = "ep" dim = 0 capacity = 1.5
  piper.do.replicate <all> axes = ["edp", "ep"] zero = 1 bucket = 25000000 reduce = "last"
  piper.do.update <all> optimizer = "sgd" clip = 1.0
  piper.do.order @order
}

// Two ranks could send all their rows to one; the capacity allows 1.5 times as many.
// CHECK: !f32_qx8 = tensor<?x8xf32, #piper.layout<bound = 18, expect = 12>>
// CHECK-LABEL: piper.step @train
piper.step @train phase = captured mesh = @mesh inputs ["ids"] dims [0] (%ids: tensor<6xi64>) {
  %e = read @embed.weight : tensor<32x8xf32>
  %r = read @moe.router : tensor<4x8xf32>
  // CHECK: read @moe.experts.w : !f32_2x8x8
  %w = read @moe.experts.w : tensor<4x8x8xf32>
  %t = tangent "loss" coeff 1.0 examples 6 -> tensor<f32>
  %x = torch "aten.embedding.default"(%e, %ids) facts <pure, flops = 48> tag <"embed.0" F> : (tensor<32x8xf32>, tensor<6xi64>) -> tensor<6x8xf32>
  %rt = torch "aten.t.default"(%r) facts <view> tag <"moe.0" F> : (tensor<4x8xf32>) -> tensor<8x4xf32>
  %s = torch "aten.mm.default"(%x, %rt) facts <pure, flops = 384, heavy> tag <"moe.0" F> : (tensor<6x8xf32>, tensor<8x4xf32>) -> tensor<6x4xf32>
  %p, %i = torch "aten.topk.default"(%s, 2) facts <pure, flops = 24> tag <"moe.0" F> : (tensor<6x4xf32>) -> (tensor<6x2xf32>, tensor<6x2xi64>)
  // CHECK: torch "piper.moe_sort.default"(%{{.*}}, 4, 2) {{.*}} -> (!i64_12, !i64_2x2)
  %order, %counts = torch "piper.moe_sort.default"(%i, 4, 1) facts <pure, flops = 12, rule = "t k -> n, r e; 2 = r"> tag <"moe.0" F> : (tensor<6x2xi64>) -> (tensor<12xi64>, tensor<1x4xi64>)
  %rows = torch "piper.moe_permute.default"(%x, %order, 2) facts <pure, flops = 96, rule = "t d, n -> n d"> tag <"moe.0" F> : (tensor<6x8xf32>, tensor<12xi64>) -> tensor<12x8xf32>
  // CHECK: %[[RECEIVED:.*]] = all_to_all %[[COUNTS:.*]] dim 0 over ["ep"] as "moe.0 counts" on @ep
  %received = torch "piper.moe_exchange_counts.default"(%counts) facts <pure, flops = 4, heavy, rule = "r e -> r e"> tag <"moe.0" F> : (tensor<1x4xi64>) -> tensor<1x4xi64>
  // CHECK: %[[SIZES:.*]]:2 = host_wait %[[COUNTS]], %[[RECEIVED]]
  // CHECK: all_to_all %{{.*}} dim 0 sizes %[[SIZES]]#0, %[[SIZES]]#1 over ["ep"] as "moe.0 dispatch" on @ep
  // CHECK-SAME: !f32_12x8 -> !f32_qx8
  %in = torch "piper.moe_dispatch.default"(%rows, %counts, %received) facts <pure, flops = 96, heavy, rule = "n d, r e, r e -> m d"> tag <"moe.0" F> : (tensor<12x8xf32>, tensor<1x4xi64>, tensor<1x4xi64>) -> tensor<12x8xf32>
  %g = torch "piper.moe_group.default"(%in, %received) facts <pure, flops = 96, rule = "m d, r e -> m d"> tag <"moe.0" F> : (tensor<12x8xf32>, tensor<1x4xi64>) -> tensor<12x8xf32>
  // CHECK: torch "piper.moe_linear.default"{{.*}}!f32_2x8x8, !i64_2x2) -> !f32_qx8
  %h = torch "piper.moe_linear.default"(%g, %w, %received) facts <pure, flops = 1536, heavy, rule = "m i, e o i, r e -> m o"> tag <"moe.0" F> : (tensor<12x8xf32>, tensor<4x8x8xf32>, tensor<1x4xi64>) -> tensor<12x8xf32>
  // CHECK: torch "aten.relu.default"{{.*}} -> !f32_qx8
  %a = torch "aten.relu.default"(%h) facts <pure, flops = 96, rule = "a b -> a b"> tag <"moe.0" F> : (tensor<12x8xf32>) -> tensor<12x8xf32>
  %u = torch "piper.moe_ungroup.default"(%a, %received) facts <pure, flops = 96, rule = "m d, r e -> m d"> tag <"moe.0" F> : (tensor<12x8xf32>, tensor<1x4xi64>) -> tensor<12x8xf32>
  // CHECK: all_to_all %{{.*}} dim 0 sizes %[[SIZES]]#1, %[[SIZES]]#0 over ["ep"] as "moe.0 collect" on @ep
  // CHECK-SAME: -> !f32_12x8
  %back = torch "piper.moe_collect.default"(%u, %counts, %received) facts <pure, flops = 96, heavy, rule = "m d, r e, r e -> n d"> tag <"moe.0" F> : (tensor<12x8xf32>, tensor<1x4xi64>, tensor<1x4xi64>) -> tensor<12x8xf32>
  %y = torch "piper.moe_unpermute.default"(%back, %order, %p) facts <pure, flops = 96, rule = "n d, n, t k -> t d"> tag <"moe.0" F> : (tensor<12x8xf32>, tensor<12xi64>, tensor<6x2xf32>) -> tensor<6x8xf32>
  %l = torch "aten.sum.default"(%y) facts <pure, flops = 48> tag <"moe.0" F> : (tensor<6x8xf32>) -> tensor<f32>
  output "loss" %l scale %t : tensor<f32>, tensor<f32>
  %dy = torch "aten.expand.default"(%t, [6, 8]) facts <view, strided> tag <"moe.0" B> : (tensor<f32>) -> tensor<6x8xf32>
  %dback = torch "piper.moe_unpermute_rows.default"(%dy, %order, %p) facts <pure, flops = 96, rule = "t d, n, t k -> n d"> tag <"moe.0" B> : (tensor<6x8xf32>, tensor<12xi64>, tensor<6x2xf32>) -> tensor<12x8xf32>
  %dp = torch "piper.moe_unpermute_weights.default"(%dy, %order, %back, 2) facts <pure, flops = 96, rule = "t d, n, n d -> t k"> tag <"moe.0" B> : (tensor<6x8xf32>, tensor<12xi64>, tensor<12x8xf32>) -> tensor<6x2xf32>
  // The way back asks for no counts again.
  // CHECK-NOT: host_wait
  // CHECK: all_to_all %{{.*}} dim 0 sizes %[[SIZES]]#0, %[[SIZES]]#1 over ["ep"] as "moe.0 dispatch"
  %du = torch "piper.moe_dispatch.default"(%dback, %counts, %received) facts <pure, flops = 96, heavy, rule = "n d, r e, r e -> m d"> tag <"moe.0" B> : (tensor<12x8xf32>, tensor<1x4xi64>, tensor<1x4xi64>) -> tensor<12x8xf32>
  %da = torch "piper.moe_group.default"(%du, %received) facts <pure, flops = 96, rule = "m d, r e -> m d"> tag <"moe.0" B> : (tensor<12x8xf32>, tensor<1x4xi64>) -> tensor<12x8xf32>
  %dh = torch "aten.threshold_backward.default"(%da, %a, 0) facts <pure, flops = 96, rule = "a b, a b -> a b"> tag <"moe.0" B> : (tensor<12x8xf32>, tensor<12x8xf32>) -> tensor<12x8xf32>
  // CHECK: torch "piper.moe_linear_weight.default"{{.*}} -> !f32_2x8x8
  %dw = torch "piper.moe_linear_weight.default"(%dh, %g, %received) facts <pure, flops = 1536, heavy, rule = "m o, m i, r e -> e o i"> tag <"moe.0" B> : (tensor<12x8xf32>, tensor<12x8xf32>, tensor<1x4xi64>) -> tensor<4x8x8xf32>
  // CHECK: grad @moe.experts.w
  grad @moe.experts.w %dw tag <"moe.0" B> : tensor<4x8x8xf32>
  %dg = torch "piper.moe_linear_input.default"(%dh, %w, %received) facts <pure, flops = 1536, heavy, rule = "m o, e o i, r e -> m i"> tag <"moe.0" B> : (tensor<12x8xf32>, tensor<4x8x8xf32>, tensor<1x4xi64>) -> tensor<12x8xf32>
  %din = torch "piper.moe_ungroup.default"(%dg, %received) facts <pure, flops = 96, rule = "m d, r e -> m d"> tag <"moe.0" B> : (tensor<12x8xf32>, tensor<1x4xi64>) -> tensor<12x8xf32>
  // CHECK: all_to_all %{{.*}} dim 0 sizes %[[SIZES]]#1, %[[SIZES]]#0 over ["ep"] as "moe.0 collect"
  %drows = torch "piper.moe_collect.default"(%din, %counts, %received) facts <pure, flops = 96, heavy, rule = "m d, r e, r e -> n d"> tag <"moe.0" B> : (tensor<12x8xf32>, tensor<1x4xi64>, tensor<1x4xi64>) -> tensor<12x8xf32>
  %dx0 = torch "piper.moe_permute_backward.default"(%drows, %order, 2) facts <pure, flops = 96, rule = "n d, n -> t d"> tag <"moe.0" B> : (tensor<12x8xf32>, tensor<12xi64>) -> tensor<6x8xf32>
  %ds = torch "aten.value_selecting_reduction_backward.default"(%dp, 1, %i, [6, 4], true) facts <pure, flops = 24> tag <"moe.0" B> : (tensor<6x2xf32>, tensor<6x2xi64>) -> tensor<6x4xf32>
  %dst = torch "aten.t.default"(%ds) facts <view> tag <"moe.0" B> : (tensor<6x4xf32>) -> tensor<4x6xf32>
  %dr = torch "aten.mm.default"(%dst, %x) facts <pure, flops = 384, heavy> tag <"moe.0" B> : (tensor<4x6xf32>, tensor<6x8xf32>) -> tensor<4x8xf32>
  grad @moe.router %dr tag <"moe.0" B> : tensor<4x8xf32>
  %dx1 = torch "aten.mm.default"(%ds, %r) facts <pure, flops = 384, heavy> tag <"moe.0" B> : (tensor<6x4xf32>, tensor<4x8xf32>) -> tensor<6x8xf32>
  %dx = torch "aten.add.Tensor"(%dx0, %dx1) facts <pure, flops = 48, rule = "a b, a b -> a b"> tag <"moe.0" B> : (tensor<6x8xf32>, tensor<6x8xf32>) -> tensor<6x8xf32>
  %de = torch "aten.embedding_dense_backward.default"(%dx, %ids, 32, -1, false) facts <pure, flops = 256> tag <"embed.0" B> : (tensor<6x8xf32>, tensor<6xi64>) -> tensor<32x8xf32>
  grad @embed.weight %de tag <"embed.0" B> : tensor<32x8xf32>
}

// The layer is cut where ranks exchange values; what they exchange is an op of the
// step. What counts do not need comes between their exchange and the wait for them.
// The pieces of the backward pass, which waits for nothing, go back through the others.
// L2: piper.chunk @moe.0$F pass = F
// L2: piper.chunk @moe.0$F1 pass = F
// L2: piper.chunk @moe.0$F2 pass = F
// L2: piper.chunk @moe.0$F3 pass = F
// L2: piper.chunk @moe.0$B pass = B of @moe.0$F3
// L2: piper.chunk @moe.0$B1 pass = B of @moe.0$F2
// L2: piper.chunk @moe.0$B2 pass = B of @moe.0$F
// L2-LABEL: piper.step @train phase = outlined
// L2: %[[F:.*]]:4 = run @moe.0$F(
// L2-NEXT: %[[RECEIVED:.*]] = all_to_all %[[F]]#3 dim 0 over ["ep"]
// L2-NEXT: %[[F1:.*]] = run @moe.0$F1(%{{.*}}, %[[F]]#2)
// L2-NEXT: %[[SIZES:.*]]:2 = host_wait %[[F]]#3, %[[RECEIVED]]
// L2-NEXT: %[[ROWS:.*]] = all_to_all %[[F1]] dim 0 sizes %[[SIZES]]#0, %[[SIZES]]#1
// L2-NEXT: %[[F2:.*]]:3 = run @moe.0$F2(%[[ROWS]], %[[RECEIVED]])
// L2-NEXT: all_to_all %[[F2]]#2 dim 0 sizes %[[SIZES]]#1, %[[SIZES]]#0
// L2-NEXT: run @moe.0$F3(

// Ranks hold their own experts: a contribution is partial along edp, where others
// hold the same, and their own along ep. It is reduced over edp alone, and its
// squares are summed over both.
// L3: piper.bucket @moe.router$b {{.*}} grad : !f32_32_edpP_epP
// L3: piper.bucket @moe.experts.w$b [@moe.experts.w] value : !f32_64_edpS0_epV compute : !f32_128_edpR_epV grad : !f32_128_edpP_epV
// L3-LABEL: piper.cluster @train$cluster
// L3: all_to_all {{.*}} at [1] dim 0 over ["ep"] as "moe.0 counts" mb 0 on @ep
// L3: host_wait {{.*}} mb 0 at 1
// L3: all_to_all {{.*}} at [1] dim 0 sizes {{.*}} as "moe.0 dispatch" mb 0
// L3: reduce_scatter {{.*}} over ["edp"] on @edp : !f32_128_edpP_epV -> !f32_64_edpS0_epV
// L3: sumsq {{.*}} : (!f32_64_edpS0_epV) -> !f32_scalar_edpP_epP
// L3: all_gather {{.*}} over ["edp"] on @edp.gather : !f32_64_edpS0_epV -> !f32_128_edpR_epV

// Exchanges have a communicator of their own. The host waits for both counts, with
// a piece queued behind what makes them.
// L4: piper.comm @exchange.ep$1 axes ["ep"] coordinates [1] for @ep
// L4-LABEL: piper.program @train$pp1
// L4: %[[F:.*]]:4 = run @moe.0$F(
// L4: %[[MADE:.*]] = record
// L4: %[[RECEIVED:.*]], %[[CAME:.*]] = all_to_all %[[F]]#3 {{.*}} on @exchange.ep$1
// L4: run @moe.0$F1({{.*}}) mb 0
// L4: host_wait %[[F]]#3, %[[RECEIVED]] mb 0 after %[[MADE]], %[[CAME]]
// L4: %[[ROWS:.*]], %[[ARRIVED:.*]] = all_to_all
// L4: run @moe.0$F2(%[[ROWS]], {{.*}}) mb 0 after %[[ARRIVED]]
