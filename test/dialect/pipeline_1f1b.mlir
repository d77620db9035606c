// 1F1B on pp 2 x dp 2 with 2 microbatches, one layer per stage and a tied
// embedding: the cluster as ordered, and the program of coordinate 1.
// RUN: piper-opt %s | piper-opt | FileCheck %s
// RUN: piper-opt %s -mlir-print-op-generic | piper-opt | FileCheck %s
// RUN: piper-opt %s -emit-bytecode | piper-opt | FileCheck %s

#R = #piper.layout<dp = replicated>
#V = #piper.layout<dp = varying>
#P = #piper.layout<dp = partial>
!x = tensor<4x8x16xf32>
!k = tensor<4x8x1xf32>
!m = tensor<32x16xf32>
!ids = tensor<4x8xi64>
!z = tensor<32x32xf32>
!w = tensor<16x16xf32>
!b = tensor<16xf32>
!s = tensor<f32>
!n = tensor<i64>
!xV = tensor<4x8x16xf32, #V>
!kV = tensor<4x8x1xf32, #V>
!mV = tensor<32x16xf32, #V>
!idV = tensor<4x8xi64, #V>
!zV = tensor<32x32xf32, #V>
!sV = tensor<f32, #V>
!nV = tensor<i64, #V>
!mR = tensor<32x16xf32, #R>
!wR = tensor<16x16xf32, #R>
!bR = tensor<16xf32, #R>
!wV = tensor<16x16xf32, #V>
!bV = tensor<16xf32, #V>
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
piper.comm @send$0.1 axes [] coordinates [0, 1] for @pp
piper.comm @send$1.0 axes [] coordinates [1, 0] for @pp
piper.comm @reduce.dp$1 axes ["dp"] coordinates [1] for @dp
piper.comm @reduce.dp.pp$0.1 axes ["dp"] coordinates [0, 1] for @dp
piper.comm @reduce.pp$0.1 axes [] coordinates [0, 1] for @pp

piper.state @embed.weight parameter : !m aliases ["head.weight"] holders [0, 1]
piper.state @layers.0.fc.weight parameter : !w holders [0]
piper.state @layers.0.fc.bias parameter : !b holders [0]
piper.state @layers.1.fc.weight parameter : !w holders [1]
piper.state @layers.1.fc.bias parameter : !b holders [1]
piper.bucket @embed.weight$b [@embed.weight] value : !eR grad : !hP
piper.bucket @layers.0.fc.weight$b [@layers.0.fc.weight, @layers.0.fc.bias] value : !pR grad : !gP
piper.bucket @layers.1.fc.weight$b [@layers.1.fc.weight, @layers.1.fc.bias] value : !pR grad : !gP

piper.strategy @strategy mesh = @mesh {
  piper.do.annotate {embed = "embed", head = "head", "layers.*" = "layer"}
  piper.do.place <all> stages = 2 axis = "pp"
  piper.do.split microbatches = 2 dims = {ids = 0, labels = 0}
  piper.do.replicate <all> axes = ["dp"] zero = 0 bucket = 25000000 reduce = "last" dtype = f32
  piper.do.order @order
  piper.do.update <all> optimizer = "train:make_adamw" clip = 1.0
}
piper.schedule @order axis = "pp" stages = 2 microbatches = 2
    ["0F0 0F1 0B0 0B1", "1F0 1B0 1F1 1B1"]

