// DualPipe on pp 2 x dp 2 with a tied embedding: microbatches 0 and 1 enter at
// coordinate 0, microbatches 2 and 3 at coordinate 1. So every stage lives at
// both coordinates, and a tied weight needs nothing else than a twin stage:
// two holders, and a reduction across pp.
// RUN: piper-opt %s | piper-opt | FileCheck %s
// RUN: piper-opt %s -mlir-print-op-generic | piper-opt | FileCheck %s
// RUN: piper-opt %s -emit-bytecode | piper-opt | FileCheck %s

#R = #piper.layout<dp = replicated>
#V = #piper.layout<dp = varying>
#P = #piper.layout<dp = partial>
!x = tensor<4x8x16xf32>
!m = tensor<32x16xf32>
!mt = tensor<16x32xf32>
!ids = tensor<4x8xi64>
!z = tensor<32x32xf32>
!w = tensor<16x16xf32>
!b = tensor<16xf32>
!l = tensor<32xi64>
!s = tensor<f32>
!n = tensor<i64>
!xV = tensor<4x8x16xf32, #V>
!mV = tensor<32x16xf32, #V>
!idV = tensor<4x8xi64, #V>
!zV = tensor<32x32xf32, #V>
!wV = tensor<16x16xf32, #V>
!bV = tensor<16xf32, #V>
!sV = tensor<f32, #V>
!nV = tensor<i64, #V>
!mR = tensor<32x16xf32, #R>
!wR = tensor<16x16xf32, #R>
!bR = tensor<16xf32, #R>
!pR = tensor<272xf32, #R>
!gP = tensor<272xf32, #P>
!eR = tensor<512xf32, #R>
!hP = tensor<512xf32, #P>
!nP = tensor<i64, #P>
!nR = tensor<i64, #R>
!sP = tensor<f32, #P>
!sR = tensor<f32, #R>

piper.mesh @mesh [pp = 2 unrolled, dp = 2 manual]
piper.stream @compute
piper.stream @pp priority = 1
piper.stream @dp

piper.state @embed.weight parameter : !m aliases ["head.weight"] holders [0, 1]
piper.state @layers.0.fc.weight parameter : !w holders [0, 1]
piper.state @layers.0.fc.bias parameter : !b holders [0, 1]
piper.state @layers.1.fc.weight parameter : !w holders [0, 1]
piper.state @layers.1.fc.bias parameter : !b holders [0, 1]
piper.bucket @embed.weight$b [@embed.weight] value : !eR grad : !hP
piper.bucket @layers.0.fc.weight$b [@layers.0.fc.weight, @layers.0.fc.bias] value : !pR grad : !gP
piper.bucket @layers.1.fc.weight$b [@layers.1.fc.weight, @layers.1.fc.bias] value : !pR grad : !gP

// One row of homes per microbatch: the coordinate of stage 0 and of stage 1.
piper.strategy @strategy mesh = @mesh {
  piper.do.annotate {embed = "embed", head = "head", "layers.*" = "layer"}
  // CHECK: piper.do.place <all> stages = 2 axis = "pp" homes {{\[\[}}0, 1], [0, 1], [1, 0], [1, 0]]
  piper.do.place <all> stages = 2 axis = "pp" homes [[0, 1], [0, 1], [1, 0], [1, 0]]
  piper.do.split microbatches = 4 dims = {ids = 0, labels = 0}
  piper.do.replicate <all> axes = ["dp"] zero = 0 bucket = 25000000 reduce = "last" dtype = f32
  piper.do.order @order
  piper.do.update <all> optimizer = "train:make_adamw" clip = 1.0
}
// A cell stands in the row of its home: 1F2 is in the row of coordinate 0.
piper.schedule @order axis = "pp" stages = 2 microbatches = 4
    ["0F0 1F2 0F1 1B2 (1F3;0B0)OVERLAP_F_B 1B3 0B1",
     "0F2 1F0 0F3 1B0 (1F1;0B2)OVERLAP_F_B 1B1 0B3"]

