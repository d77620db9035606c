// From a captured step to programs: two layers y = x + relu(x w + b), the sum of
// squares as loss, on pp 2 x dp 2 with 2 microbatches of 1F1B.
// RUN: piper-opt %s --piper-outline-chunks | FileCheck %s --check-prefix=L2
// RUN: piper-opt %s --piper-outline-chunks --piper-record --piper-materialize | FileCheck %s --check-prefix=L3
// RUN: piper-opt %s --piper-outline-chunks --piper-record --piper-materialize --piper-lower | FileCheck %s --check-prefix=L4

!x = tensor<4x8xf32>
!w = tensor<8x8xf32>
!b = tensor<8xf32>
!s = tensor<f32>
!n = tensor<i64>
!i = tensor<4xi64>
!k = tensor<4xi1>

piper.mesh @mesh [pp = 2 unrolled, dp = 2 manual]
piper.state @l0.w parameter : !w
piper.state @l0.b parameter : !b
piper.state @l1.w parameter : !w
piper.state @l1.b parameter : !b

piper.strategy @strategy mesh = @mesh {
  piper.do.annotate {l0 = "layer", l1 = "layer"}
  piper.do.place <all> stages = 2 axis = "pp"
  piper.do.split microbatches = 2 dims = {x = 0, y = 0}
  piper.do.replicate <all> axes = ["dp"] zero = 0 bucket = 25000000 reduce = "last" dtype = f32
  piper.do.order @order
  piper.do.update <all> optimizer = "train:make_sgd" clip = 1.0
}
piper.schedule @order axis = "pp" stages = 2 microbatches = 2
    ["0F0 0F1 0B0 0B1", "1F0 1B0 1F1 1B1"]

piper.step @train phase = captured mesh = @mesh inputs ["x", "y"] dims [0, 0] batch = 16 (%x: !x, %y: !i) {
  %w0 = read @l0.w : !w
  %b0 = read @l0.b : !b
  %w1 = read @l1.w : !w
  %b1 = read @l1.b : !b
  // The count: how many labels are not -100.
  %c0 = torch "aten.ne.Scalar"(%y, -100) facts <pure, flops = 4> tag <"loss" P> : (!i) -> !k
  %n = torch "aten.sum.default"(%c0) facts <pure, flops = 4> tag <"loss" P> : (!k) -> !n
  %t = tangent "loss" count %n : !n coeff 1.0 -> !s
  %a0 = torch "aten.addmm.default"(%b0, %x, %w0) facts <pure, flops = 512> tag <"layer.0" F> : (!b, !x, !w) -> !x
  %r0 = torch "aten.relu.default"(%a0) facts <pure, flops = 32> tag <"layer.0" F> : (!x) -> !x
  %x1 = torch "aten.add.Tensor"(%x, %r0) facts <pure, flops = 32> tag <"layer.0" F> {primals = [[0]]} : (!x, !x) -> !x
  %a1 = torch "aten.addmm.default"(%b1, %x1, %w1) facts <pure, flops = 512> tag <"layer.1" F> : (!b, !x, !w) -> !x
  %r1 = torch "aten.relu.default"(%a1) facts <pure, flops = 32> tag <"layer.1" F> : (!x) -> !x
  %x2 = torch "aten.add.Tensor"(%x1, %r1) facts <pure, flops = 32> tag <"layer.1" F> : (!x, !x) -> !x
  %q = torch "aten.mul.Tensor"(%x2, %x2) facts <pure, flops = 32> tag <"layer.1" F> : (!x, !x) -> !x
  %l = torch "aten.sum.default"(%q) facts <pure, flops = 32> tag <"layer.1" F> : (!x) -> !s
  output "loss" %l scale %t : !s, !s
  %e = torch "aten.expand.default"(%t, [4, 8]) facts <view> tag <"layer.1" B> : (!s) -> !x
  %d0 = torch "aten.mul.Tensor"(%e, %x2) facts <pure, flops = 32> tag <"layer.1" B> : (!x, !x) -> !x
  %d1 = torch "aten.mul.Scalar"(%d0, 2) facts <pure, flops = 32> tag <"layer.1" B> : (!x) -> !x
  %d2 = torch "aten.threshold_backward.default"(%d1, %r1, 0) facts <pure, flops = 32> tag <"layer.1" B> : (!x, !x) -> !x
  %t1 = torch "aten.t.default"(%w1) facts <view> tag <"layer.1" B> : (!w) -> !w
  %d3 = torch "aten.mm.default"(%d2, %t1) facts <pure, flops = 512> tag <"layer.1" B> : (!x, !w) -> !x
  %d4 = torch "aten.add.Tensor"(%d1, %d3) facts <pure, flops = 32> tag <"layer.1" B> {cotangents = [[0]]} : (!x, !x) -> !x
  %t2 = torch "aten.t.default"(%x1) facts <view> tag <"layer.1" B> : (!x) -> tensor<8x4xf32>
  %g1 = torch "aten.mm.default"(%t2, %d2) facts <pure, flops = 512> tag <"layer.1" B> : (tensor<8x4xf32>, !x) -> !w
  %h1 = torch "aten.sum.dim_IntList"(%d2, [0]) facts <pure, flops = 32> tag <"layer.1" B> : (!x) -> !b
  grad @l1.w %g1 tag <"layer.1" B> : !w
  grad @l1.b %h1 tag <"layer.1" B> : !b
  %f2 = torch "aten.threshold_backward.default"(%d4, %r0, 0) facts <pure, flops = 32> tag <"layer.0" B> : (!x, !x) -> !x
  %t4 = torch "aten.t.default"(%x) facts <view> tag <"layer.0" B> : (!x) -> tensor<8x4xf32>
  %g0 = torch "aten.mm.default"(%t4, %f2) facts <pure, flops = 512> tag <"layer.0" B> : (tensor<8x4xf32>, !x) -> !w
  %h0 = torch "aten.sum.dim_IntList"(%f2, [0]) facts <pure, flops = 32> tag <"layer.0" B> : (!x) -> !b
  grad @l0.w %g0 tag <"layer.0" B> : !w
  grad @l0.b %h0 tag <"layer.0" B> : !b
}

// Duals are known at every level, with those of buckets from L3 on.
// L2: piper.chunk @layer.0$F pass = F
// L2: piper.chunk @layer.1$B pass = B of @layer.1$F dual [2] -> [0] (
// L2: piper.chunk @layer.0$B pass = B of @layer.0$F dual [1] -> [] (
// L2: piper.step @train phase = outlined
// L3: piper.chunk @layer.1$B pass = B of @layer.1$F dual [2] -> [0, 1] stage = 1 (%{{.*}}: !f32_scalar_dpR{{.*}}) -> (!f32_4x8_dpV, !f32_72_dpP)
// L3: piper.chunk @layer.0$B pass = B of @layer.0$F dual [1] -> [1] stage = 0 (%{{.*}}: !f32_4x8_dpV{{.*}}) -> !f32_72_dpP
// L3: piper.cluster @train$cluster of @train phase = ordered
// L4: piper.chunk @layer.1$B pass = B of @layer.1$F dual [2] -> [0, 1] stage = 1
// L4: piper.chunk @layer.0$B pass = B of @layer.0$F dual [1] -> [1] stage = 0
// L4: piper.program @train$pp0
// L4: piper.program @train$pp1
