// Two products with a nonlinearity between. Each of two ranks has half of the hidden
// features: rows of the first weight and of its bias, columns of the second.

// RUN: piper-opt %s --piper-shard --piper-partition | FileCheck %s
// RUN: piper-opt %s --piper-shard --piper-partition --piper-outline-chunks | FileCheck %s --check-prefix=L2
// RUN: piper-opt %s --piper-shard --piper-partition --piper-outline-chunks --piper-record --piper-materialize | FileCheck %s --check-prefix=L3

!i = tensor<6xi64>
!x = tensor<6x8xf32>
!h = tensor<6x16xf32>
!e = tensor<32x8xf32>
!up = tensor<16x8xf32>
!down = tensor<8x16xf32>
piper.mesh @mesh [pp = 1 unrolled, dp = 2 manual, tp = 2 auto]
piper.state @embed.weight parameter : !e
piper.state @up.weight parameter : !up
piper.state @up.bias parameter : tensor<16xf32>
piper.state @down.weight parameter : !down
piper.state @down.bias parameter : tensor<8xf32>
piper.schedule @order axis = "pp" stages = 1 microbatches = 1 ["0F0 0B0"]
piper.strategy @strategy mesh = @mesh {
  piper.do.place <all> stages = 1 axis = "pp"
  piper.do.split microbatches = 1 dims = {ids = 0}
  piper.do.shard <state = "up.*"> axis = "tp" dim = 0
  piper.do.shard <state = "down.weight"> axis = "tp" dim = 1
  piper.do.replicate <all> axes = ["dp"] zero = 1 bucket = 25000000 reduce = "last"
  piper.do.update <all> optimizer = "sgd" clip = 1.0
  piper.do.order @order
}