// Kernels: what layers share. Locations stand on the launches.
piper.kernel @ne$0001(%ids: !ids) -> !k {
  %0 = torch "aten.ne.Scalar"(%ids, 0) facts <pure, flops = 32> : (!ids) -> tensor<4x8xi1>
  %1 = torch "aten.unsqueeze.default"(%0, -1) facts <view> : (tensor<4x8xi1>) -> tensor<4x8x1xi1>
  %2 = torch "aten._to_copy.default"(%1, dtype = f32, device = #piper.device<rank>) facts <pure, flops = 32> : (tensor<4x8x1xi1>) -> !k
  return %2 : !k
}
piper.kernel @sum$0002(%labels: !ids) -> !n {
  %0 = torch "aten.ne.Scalar"(%labels, -100) facts <pure, flops = 32> : (!ids) -> tensor<4x8xi1>
  %1 = torch "aten.sum.default"(%0) facts <pure, flops = 32> : (tensor<4x8xi1>) -> !n
  return %1 : !n
}
piper.kernel @embedding$0003(%ids: !ids, %e: !m) -> !x {
  %0 = torch "aten.embedding.default"(%e, %ids) facts <pure> : (!m, !ids) -> !x
  return %0 : !x
}
piper.kernel @addmm_relu$7c1e(%x: !x, %k: !k, %w: !w, %b: !b) -> (!x, !m) {
  %0 = torch "aten.view.default"(%x, [32, 16]) facts <view> : (!x) -> !m
  %1 = torch "aten.t.default"(%w) facts <view> : (!w) -> !w
  %2 = torch "aten.addmm.default"(%b, %0, %1) facts <pure, flops = 16384> : (!b, !m, !w) -> !m
  %3 = torch "aten.relu.default"(%2) facts <pure, flops = 512> : (!m) -> !m
  %4 = torch "aten.view.default"(%3, [4, 8, 16]) facts <view> : (!m) -> !x
  %5 = torch "aten.mul.Tensor"(%4, %k) facts <pure, flops = 512> : (!x, !k) -> !x
  %6 = torch "aten.add.Tensor"(%x, %5) facts <pure, flops = 512> : (!x, !x) -> !x
  return %6, %3 : !x, !m
} cost <flops = 17920, bytes = 7360>
piper.kernel @mm_mm$90d4(%dy: !x, %x: !x, %k: !k, %r: !m, %w: !w) -> (!x, !w, !b) {
  %0 = torch "aten.mul.Tensor"(%dy, %k) facts <pure, flops = 512> : (!x, !k) -> !x
  %1 = torch "aten.view.default"(%0, [32, 16]) facts <view> : (!x) -> !m
  %2 = torch "aten.threshold_backward.default"(%1, %r, 0) facts <pure, flops = 512> : (!m, !m) -> !m
  %3 = torch "aten.mm.default"(%2, %w) facts <pure, flops = 16384> : (!m, !w) -> !m
  %4 = torch "aten.t.default"(%2) facts <view> : (!m) -> tensor<16x32xf32>
  %5 = torch "aten.view.default"(%x, [32, 16]) facts <view> : (!x) -> !m
  %6 = torch "aten.mm.default"(%4, %5) facts <pure, flops = 16384> : (tensor<16x32xf32>, !m) -> !w
  %7 = torch "aten.sum.dim_IntList"(%2, [0]) facts <pure, flops = 512> : (!m) -> !b
  %8 = torch "aten.view.default"(%3, [4, 8, 16]) facts <view> : (!m) -> !x
  %9 = torch "aten.add.Tensor"(%dy, %8) facts <pure, flops = 512> : (!x, !x) -> !x
  return %9, %6, %7 : !x, !w, !b
}
piper.kernel @embedding_dense_backward$0004(%dx: !x, %ids: !ids) -> !m {
  %0 = torch "aten.embedding_dense_backward.default"(%dx, %ids, 32, -1, false) facts <pure> : (!x, !ids) -> !m
  return %0 : !m
}
piper.kernel @mm_nll$0005(%x: !x, %labels: !ids, %e: !m) -> (!s, !z) {
  %0 = torch "aten.view.default"(%x, [32, 16]) facts <view> : (!x) -> !m
  %1 = torch "aten.t.default"(%e) facts <view> : (!m) -> tensor<16x32xf32>
  %2 = torch "aten.mm.default"(%0, %1) facts <pure, flops = 32768> : (!m, tensor<16x32xf32>) -> !z
  %3 = torch "aten._log_softmax.default"(%2, 1, false) facts <pure, flops = 1024> : (!z) -> !z
  %4 = torch "aten.view.default"(%labels, [32]) facts <view> : (!ids) -> tensor<32xi64>
  %5, %6 = torch "aten.nll_loss_forward.default"(%3, %4, none, 2, -100) facts <pure> : (!z, tensor<32xi64>) -> (!s, !s)
  return %5, %3 : !s, !z
}
piper.kernel @nll_mm_mm$0006(%t: !s, %x: !x, %lp: !z, %labels: !ids, %e: !m) -> (!x, !m) {
  %0 = torch "aten.view.default"(%labels, [32]) facts <view> : (!ids) -> tensor<32xi64>
  %1 = torch "aten.full.default"([], 1.0, dtype = f32, device = #piper.device<rank>) facts <pure> : () -> !s
  %2 = torch "aten.nll_loss_backward.default"(%t, %lp, %0, none, 2, -100, %1) facts <pure> : (!s, !z, tensor<32xi64>, !s) -> !z
  %3 = torch "aten._log_softmax_backward_data.default"(%2, %lp, 1, f32) facts <pure, flops = 1024> : (!z, !z) -> !z
  %4 = torch "aten.t.default"(%3) facts <view> : (!z) -> !z
  %5 = torch "aten.view.default"(%x, [32, 16]) facts <view> : (!x) -> !m
  %6 = torch "aten.mm.default"(%4, %5) facts <pure, flops = 32768> : (!z, !m) -> !m
  %7 = torch "aten.mm.default"(%3, %e) facts <pure, flops = 32768> : (!z, !m) -> !m
  %8 = torch "aten.view.default"(%7, [4, 8, 16]) facts <view> : (!m) -> !x
  %9 = torch "aten.clone.default"(%8) facts <pure> : (!x) -> !x
  return %9, %6 : !x, !m
}

// Chunks: kinds appear here. The one place where a varying gradient becomes
// partial is the pack, the dual of the unpack.
piper.chunk @keep$P pass = P (%ids: !idV) -> !kV {
  %k = launch @ne$0001(%ids) on @compute : (!idV) -> !kV
  return %k : !kV
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
piper.chunk @embed.0$B pass = B of @embed.0$F dual [0] -> [1] stage = 0 (%dx: !xV, %ids: !idV) -> !hP {
  %g = launch @embedding_dense_backward$0004(%dx, %ids) on @compute : (!xV, !idV) -> !mV
  %h = pack @embed.weight$b %g : !mV -> !hP
  return %h : !hP
}
piper.chunk @layer.0$F pass = F stage = 0 (%x: !xV, %k: !kV, %p: !pR) -> (!xV, !mV) {
  %w, %b = unpack @layers.0.fc.weight$b %p : !pR -> !wR, !bR
  %y, %r = launch @addmm_relu$7c1e(%x, %k, %w, %b) on @compute : (!xV, !kV, !wR, !bR) -> (!xV, !mV)
  return %y, %r : !xV, !mV
}
// CHECK-LABEL: piper.chunk @layer.0$B pass = B of @layer.0$F dual [0] -> [0, 2] stage = 0
// CHECK: unpack @layers.0.fc.weight$b %{{.*}} : !f32_272_dpR -> !f32_16x16_dpR, !f32_16_dpR
// CHECK: launch @mm_mm$90d4
// CHECK: pack @layers.0.fc.weight$b %{{.*}}, %{{.*}} : !f32_16x16_dpV, !f32_16_dpV -> !f32_272_dpP
piper.chunk @layer.0$B pass = B of @layer.0$F dual [0] -> [0, 2] stage = 0 (%dy: !xV, %x: !xV, %k: !kV, %r: !mV, %p: !pR) -> (!xV, !gP) {
  %w, %b = unpack @layers.0.fc.weight$b %p : !pR -> !wR, !bR
  %dx, %dw, %db = launch @mm_mm$90d4(%dy, %x, %k, %r, %w) on @compute : (!xV, !xV, !kV, !mV, !wR) -> (!xV, !wV, !bV)
  %g = pack @layers.0.fc.weight$b %dw, %db : !wV, !bV -> !gP
  return %dx, %g : !xV, !gP
}
piper.chunk @layer.1$F pass = F stage = 1 (%x: !xV, %k: !kV, %p: !pR) -> (!xV, !mV) {
  %w, %b = unpack @layers.1.fc.weight$b %p : !pR -> !wR, !bR
  %y, %r = launch @addmm_relu$7c1e(%x, %k, %w, %b) on @compute : (!xV, !kV, !wR, !bR) -> (!xV, !mV)
  return %y, %r : !xV, !mV
}
piper.chunk @layer.1$B pass = B of @layer.1$F dual [0] -> [0, 2] stage = 1 (%dy: !xV, %x: !xV, %k: !kV, %r: !mV, %p: !pR) -> (!xV, !gP) {
  %w, %b = unpack @layers.1.fc.weight$b %p : !pR -> !wR, !bR
  %dx, %dw, %db = launch @mm_mm$90d4(%dy, %x, %k, %r, %w) on @compute : (!xV, !xV, !kV, !mV, !wR) -> (!xV, !wV, !bV)
  %g = pack @layers.1.fc.weight$b %dw, %db : !wV, !bV -> !gP
  return %dx, %g : !xV, !gP
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

// CHECK-LABEL: piper.cluster @train$cluster of @train phase = ordered
piper.cluster @train$cluster of @train phase = ordered mesh = @mesh order = @order microbatches = 2 {
  %pe0 = read @embed.weight$b slot value at 0 : !eR
  %pe1 = read @embed.weight$b slot value at 1 : !eR
  %p0 = read @layers.0.fc.weight$b slot value at 0 : !pR
  %p1 = read @layers.1.fc.weight$b slot value at 1 : !pR
  %y_0 = input "labels" mb 0 at 1 : !idV
  %n_0 = run @loss$P(%y_0) mb 0 at 1 : (!idV) -> !nP
  %y_1 = input "labels" mb 1 at 1 : !idV
  %n_1 = run @loss$P(%y_1) mb 1 at 1 : (!idV) -> !nP
  %n = sum %n_0, %n_1 at 1 : !nP -> !nP
  %N = all_reduce %n at [1] over ["dp"] on @dp : !nP -> !nR
  %t = tangent "loss" count %N : !nR coeff 1.0 at 1 -> !sR
  // 0F0
  %i_0 = input "ids" mb 0 at 0 : !idV
  %k_0 = run @keep$P(%i_0) mb 0 at 0 : (!idV) -> !kV
  %x0_0 = run @embed.0$F(%i_0, %pe0) mb 0 at 0 : (!idV, !eR) -> !xV
  %x1_0, %r0_0 = run @layer.0$F(%x0_0, %k_0, %p0) mb 0 at 0 : (!xV, !kV, !pR) -> (!xV, !mV)
  // CHECK: transfer %{{.*}} from 0 to 1 mb 0 on @pp : !f32_4x8x16_dpV
  %x1r_0 = transfer %x1_0 from 0 to 1 mb 0 on @pp : !xV
  // 1F0: the mask is made again, not sent
  %j_0 = input "ids" mb 0 at 1 : !idV
  %q_0 = run @keep$P(%j_0) mb 0 at 1 : (!idV) -> !kV
  %x2_0, %r1_0 = run @layer.1$F(%x1r_0, %q_0, %p1) mb 0 at 1 : (!xV, !kV, !pR) -> (!xV, !mV)
  %l_0, %lp_0 = run @head.0$F(%x2_0, %y_0, %pe1) mb 0 at 1 : (!xV, !idV, !eR) -> (!sP, !zV)
  // 0F1
  %i_1 = input "ids" mb 1 at 0 : !idV
  %k_1 = run @keep$P(%i_1) mb 1 at 0 : (!idV) -> !kV
  %x0_1 = run @embed.0$F(%i_1, %pe0) mb 1 at 0 : (!idV, !eR) -> !xV
  %x1_1, %r0_1 = run @layer.0$F(%x0_1, %k_1, %p0) mb 1 at 0 : (!xV, !kV, !pR) -> (!xV, !mV)
  %x1r_1 = transfer %x1_1 from 0 to 1 mb 1 on @pp : !xV
  // 1B0
  %d2_0, %he_0 = run @head.0$B(%t, %x2_0, %lp_0, %y_0, %pe1) mb 0 at 1 : (!sR, !xV, !zV, !idV, !eR) -> (!xV, !hP)
  %E1a = accumulate @embed.weight$b %he_0 at 1 : !hP -> !hP
  %d1_0, %g1_0 = run @layer.1$B(%d2_0, %x1r_0, %q_0, %r1_0, %p1) mb 0 at 1 : (!xV, !xV, !kV, !mV, !pR) -> (!xV, !gP)
  %G1a = accumulate @layers.1.fc.weight$b %g1_0 at 1 : !gP -> !gP
  %d1r_0 = transfer %d1_0 from 1 to 0 mb 0 on @pp : !xV
  // 0B0
  %d0_0, %g0_0 = run @layer.0$B(%d1r_0, %x0_0, %k_0, %r0_0, %p0) mb 0 at 0 : (!xV, !xV, !kV, !mV, !pR) -> (!xV, !gP)
  %G0a = accumulate @layers.0.fc.weight$b %g0_0 at 0 : !gP -> !gP
  %ee_0 = run @embed.0$B(%d0_0, %i_0) mb 0 at 0 : (!xV, !idV) -> !hP
  %E0a = accumulate @embed.weight$b %ee_0 at 0 : !hP -> !hP
  // 1F1
  %j_1 = input "ids" mb 1 at 1 : !idV
  %q_1 = run @keep$P(%j_1) mb 1 at 1 : (!idV) -> !kV
  %x2_1, %r1_1 = run @layer.1$F(%x1r_1, %q_1, %p1) mb 1 at 1 : (!xV, !kV, !pR) -> (!xV, !mV)
  %l_1, %lp_1 = run @head.0$F(%x2_1, %y_1, %pe1) mb 1 at 1 : (!xV, !idV, !eR) -> (!sP, !zV)
  // 1B1
  %d2_1, %he_1 = run @head.0$B(%t, %x2_1, %lp_1, %y_1, %pe1) mb 1 at 1 : (!sR, !xV, !zV, !idV, !eR) -> (!xV, !hP)
  // CHECK: accumulate @embed.weight$b %{{.*}} onto %{{.*}} at 1 : !f32_512_dpP -> !f32_512_dpP
  %E1 = accumulate @embed.weight$b %he_1 onto %E1a at 1 : !hP -> !hP
  %d1_1, %g1_1 = run @layer.1$B(%d2_1, %x1r_1, %q_1, %r1_1, %p1) mb 1 at 1 : (!xV, !xV, !kV, !mV, !pR) -> (!xV, !gP)
  %G1 = accumulate @layers.1.fc.weight$b %g1_1 onto %G1a at 1 : !gP -> !gP
  %R1 = all_reduce %G1 at [1] over ["dp"] on @dp : !gP -> !pR
  %d1r_1 = transfer %d1_1 from 1 to 0 mb 1 on @pp : !xV
  // 0B1
  %d0_1, %g0_1 = run @layer.0$B(%d1r_1, %x0_1, %k_1, %r0_1, %p0) mb 1 at 0 : (!xV, !xV, !kV, !mV, !pR) -> (!xV, !gP)
  %G0 = accumulate @layers.0.fc.weight$b %g0_1 onto %G0a at 0 : !gP -> !gP
  %R0 = all_reduce %G0 at [0] over ["dp"] on @dp : !gP -> !pR
  %ee_1 = run @embed.0$B(%d0_1, %i_1) mb 1 at 0 : (!xV, !idV) -> !hP
  %E0 = accumulate @embed.weight$b %ee_1 onto %E0a at 0 : !hP -> !hP
  // The tied weight is held twice: four ranks, one call.
  // CHECK: all_reduce %{{.*}}, %{{.*}} at [0, 1] over ["dp"] across "pp" on @dp : !f32_512_dpP, !f32_512_dpP -> !f32_512_dpR, !f32_512_dpR
  %T0, %T1 = all_reduce %E0, %E1 at [0, 1] over ["dp"] across "pp" on @dp : !hP, !hP -> !eR, !eR
  %L = sum %l_0, %l_1 at 1 : !sP -> !sP
  %La = all_reduce %L at [1] over ["dp"] on @dp : !sP -> !sR
  output "loss" %La scale %t at 1 : !sR, !sR
  // A tied weight counts at its first holder only.
  %s0 = sumsq %R0, %T0 at 0 : (!pR, !eR) -> !sR
  %s1 = sumsq %R1 at 1 : (!pR) -> !sR
  %c0, %c1 = all_reduce %s0, %s1 at [0, 1] over [] across "pp" on @pp : !sR, !sR -> !sR, !sR
  // CHECK: update @layers.0.fc.weight$b %{{.*}} norm %{{.*}} : !f32_scalar_dpR at 0 optimizer "train:make_adamw" clip 1.0{{.*}} : !f32_272_dpR -> !f32_272_dpR
  %u0 = update @layers.0.fc.weight$b %R0 norm %c0 : !sR at 0 optimizer "train:make_adamw" clip 1.0 : !pR -> !pR
  %u1 = update @layers.1.fc.weight$b %R1 norm %c1 : !sR at 1 optimizer "train:make_adamw" clip 1.0 : !pR -> !pR
  %v0 = update @embed.weight$b %T0 norm %c0 : !sR at 0 optimizer "train:make_adamw" clip 1.0 : !eR -> !eR
  %v1 = update @embed.weight$b %T1 norm %c1 : !sR at 1 optimizer "train:make_adamw" clip 1.0 : !eR -> !eR
}

// CHECK-LABEL: piper.program @train$pp1 of @train$cluster at 1
piper.program @train$pp1 of @train$cluster at 1 {
  %pe = read @embed.weight$b slot value : !eR
  %p1 = read @layers.1.fc.weight$b slot value : !pR
  %y_0 = input "labels" mb 0 : !idV
  %n_0 = run @loss$P(%y_0) mb 0 : (!idV) -> !nP
  %y_1 = input "labels" mb 1 : !idV
  %n_1 = run @loss$P(%y_1) mb 1 : (!idV) -> !nP
  %n = sum %n_0, %n_1 : !nP -> !nP
  %a0 = record
  %N, %a1 = all_reduce %n over ["dp"] on @reduce.dp$1 after %a0 : !nP -> !nR, !piper.event
  %t = tangent "loss" count %N : !nR coeff 1.0 after %a1 -> !sR
  free %n_0, %n_1, %n, %N : !nP, !nP, !nP, !nR
  %a2 = record
  // CHECK: %{{.*}}, %{{.*}} = recv from 0 mb 0 on @send$0.1 after %{{.*}} : !f32_4x8x16_dpV
  %x1_0, %b0 = recv from 0 mb 0 on @send$0.1 after %a2 : !xV
  %j_0 = input "ids" mb 0 : !idV
  %q_0 = run @keep$P(%j_0) mb 0 : (!idV) -> !kV
  %x2_0, %r1_0 = run @layer.1$F(%x1_0, %q_0, %p1) mb 0 after %b0 : (!xV, !kV, !pR) -> (!xV, !mV)
  %l_0, %lp_0 = run @head.0$F(%x2_0, %y_0, %pe) mb 0 : (!xV, !idV, !eR) -> (!sP, !zV)
  %a3 = record
  %x1_1, %b1 = recv from 0 mb 1 on @send$0.1 after %a3 : !xV
  %d2_0, %he_0 = run @head.0$B(%t, %x2_0, %lp_0, %y_0, %pe) mb 0 : (!sR, !xV, !zV, !idV, !eR) -> (!xV, !hP)
  free %x2_0, %lp_0, %y_0 : !xV, !zV, !idV
  %Ea = accumulate @embed.weight$b %he_0 : !hP -> !hP
  %d1_0, %g1_0 = run @layer.1$B(%d2_0, %x1_0, %q_0, %r1_0, %p1) mb 0 : (!xV, !xV, !kV, !mV, !pR) -> (!xV, !gP)
  %c0 = record
  %Ga = accumulate @layers.1.fc.weight$b %g1_0 : !gP -> !gP
  free %d2_0, %x1_0, %q_0, %r1_0, %he_0, %g1_0 : !xV, !xV, !kV, !mV, !hP, !gP
  // CHECK: send %{{.*}} to 0 mb 0 on @send$1.0 after %{{.*}} : !f32_4x8x16_dpV
  %c1 = send %d1_0 to 0 mb 0 on @send$1.0 after %c0 : !xV
  %j_1 = input "ids" mb 1 : !idV
  %q_1 = run @keep$P(%j_1) mb 1 : (!idV) -> !kV
  %x2_1, %r1_1 = run @layer.1$F(%x1_1, %q_1, %p1) mb 1 after %b1 : (!xV, !kV, !pR) -> (!xV, !mV)
  // CHECK: free %{{.*}} after %{{.*}} : !f32_4x8x16_dpV
  free %d1_0 after %c1 : !xV
  %l_1, %lp_1 = run @head.0$F(%x2_1, %y_1, %pe) mb 1 : (!xV, !idV, !eR) -> (!sP, !zV)
  %d2_1, %he_1 = run @head.0$B(%t, %x2_1, %lp_1, %y_1, %pe) mb 1 : (!sR, !xV, !zV, !idV, !eR) -> (!xV, !hP)
  %E = accumulate @embed.weight$b %he_1 onto %Ea : !hP -> !hP
  %d1_1, %g1_1 = run @layer.1$B(%d2_1, %x1_1, %q_1, %r1_1, %p1) mb 1 : (!xV, !xV, !kV, !mV, !pR) -> (!xV, !gP)
  %c2 = record
  %G = accumulate @layers.1.fc.weight$b %g1_1 onto %Ga : !gP -> !gP
  %d0 = record
  %R1, %f0 = all_reduce %G over ["dp"] on @reduce.dp$1 after %d0 : !gP -> !pR, !piper.event
  %c3 = send %d1_1 to 0 mb 1 on @send$1.0 after %c2 : !xV
  %T1, %f1 = all_reduce %E over ["dp"] across "pp" on @reduce.dp.pp$0.1 after %d0 : !hP -> !eR, !piper.event
  %L = sum %l_0, %l_1 : !sP -> !sP
  %d1 = record
  %La, %f2 = all_reduce %L over ["dp"] on @reduce.dp$1 after %d1 : !sP -> !sR, !piper.event
  output "loss" %La scale %t after %f2 : !sR, !sR
  %s1 = sumsq %R1 after %f0 : (!pR) -> !sR
  %d2 = record
  %c, %f3 = all_reduce %s1 over [] across "pp" on @reduce.pp$0.1 after %d2 : !sR -> !sR, !piper.event
  %u = update @layers.1.fc.weight$b %R1 norm %c : !sR optimizer "train:make_adamw" clip 1.0 after %f3 : !pR -> !pR
  %v = update @embed.weight$b %T1 norm %c : !sR optimizer "train:make_adamw" clip 1.0 after %f1 : !eR -> !eR
  free %d1_1 after %c3 : !xV
}