piper.kernel @sum$0002(%labels: !ids) -> !n {
  %0 = torch "aten.ne.Scalar"(%labels, -100) facts <pure, flops = 32> : (!ids) -> tensor<4x8xi1>
  %1 = torch "aten.sum.default"(%0) facts <pure, flops = 32> : (tensor<4x8xi1>) -> !n
  return %1 : !n
}
piper.kernel @embedding$0003(%ids: !ids, %e: !m) -> !x {
  %0 = torch "aten.embedding.default"(%e, %ids) facts <pure> : (!m, !ids) -> !x
  return %0 : !x
}
piper.kernel @addmm_relu$6d20(%x: !x, %w: !w, %b: !b) -> (!x, !m) {
  %0 = torch "aten.view.default"(%x, [32, 16]) facts <view> : (!x) -> !m
  %1 = torch "aten.t.default"(%w) facts <view> : (!w) -> !w
  %2 = torch "aten.addmm.default"(%b, %0, %1) facts <pure, flops = 16384> : (!b, !m, !w) -> !m
  %3 = torch "aten.relu.default"(%2) facts <pure, flops = 512> : (!m) -> !m
  %4 = torch "aten.view.default"(%3, [4, 8, 16]) facts <view> : (!m) -> !x
  %5 = torch "aten.add.Tensor"(%x, %4) facts <pure, flops = 512> : (!x, !x) -> !x
  return %5, %3 : !x, !m
}
piper.kernel @mm_mm$15fe(%dy: !x, %x: !x, %r: !m, %w: !w) -> (!x, !w, !b) {
  %0 = torch "aten.view.default"(%dy, [32, 16]) facts <view> : (!x) -> !m
  %1 = torch "aten.threshold_backward.default"(%0, %r, 0) facts <pure, flops = 512> : (!m, !m) -> !m
  %2 = torch "aten.mm.default"(%1, %w) facts <pure, flops = 16384> : (!m, !w) -> !m
  %3 = torch "aten.t.default"(%1) facts <view> : (!m) -> !mt
  %4 = torch "aten.view.default"(%x, [32, 16]) facts <view> : (!x) -> !m
  %5 = torch "aten.mm.default"(%3, %4) facts <pure, flops = 16384> : (!mt, !m) -> !w
  %6 = torch "aten.sum.dim_IntList"(%1, [0]) facts <pure, flops = 512> : (!m) -> !b
  %7 = torch "aten.view.default"(%2, [4, 8, 16]) facts <view> : (!m) -> !x
  %8 = torch "aten.add.Tensor"(%dy, %7) facts <pure, flops = 512> : (!x, !x) -> !x
  return %8, %5, %6 : !x, !w, !b
}
piper.kernel @embedding_dense_backward$0004(%dx: !x, %ids: !ids) -> !m {
  %0 = torch "aten.embedding_dense_backward.default"(%dx, %ids, 32, -1, false) facts <pure> : (!x, !ids) -> !m
  return %0 : !m
}
piper.kernel @mm_nll$0005(%x: !x, %labels: !ids, %e: !m) -> (!s, !z) {
  %0 = torch "aten.view.default"(%x, [32, 16]) facts <view> : (!x) -> !m
  %1 = torch "aten.t.default"(%e) facts <view> : (!m) -> !mt
  %2 = torch "aten.mm.default"(%0, %1) facts <pure, flops = 32768> : (!m, !mt) -> !z
  %3 = torch "aten._log_softmax.default"(%2, 1, false) facts <pure, flops = 1024> : (!z) -> !z
  %4 = torch "aten.view.default"(%labels, [32]) facts <view> : (!ids) -> !l
  %5, %6 = torch "aten.nll_loss_forward.default"(%3, %4, none, 2, -100) facts <pure> : (!z, !l) -> (!s, !s)
  return %5, %3 : !s, !z
}
piper.kernel @nll_mm_mm$0006(%t: !s, %x: !x, %lp: !z, %labels: !ids, %e: !m) -> (!x, !m) {
  %0 = torch "aten.view.default"(%labels, [32]) facts <view> : (!ids) -> !l
  %1 = torch "aten.full.default"([], 1.0, dtype = f32, device = #piper.device<rank>) facts <pure> : () -> !s
  %2 = torch "aten.nll_loss_backward.default"(%t, %lp, %0, none, 2, -100, %1) facts <pure> : (!s, !z, !l, !s) -> !z
  %3 = torch "aten._log_softmax_backward_data.default"(%2, %lp, 1, f32) facts <pure, flops = 1024> : (!z, !z) -> !z
  %4 = torch "aten.t.default"(%3) facts <view> : (!z) -> !z
  %5 = torch "aten.view.default"(%x, [32, 16]) facts <view> : (!x) -> !m
  %6 = torch "aten.mm.default"(%4, %5) facts <pure, flops = 32768> : (!z, !m) -> !m
  %7 = torch "aten.mm.default"(%3, %e) facts <pure, flops = 32768> : (!z, !m) -> !m
  %8 = torch "aten.view.default"(%7, [4, 8, 16]) facts <view> : (!m) -> !x
  %9 = torch "aten.clone.default"(%8) facts <pure> : (!x) -> !x
  return %9, %6 : !x, !m
}

piper.chunk @loss$P pass = P (%labels: !idV) -> !nP {
  %n = launch @sum$0002(%labels) on @compute : (!idV) -> !nV
  %p = relabel %n : !nV -> !nP
  return %p : !nP
}
piper.chunk @embed.0$F pass = F stage = 0 (%ids: !idV, %p: !eR) -> !xV {
  %e = unpack @embed.weight$b %p : !eR -> !mR
  %x = launch @embedding$0003(%ids, %e) on @compute : (!idV, !mR) -> !xV
  return %x : !xV
}
piper.chunk @layer.0$F pass = F stage = 0 (%x: !xV, %p: !pR) -> (!xV, !mV) {
  %w, %b = unpack @layers.0.fc.weight$b %p : !pR -> !wR, !bR
  %y, %r = launch @addmm_relu$6d20(%x, %w, %b) on @compute : (!xV, !wR, !bR) -> (!xV, !mV)
  return %y, %r : !xV, !mV
}
piper.chunk @layer.1$F pass = F stage = 1 (%x: !xV, %p: !pR) -> (!xV, !mV) {
  %w, %b = unpack @layers.1.fc.weight$b %p : !pR -> !wR, !bR
  %y, %r = launch @addmm_relu$6d20(%x, %w, %b) on @compute : (!xV, !wR, !bR) -> (!xV, !mV)
  return %y, %r : !xV, !mV
}
piper.chunk @head.0$F pass = F stage = 1 (%x: !xV, %labels: !idV, %p: !eR) -> (!sP, !zV) {
  %e = unpack @embed.weight$b %p : !eR -> !mR
  %l, %lp = launch @mm_nll$0005(%x, %labels, %e) on @compute : (!xV, !idV, !mR) -> (!sV, !zV)
  %share = relabel %l : !sV -> !sP
  return %share, %lp : !sP, !zV
}
piper.chunk @head.0$B pass = B of @head.0$F dual [0] -> [0, 2] stage = 1 (%t: !sR, %x: !xV, %lp: !zV, %labels: !idV, %p: !eR) -> (!xV, !hP) {
  %e = unpack @embed.weight$b %p : !eR -> !mR
  %dx, %g = launch @nll_mm_mm$0006(%t, %x, %lp, %labels, %e) on @compute : (!sR, !xV, !zV, !idV, !mR) -> (!xV, !mV)
  %h = pack @embed.weight$b %g : !mV -> !hP
  return %dx, %h : !xV, !hP
}
piper.chunk @layer.1$B pass = B of @layer.1$F dual [0] -> [0, 1] stage = 1 (%dy: !xV, %x: !xV, %r: !mV, %p: !pR) -> (!xV, !gP) {
  %w, %b = unpack @layers.1.fc.weight$b %p : !pR -> !wR, !bR
  %dx, %dw, %db = launch @mm_mm$15fe(%dy, %x, %r, %w) on @compute : (!xV, !xV, !mV, !wR) -> (!xV, !wV, !bV)
  %g = pack @layers.1.fc.weight$b %dw, %db : !wV, !bV -> !gP
  return %dx, %g : !xV, !gP
}
piper.chunk @layer.0$B pass = B of @layer.0$F dual [0] -> [0, 1] stage = 0 (%dy: !xV, %x: !xV, %r: !mV, %p: !pR) -> (!xV, !gP) {
  %w, %b = unpack @layers.0.fc.weight$b %p : !pR -> !wR, !bR
  %dx, %dw, %db = launch @mm_mm$15fe(%dy, %x, %r, %w) on @compute : (!xV, !xV, !mV, !wR) -> (!xV, !wV, !bV)
  %g = pack @layers.0.fc.weight$b %dw, %db : !wV, !bV -> !gP
  return %dx, %g : !xV, !gP
}
piper.chunk @embed.0$B pass = B of @embed.0$F dual [0] -> [1] stage = 0 (%dx: !xV, %ids: !idV) -> !hP {
  %g = launch @embedding_dense_backward$0004(%dx, %ids) on @compute : (!xV, !idV) -> !mV
  %h = pack @embed.weight$b %g : !mV -> !hP
  return %h : !hP
}

// One microbatch, before it is placed: the step knows of two homes, the chunks
// do not.
// CHECK-LABEL: piper.step @train phase = bucketed
// CHECK-SAME: microbatches = 4 order = @order homes {{\[\[}}0, 1], [0, 1], [1, 0], [1, 0]] (%ids: !i64_4x8_dpV
piper.step @train phase = bucketed mesh = @mesh inputs ["ids", "labels"] dims [0, 0] axes ["dp"] microbatches = 4 order = @order
    homes [[0, 1], [0, 1], [1, 0], [1, 0]] (%ids: !idV, %labels: !idV) {
  %pe = read @embed.weight$b slot value : !eR
  %p0 = read @layers.0.fc.weight$b slot value : !pR
  %p1 = read @layers.1.fc.weight$b slot value : !pR
  %n = run @loss$P(%labels) : (!idV) -> !nP
  %t = tangent "loss" count %n : !nP coeff 1.0 -> !sR
  %x0 = run @embed.0$F(%ids, %pe) : (!idV, !eR) -> !xV
  %x1, %r0 = run @layer.0$F(%x0, %p0) : (!xV, !pR) -> (!xV, !mV)
  %x2, %r1 = run @layer.1$F(%x1, %p1) : (!xV, !pR) -> (!xV, !mV)
  %l, %lp = run @head.0$F(%x2, %labels, %pe) : (!xV, !idV, !eR) -> (!sP, !zV)
  output "loss" %l scale %t : !sP, !sR
  %d2, %he = run @head.0$B(%t, %x2, %lp, %labels, %pe) : (!sR, !xV, !zV, !idV, !eR) -> (!xV, !hP)
  %d1, %g1 = run @layer.1$B(%d2, %x1, %r1, %p1) : (!xV, !xV, !mV, !pR) -> (!xV, !gP)
  %d0, %g0 = run @layer.0$B(%d1, %x0, %r0, %p0) : (!xV, !xV, !mV, !pR) -> (!xV, !gP)
  %ee = run @embed.0$B(%d0, %ids) : (!xV, !idV) -> !hP
}

// At phase reduced block order means nothing; the text goes by microbatch.
// CHECK-LABEL: piper.cluster @train$cluster of @train phase = reduced
piper.cluster @train$cluster of @train phase = reduced mesh = @mesh order = @order microbatches = 4 {
  %pe0 = read @embed.weight$b slot value at 0 : !eR
  %pe1 = read @embed.weight$b slot value at 1 : !eR
  %p00 = read @layers.0.fc.weight$b slot value at 0 : !pR
  %p01 = read @layers.0.fc.weight$b slot value at 1 : !pR
  %p10 = read @layers.1.fc.weight$b slot value at 0 : !pR
  %p11 = read @layers.1.fc.weight$b slot value at 1 : !pR
  // Labels are used where a microbatch leaves: 2 and 3 at coordinate 0.
  %y_0 = input "labels" mb 0 at 1 : !idV
  %y_1 = input "labels" mb 1 at 1 : !idV
  %y_2 = input "labels" mb 2 at 0 : !idV
  %y_3 = input "labels" mb 3 at 0 : !idV
  %n_0 = run @loss$P(%y_0) mb 0 at 1 : (!idV) -> !nP
  %n_1 = run @loss$P(%y_1) mb 1 at 1 : (!idV) -> !nP
  %n_2 = run @loss$P(%y_2) mb 2 at 0 : (!idV) -> !nP
  %n_3 = run @loss$P(%y_3) mb 3 at 0 : (!idV) -> !nP
  %c0 = sum %n_2, %n_3 at 0 : !nP -> !nP
  %c1 = sum %n_0, %n_1 at 1 : !nP -> !nP
  // CHECK: all_reduce %{{.*}}, %{{.*}} at [0, 1] over ["dp"] across "pp" on @dp : !i64_scalar_dpP, !i64_scalar_dpP -> !i64_scalar_dpR, !i64_scalar_dpR
  %N0, %N1 = all_reduce %c0, %c1 at [0, 1] over ["dp"] across "pp" on @dp : !nP, !nP -> !nR, !nR
  %t0 = tangent "loss" count %N0 : !nR coeff 1.0 at 0 -> !sR
  %t1 = tangent "loss" count %N1 : !nR coeff 1.0 at 1 -> !sR
  // Microbatch 0, downwards
  // CHECK: run @embed.0$F(%{{.*}}, %{{.*}}) mb 0 at 0
  // CHECK: transfer %{{.*}} from 0 to 1 mb 0
  %i_0 = input "ids" mb 0 at 0 : !idV
  %x0_0 = run @embed.0$F(%i_0, %pe0) mb 0 at 0 : (!idV, !eR) -> !xV
  %x1_0, %r0_0 = run @layer.0$F(%x0_0, %p00) mb 0 at 0 : (!xV, !pR) -> (!xV, !mV)
  %x1r_0 = transfer %x1_0 from 0 to 1 mb 0 on @pp : !xV
  %x2_0, %r1_0 = run @layer.1$F(%x1r_0, %p11) mb 0 at 1 : (!xV, !pR) -> (!xV, !mV)
  %l_0, %lp_0 = run @head.0$F(%x2_0, %y_0, %pe1) mb 0 at 1 : (!xV, !idV, !eR) -> (!sP, !zV)
  %d2_0, %he_0 = run @head.0$B(%t1, %x2_0, %lp_0, %y_0, %pe1) mb 0 at 1 : (!sR, !xV, !zV, !idV, !eR) -> (!xV, !hP)
  %d1_0, %g1_0 = run @layer.1$B(%d2_0, %x1r_0, %r1_0, %p11) mb 0 at 1 : (!xV, !xV, !mV, !pR) -> (!xV, !gP)
  %d1r_0 = transfer %d1_0 from 1 to 0 mb 0 on @pp : !xV
  %d0_0, %g0_0 = run @layer.0$B(%d1r_0, %x0_0, %r0_0, %p00) mb 0 at 0 : (!xV, !xV, !mV, !pR) -> (!xV, !gP)
  %ee_0 = run @embed.0$B(%d0_0, %i_0) mb 0 at 0 : (!xV, !idV) -> !hP
  // Microbatch 1, downwards
  %i_1 = input "ids" mb 1 at 0 : !idV
  %x0_1 = run @embed.0$F(%i_1, %pe0) mb 1 at 0 : (!idV, !eR) -> !xV
  %x1_1, %r0_1 = run @layer.0$F(%x0_1, %p00) mb 1 at 0 : (!xV, !pR) -> (!xV, !mV)
  %x1r_1 = transfer %x1_1 from 0 to 1 mb 1 on @pp : !xV
  %x2_1, %r1_1 = run @layer.1$F(%x1r_1, %p11) mb 1 at 1 : (!xV, !pR) -> (!xV, !mV)
  %l_1, %lp_1 = run @head.0$F(%x2_1, %y_1, %pe1) mb 1 at 1 : (!xV, !idV, !eR) -> (!sP, !zV)
  %d2_1, %he_1 = run @head.0$B(%t1, %x2_1, %lp_1, %y_1, %pe1) mb 1 at 1 : (!sR, !xV, !zV, !idV, !eR) -> (!xV, !hP)
  %d1_1, %g1_1 = run @layer.1$B(%d2_1, %x1r_1, %r1_1, %p11) mb 1 at 1 : (!xV, !xV, !mV, !pR) -> (!xV, !gP)
  %d1r_1 = transfer %d1_1 from 1 to 0 mb 1 on @pp : !xV
  %d0_1, %g0_1 = run @layer.0$B(%d1r_1, %x0_1, %r0_1, %p00) mb 1 at 0 : (!xV, !xV, !mV, !pR) -> (!xV, !gP)
  %ee_1 = run @embed.0$B(%d0_1, %i_1) mb 1 at 0 : (!xV, !idV) -> !hP
  // Microbatch 2, upwards
  // CHECK: run @embed.0$F(%{{.*}}, %{{.*}}) mb 2 at 1
  // CHECK: transfer %{{.*}} from 1 to 0 mb 2
  %i_2 = input "ids" mb 2 at 1 : !idV
  %x0_2 = run @embed.0$F(%i_2, %pe1) mb 2 at 1 : (!idV, !eR) -> !xV
  %x1_2, %r0_2 = run @layer.0$F(%x0_2, %p01) mb 2 at 1 : (!xV, !pR) -> (!xV, !mV)
  %x1r_2 = transfer %x1_2 from 1 to 0 mb 2 on @pp : !xV
  %x2_2, %r1_2 = run @layer.1$F(%x1r_2, %p10) mb 2 at 0 : (!xV, !pR) -> (!xV, !mV)
  %l_2, %lp_2 = run @head.0$F(%x2_2, %y_2, %pe0) mb 2 at 0 : (!xV, !idV, !eR) -> (!sP, !zV)
  %d2_2, %he_2 = run @head.0$B(%t0, %x2_2, %lp_2, %y_2, %pe0) mb 2 at 0 : (!sR, !xV, !zV, !idV, !eR) -> (!xV, !hP)
  %d1_2, %g1_2 = run @layer.1$B(%d2_2, %x1r_2, %r1_2, %p10) mb 2 at 0 : (!xV, !xV, !mV, !pR) -> (!xV, !gP)
  %d1r_2 = transfer %d1_2 from 0 to 1 mb 2 on @pp : !xV
  %d0_2, %g0_2 = run @layer.0$B(%d1r_2, %x0_2, %r0_2, %p01) mb 2 at 1 : (!xV, !xV, !mV, !pR) -> (!xV, !gP)
  %ee_2 = run @embed.0$B(%d0_2, %i_2) mb 2 at 1 : (!xV, !idV) -> !hP
  // Microbatch 3, upwards
  %i_3 = input "ids" mb 3 at 1 : !idV
  %x0_3 = run @embed.0$F(%i_3, %pe1) mb 3 at 1 : (!idV, !eR) -> !xV
  %x1_3, %r0_3 = run @layer.0$F(%x0_3, %p01) mb 3 at 1 : (!xV, !pR) -> (!xV, !mV)
  %x1r_3 = transfer %x1_3 from 1 to 0 mb 3 on @pp : !xV
  %x2_3, %r1_3 = run @layer.1$F(%x1r_3, %p10) mb 3 at 0 : (!xV, !pR) -> (!xV, !mV)
  %l_3, %lp_3 = run @head.0$F(%x2_3, %y_3, %pe0) mb 3 at 0 : (!xV, !idV, !eR) -> (!sP, !zV)
  %d2_3, %he_3 = run @head.0$B(%t0, %x2_3, %lp_3, %y_3, %pe0) mb 3 at 0 : (!sR, !xV, !zV, !idV, !eR) -> (!xV, !hP)
  %d1_3, %g1_3 = run @layer.1$B(%d2_3, %x1r_3, %r1_3, %p10) mb 3 at 0 : (!xV, !xV, !mV, !pR) -> (!xV, !gP)
  %d1r_3 = transfer %d1_3 from 0 to 1 mb 3 on @pp : !xV
  %d0_3, %g0_3 = run @layer.0$B(%d1r_3, %x0_3, %r0_3, %p01) mb 3 at 1 : (!xV, !xV, !mV, !pR) -> (!xV, !gP)
  %ee_3 = run @embed.0$B(%d0_3, %i_3) mb 3 at 1 : (!xV, !idV) -> !hP
  // The tied weight: two embeddings and two heads at each coordinate.
  // CHECK: %[[E0:.*]] = sum bucket @embed.weight$b %{{.*}}, %{{.*}}, %{{.*}}, %{{.*}} at 0 : !f32_512_dpP -> !f32_512_dpP
  // CHECK: %[[E1:.*]] = sum bucket @embed.weight$b %{{.*}}, %{{.*}}, %{{.*}}, %{{.*}} at 1 : !f32_512_dpP -> !f32_512_dpP
  // CHECK: %[[T:.*]]:2 = all_reduce %[[E0]], %[[E1]] at [0, 1] over ["dp"] across "pp" on @dp
  %E0 = sum bucket @embed.weight$b %ee_0, %ee_1, %he_2, %he_3 at 0 : !hP -> !hP
  %E1 = sum bucket @embed.weight$b %he_0, %he_1, %ee_2, %ee_3 at 1 : !hP -> !hP
  %T0, %T1 = all_reduce %E0, %E1 at [0, 1] over ["dp"] across "pp" on @dp : !hP, !hP -> !eR, !eR
  // The twin stages, in the same words.
  %A0 = sum bucket @layers.0.fc.weight$b %g0_0, %g0_1 at 0 : !gP -> !gP
  %A1 = sum bucket @layers.0.fc.weight$b %g0_2, %g0_3 at 1 : !gP -> !gP
  %U0, %U1 = all_reduce %A0, %A1 at [0, 1] over ["dp"] across "pp" on @dp : !gP, !gP -> !pR, !pR
  %B0 = sum bucket @layers.1.fc.weight$b %g1_2, %g1_3 at 0 : !gP -> !gP
  %B1 = sum bucket @layers.1.fc.weight$b %g1_0, %g1_1 at 1 : !gP -> !gP
  %V0, %V1 = all_reduce %B0, %B1 at [0, 1] over ["dp"] across "pp" on @dp : !gP, !gP -> !pR, !pR
  %L0 = sum %l_2, %l_3 at 0 : !sP -> !sP
  %L1 = sum %l_0, %l_1 at 1 : !sP -> !sP
  %La, %Lb = all_reduce %L0, %L1 at [0, 1] over ["dp"] across "pp" on @dp : !sP, !sP -> !sR, !sR
  output "loss" %La scale %t0 at 0 : !sR, !sR
  // Each state counts at its first holder, so coordinate 1 adds nothing to the
  // norm; it still takes part.
  // CHECK: sumsq at 1 : () -> !f32_scalar_dpR
  %s0 = sumsq %T0, %U0, %V0 at 0 : (!eR, !pR, !pR) -> !sR
  %s1 = sumsq at 1 : () -> !sR
  %q0, %q1 = all_reduce %s0, %s1 at [0, 1] over [] across "pp" on @pp : !sR, !sR -> !sR, !sR
  // Two updates per bucket, fed by one reduction: equal bits on both holders.
  // CHECK: update @embed.weight$b %[[T]]#0 norm %[[Q:.*]]#0 : !f32_scalar_dpR at 0
  // CHECK: update @embed.weight$b %[[T]]#1 norm %[[Q]]#1 : !f32_scalar_dpR at 1
  %ue0 = update @embed.weight$b %T0 norm %q0 : !sR at 0 optimizer "train:make_adamw" clip 1.0 : !eR -> !eR
  %ue1 = update @embed.weight$b %T1 norm %q1 : !sR at 1 optimizer "train:make_adamw" clip 1.0 : !eR -> !eR
  %u00 = update @layers.0.fc.weight$b %U0 norm %q0 : !sR at 0 optimizer "train:make_adamw" clip 1.0 : !pR -> !pR
  %u01 = update @layers.0.fc.weight$b %U1 norm %q1 : !sR at 1 optimizer "train:make_adamw" clip 1.0 : !pR -> !pR
  %u10 = update @layers.1.fc.weight$b %V0 norm %q0 : !sR at 0 optimizer "train:make_adamw" clip 1.0 : !pR -> !pR
  %u11 = update @layers.1.fc.weight$b %V1 norm %q1 : !sR at 1 optimizer "train:make_adamw" clip 1.0 : !pR -> !pR
}