// CHECK: piper.state @up.weight parameter {{.*}} layout <dp = replicated, tp = shard(0)>
// CHECK: piper.state @down.weight parameter {{.*}} layout <dp = replicated, tp = shard(1)>
// CHECK: piper.state @down.bias parameter : !f32_8 loc(
// CHECK-LABEL: piper.step @train
piper.step @train phase = captured mesh = @mesh inputs ["ids"] dims [0] (%ids: !i) {
  // CHECK-DAG: %[[UP:.*]] = read @up.weight : !f32_8x8
  // CHECK-DAG: %[[UPB:.*]] = read @up.bias : !f32_8
  // CHECK-DAG: %[[DOWN:.*]] = read @down.weight : !f32_8x8
  // CHECK-DAG: read @down.bias : !f32_8
  %e = read @embed.weight : !e
  %up = read @up.weight : !up
  %upb = read @up.bias : tensor<16xf32>
  %down = read @down.weight : !down
  %downb = read @down.bias : tensor<8xf32>
  %t = tangent "loss" coeff 1.0 examples 6 -> tensor<f32>
  // What ranks along the axis have before a sharded weight is the same on all of them.
  // CHECK-NOT: all_reduce
  // CHECK-NOT: all_gather
  // CHECK-NOT: piper.part
  // CHECK: %[[X:.*]] = torch "aten.embedding.default"
  %x = torch "aten.embedding.default"(%e, %ids) facts <pure, flops = 48, rule = "v w, a -> a w"> tag <"embed.0" F> : (!e, !i) -> !x
  %upt = torch "aten.t.default"(%up) facts <view, rule = "a b -> b a; linear"> tag <"layer.0" F> : (!up) -> tensor<8x16xf32>
  // CHECK: %[[H:.*]] = torch "aten.mm.default"(%[[X]], {{.*}}: (!f32_6x8, !f32_8x8) -> !f32_6x8
  %h0 = torch "aten.mm.default"(%x, %upt) facts <pure, flops = 1536, heavy, rule = "m k, k n -> m n; sum k"> tag <"layer.0" F> : (!x, tensor<8x16xf32>) -> !h
  // Parts of what is added to parts.
  // CHECK: torch "aten.add.Tensor"(%[[H]], %[[UPB]])
  %h1 = torch "aten.add.Tensor"(%h0, %upb) facts <pure, flops = 96, rule = "a b, b -> a b; linear"> tag <"layer.0" F> : (!h, tensor<16xf32>) -> !h
  // CHECK: %[[A:.*]] = torch "aten.relu.default"{{.*}} -> !f32_6x8
  %a = torch "aten.relu.default"(%h1) facts <pure, flops = 96, rule = "a b -> a b"> tag <"layer.0" F> : (!h) -> !h
  %downt = torch "aten.t.default"(%down) facts <view, rule = "a b -> b a; linear"> tag <"layer.0" F> : (!down) -> tensor<16x8xf32>
  // The second product leaves terms of a sum. It is finished before the bias, which
  // is added once.
  // CHECK: %[[TERM:.*]] = torch "aten.mm.default"(%[[A]], {{.*}}: (!f32_6x8, !f32_8x8) -> !f32_6x8
  // CHECK-NEXT: %[[Y:.*]] = all_reduce %[[TERM]] over ["tp"] as "layer.0 reduce" on @tp
  // CHECK-NEXT: torch "aten.add.Tensor"(%[[Y]],
  %y0 = torch "aten.mm.default"(%a, %downt) facts <pure, flops = 1536, heavy, rule = "m k, k n -> m n; sum k"> tag <"layer.0" F> : (!h, tensor<16x8xf32>) -> !x
  %y = torch "aten.add.Tensor"(%y0, %downb) facts <pure, flops = 48, rule = "a b, b -> a b; linear"> tag <"layer.0" F> : (!x, tensor<8xf32>) -> !x
  // CHECK-NOT: all_reduce
  // CHECK-NOT: all_gather
  // CHECK: output "loss"
  %l = torch "aten.sum.default"(%y) facts <pure, flops = 48, rule = "a b -> ; linear, sum a, sum b"> tag <"layer.0" F> : (!x) -> tensor<f32>
  output "loss" %l scale %t : tensor<f32>, tensor<f32>
  %dy = torch "aten.expand.default"(%t, [6, 8]) facts <view, strided, rule = " -> a b; linear, 1.0 = a, 1.1 = b"> tag <"layer.0" B> : (tensor<f32>) -> !x
  %db = torch "aten.sum.dim_IntList"(%dy, [0]) facts <pure, flops = 48, rule = "a b -> b; linear, sum a"> tag <"layer.0" B> : (!x) -> tensor<8xf32>
  grad @down.bias %db tag <"layer.0" B> : tensor<8xf32>
  // Gradients of parts are parts of the gradients.
  // CHECK: grad @down.weight {{.*}} : !f32_8x8
  %dyt = torch "aten.t.default"(%dy) facts <view, rule = "a b -> b a; linear"> tag <"layer.0" B> : (!x) -> tensor<8x6xf32>
  %ddown = torch "aten.mm.default"(%dyt, %a) facts <pure, flops = 1536, heavy, rule = "m k, k n -> m n; sum k"> tag <"layer.0" B> : (tensor<8x6xf32>, !h) -> !down
  grad @down.weight %ddown tag <"layer.0" B> : !down
  // CHECK: torch "aten.mm.default"({{.*}}, %[[DOWN]]) {{.*}} -> !f32_6x8
  %da = torch "aten.mm.default"(%dy, %down) facts <pure, flops = 1536, heavy, rule = "m k, k n -> m n; sum k"> tag <"layer.0" B> : (!x, !down) -> !h
  // CHECK: torch "aten.threshold_backward.default"{{.*}} -> !f32_6x8
  %dh = torch "aten.threshold_backward.default"(%da, %a, 0) facts <pure, flops = 96, rule = "a b, a b -> a b"> tag <"layer.0" B> : (!h, !h) -> !h
  %dupb = torch "aten.sum.dim_IntList"(%dh, [0]) facts <pure, flops = 96, rule = "a b -> b; linear, sum a"> tag <"layer.0" B> : (!h) -> tensor<16xf32>
  // CHECK: grad @up.bias {{.*}} : !f32_8
  grad @up.bias %dupb tag <"layer.0" B> : tensor<16xf32>
  %dht = torch "aten.t.default"(%dh) facts <view, rule = "a b -> b a; linear"> tag <"layer.0" B> : (!h) -> tensor<16x6xf32>
  // CHECK: grad @up.weight {{.*}} : !f32_8x8
  %dup = torch "aten.mm.default"(%dht, %x) facts <pure, flops = 1536, heavy, rule = "m k, k n -> m n; sum k"> tag <"layer.0" B> : (tensor<16x6xf32>, !x) -> !up
  grad @up.weight %dup tag <"layer.0" B> : !up
  // The product by the first weight sums over what ranks have parts of.
  // CHECK: %[[DTERM:.*]] = torch "aten.mm.default"({{.*}}, %[[UP]]) {{.*}} -> !f32_6x8
  // CHECK-NEXT: %[[DX:.*]] = all_reduce %[[DTERM]] over ["tp"]
  // CHECK-NEXT: torch "aten.embedding_dense_backward.default"(%[[DX]],
  %dx = torch "aten.mm.default"(%dh, %up) facts <pure, flops = 1536, heavy, rule = "m k, k n -> m n; sum k"> tag <"layer.0" B> : (!h, !up) -> !x
  %de = torch "aten.embedding_dense_backward.default"(%dx, %ids, 32, -1, false) facts <pure, flops = 256, rule = "a w, a -> v w; sum a"> tag <"embed.0" B> : (!x, !i) -> !e
  // CHECK-NOT: all_reduce
  // CHECK-NOT: all_gather
  // CHECK: grad @embed.weight {{.*}} : !f32_32x8
  grad @embed.weight %de tag <"embed.0" B> : !e
}

// The layer is cut where ranks sum, once forward and once backward; what is kept for
// the backward pass are parts.
// L2-LABEL: piper.step @train phase = outlined
// L2: %[[F:.*]]:2 = run @layer.0$F(
// L2: all_reduce %[[F]]#{{.}} over ["tp"] as "layer.0 reduce" on @tp
// L2: run @layer.0$F1(
// L2: %[[B:.*]] = run @layer.0$B(
// L2: all_reduce %[[B]] over ["tp"]
// L2: run @embed.0$B{{1?}}(

// A bucket of parts is varying along the axis. Gradients are reduced over the data
// axis alone: what is whole is the same on all ranks along the other. Squares of parts
// are summed over both.
// L3: piper.bucket @embed.weight$b {{.*}} grad : !f32_256_dpP_tpR
// L3: piper.bucket @up.weight$b [@up.weight, @up.bias] value : !f32_36_dpS0_tpV compute : !f32_72_dpR_tpV grad : !f32_72_dpP_tpV
// L3: piper.bucket @down.weight$b [@down.weight] {{.*}} grad : !f32_64_dpP_tpV
// L3: piper.bucket @down.bias$b {{.*}} grad : !f32_8_dpP_tpR
// L3-LABEL: piper.cluster @train$cluster
// L3: all_reduce {{.*}} over ["tp"] {{.*}} mb 0 on @tp : !f32_6x8_dpV_tpP -> !f32_6x8_dpV_tpR
// L3: reduce_scatter {{.*}} over ["dp"] on @dp : !f32_64_dpP_tpV -> !f32_32_dpS0_tpV
// L3: all_reduce {{.*}} over ["tp"] {{.*}} mb 0 on @tp : !f32_6x8_dpV_tpP -> !f32_6x8_dpV_tpR
// L3: sumsq {{.*}} : (!f32_4_dpS0_tpR, !f32_128_dpS0_tpR) -> !f32_scalar_dpP_tpR
// L3: sumsq {{.*}} : (!f32_32_dpS0_tpV, !f32_36_dpS0_tpV) -> !f32_scalar_dpP_tpP
// L3: all_reduce {{.*}} over ["dp", "tp"]
