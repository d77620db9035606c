// Expert parallelism on pp 2 x dp 4, where dp = edp 2 x ep 2: 4 experts, two per
// ep rank, two per token. 32 tokens give 64 rows to send and an unknown number
// of rows to receive. The forward of one microbatch overlaps the backward of
// another, piece by piece.
// RUN: piper-opt %s | piper-opt | FileCheck %s
// RUN: piper-opt %s -mlir-print-op-generic | piper-opt | FileCheck %s
// RUN: piper-opt %s -emit-bytecode | piper-opt | FileCheck %s

// A user says dp; types always name the finest axes. Experts are sharded on ep
// and replicated on edp, all else is replicated on both.
#V = #piper.layout<edp = varying, ep = varying>
#R = #piper.layout<edp = replicated, ep = replicated>
#P = #piper.layout<edp = partial, ep = partial>
#X = #piper.layout<edp = replicated, ep = shard(0)>
// A bucket of experts is no shard of anything: local parts, one after the other.
#XV = #piper.layout<edp = replicated, ep = varying>
#XP = #piper.layout<edp = partial, ep = varying>
// All 128 rows of both ranks at the worst, 64 if the router is balanced.
#Q = #piper.layout<edp = varying, ep = varying, bound = 128, expect = 64>

!x = tensor<4x8x16xbf16>
!m = tensor<32x16xbf16>
!ids = tensor<4x8xi64>
!row = tensor<64x16xbf16>
!q16 = tensor<?x16xbf16>
!q32 = tensor<?x32xbf16>
!cnt = tensor<2x2xi64>
!ix = tensor<64xi64>
!gt = tensor<64xf32>
!rt = tensor<4x16xbf16>
!rtt = tensor<16x4xbf16>
!sc = tensor<32x4xbf16>
!sf = tensor<32x4xf32>
!w1 = tensor<2x16x32xbf16>
!w2 = tensor<2x32x16xbf16>
!s = tensor<f32>
!xV = tensor<4x8x16xbf16, #V>
!mV = tensor<32x16xbf16, #V>
!idV = tensor<4x8xi64, #V>
!rowV = tensor<64x16xbf16, #V>
!inQ = tensor<?x16xbf16, #Q>
!hidQ = tensor<?x32xbf16, #Q>
!cntV = tensor<2x2xi64, #V>
!ixV = tensor<64xi64, #V>
!gtV = tensor<64xf32, #V>
!rtV = tensor<4x16xbf16, #V>
!w1V = tensor<2x16x32xbf16, #V>
!w2V = tensor<2x32x16xbf16, #V>
!sV = tensor<f32, #V>
!mR = tensor<32x16xbf16, #R>
!rtR = tensor<4x16xbf16, #R>
!w1X = tensor<2x16x32xbf16, #X>
!w2X = tensor<2x32x16xbf16, #X>
!sP = tensor<f32, #P>
!sR = tensor<f32, #R>
!eR = tensor<512xbf16, #R>
!pR = tensor<64xbf16, #R>
!pX = tensor<2048xbf16, #XV>
!eP = tensor<512xbf16, #P>
!gP = tensor<64xbf16, #P>
!gX = tensor<2048xbf16, #XP>
!EP = tensor<512xf32, #P>
!GP = tensor<64xf32, #P>
!GX = tensor<2048xf32, #XP>
!ER = tensor<512xf32, #R>
!GR = tensor<64xf32, #R>
!GV = tensor<2048xf32, #XV>

// CHECK: piper.mesh @mesh [pp = 2 unrolled, edp = 2 manual, ep = 2 manual] views {dp = ["edp", "ep"]}
piper.mesh @mesh [pp = 2 unrolled, edp = 2 manual, ep = 2 manual] views {dp = ["edp", "ep"]}
piper.stream @compute
piper.stream @ep priority = 1 sms = 20
piper.stream @pp
piper.stream @dp

// A state gives its whole shape: four experts.
// CHECK: piper.state @layers.0.experts.w1 parameter : !bf16_4x16x32 layout <edp = replicated, ep = shard(0)> holders [0]
piper.state @embed.weight parameter : !m layout <edp = replicated, ep = replicated> holders [0]
piper.state @layers.0.router.weight parameter : !rt layout <edp = replicated, ep = replicated> holders [0]
piper.state @layers.0.experts.w1 parameter : tensor<4x16x32xbf16> layout <edp = replicated, ep = shard(0)> holders [0]
piper.state @layers.0.experts.w2 parameter : tensor<4x32x16xbf16> layout <edp = replicated, ep = shard(0)> holders [0]
piper.bucket @embed.weight$b [@embed.weight] value : !eR grad : !EP
piper.bucket @layers.0.router.weight$b [@layers.0.router.weight] value : !pR grad : !GP
piper.bucket @layers.0.experts.w1$b [@layers.0.experts.w1, @layers.0.experts.w2] value : !pX grad : !GX

piper.strategy @strategy mesh = @mesh {
  piper.do.annotate {embed = "embed", "layers.*" = "layer", loss = "loss"}
  piper.do.place <all> stages = 2 axis = "pp" sizes [2, 1]
  piper.do.split microbatches = 2 dims = {ids = 0, target = 0}
  // CHECK: piper.do.replicate <not state = "*.experts.*"> axes = ["dp"]
  piper.do.replicate <not state = "*.experts.*"> axes = ["dp"] zero = 0 bucket = 25000000 reduce = "last" dtype = f32
  piper.do.replicate <state = "*.experts.*"> axes = ["edp"] zero = 0 bucket = 25000000 reduce = "last" dtype = f32
  piper.do.order @order
  // Every piece of both chunks stands once, in issue order.
  // CHECK: piper.do.overlap <tag = "layer"> order = ["B.join", "B.combine", "F.router", "F.counts", "B.experts", "F.dispatch", "B.dispatch", "F.experts", "F.combine", "B.experts_w", "B.router", "F.join"]
  piper.do.overlap <tag = "layer"> order = ["B.join", "B.combine", "F.router", "F.counts", "B.experts", "F.dispatch", "B.dispatch", "F.experts", "F.combine", "B.experts_w", "B.router", "F.join"]
  piper.do.update <all> optimizer = "train:make_adamw"
}
piper.schedule @order axis = "pp" stages = 2 microbatches = 2
    ["0F0 (0F1;0B0)OVERLAP_F_B 0B1",
     "1F0 1B0 1F1 1B1"]

piper.kernel @embedding$0003(%ids: !ids, %e: !m) -> !x {
  %0 = torch "aten.embedding.default"(%e, %ids) facts <pure> : (!m, !ids) -> !x
  return %0 : !x
}
piper.kernel @embedding_dense_backward$0004(%dx: !x, %ids: !ids) -> !m {
  %0 = torch "aten.embedding_dense_backward.default"(%dx, %ids, 32, -1, false) facts <pure> : (!x, !ids) -> !m
  return %0 : !m
}
// Rows sorted by expert, their number by (rank, expert), where each came from,
// and the gate of each.
piper.kernel @topk_permute$a1c0(%x: !x, %wr: !rt) -> (!row, !cnt, !ix, !gt) {
  %0 = torch "aten.view.default"(%x, [32, 16]) facts <view> : (!x) -> !m
  %1 = torch "aten.t.default"(%wr) facts <view> : (!rt) -> !rtt
  %2 = torch "aten.mm.default"(%0, %1) facts <pure, flops = 4096> : (!m, !rtt) -> !sc
  %3 = torch "aten._to_copy.default"(%2, dtype = f32) facts <pure> : (!sc) -> !sf
  %4 = torch "aten._softmax.default"(%3, -1, false) facts <pure> : (!sf) -> !sf
  %5, %6 = torch "aten.topk.default"(%4, 2) facts <pure> : (!sf) -> (tensor<32x2xf32>, tensor<32x2xi64>)
  %7, %8, %9 = torch "piper.moe_permute.default"(%0, %6, 2, 2) facts <pure> : (!m, tensor<32x2xi64>) -> (!row, !cnt, !ix)
  %10 = torch "aten.view.default"(%5, [64]) facts <view> : (tensor<32x2xf32>) -> !gt
  %11 = torch "aten.index.Tensor"(%10, [%9]) facts <pure> : (!gt, !ix) -> !gt
  return %7, %8, %9, %11 : !row, !cnt, !ix, !gt
}
// A kernel sees `?` without its bound: memory is checked where it is launched.
// CHECK-LABEL: piper.kernel @grouped_silu$77d2
// CHECK-SAME: !bf16_qx16
piper.kernel @grouped_silu$77d2(%in: !q16, %c: !cnt, %w1: !w1, %w2: !w2) -> (!q16, !q32) {
  %0 = torch "piper.moe_grouped_mm.default"(%in, %w1, %c) facts <pure> : (!q16, !w1, !cnt) -> !q32
  %1 = torch "aten.silu.default"(%0) facts <pure> : (!q32) -> !q32
  %2 = torch "piper.moe_grouped_mm.default"(%1, %w2, %c) facts <pure> : (!q32, !w2, !cnt) -> !q16
  return %2, %0 : !q16, !q32
}
piper.kernel @unpermute_add$0b9e(%x: !x, %bk: !row, %ix: !ix, %gt: !gt) -> !x {
  %0 = torch "piper.moe_unpermute.default"(%bk, %gt, %ix, 32) facts <pure> : (!row, !gt, !ix) -> !m
  %1 = torch "aten.view.default"(%0, [4, 8, 16]) facts <view> : (!m) -> !x
  %2 = torch "aten.add.Tensor"(%x, %1) facts <pure, flops = 512> : (!x, !x) -> !x
  return %2 : !x
}
piper.kernel @unpermute_bwd$3e11(%dy: !x, %bk: !row, %ix: !ix, %gt: !gt) -> (!row, !gt) {
  %0 = torch "aten.view.default"(%dy, [32, 16]) facts <view> : (!x) -> !m
  %1, %2 = torch "piper.moe_unpermute_backward.default"(%0, %bk, %gt, %ix) facts <pure> : (!m, !row, !gt, !ix) -> (!row, !gt)
  return %1, %2 : !row, !gt
}
piper.kernel @grouped_I$c5c5(%dz: !q16, %h: !q32, %c: !cnt, %w1: !w1, %w2: !w2) -> (!q16, !q32) {
  %0 = torch "aten.transpose.int"(%w2, 1, 2) facts <view> : (!w2) -> !w1
  %1 = torch "piper.moe_grouped_mm.default"(%dz, %0, %c) facts <pure> : (!q16, !w1, !cnt) -> !q32
  %2 = torch "aten.silu_backward.default"(%1, %h) facts <pure> : (!q32, !q32) -> !q32
  %3 = torch "aten.transpose.int"(%w1, 1, 2) facts <view> : (!w1) -> !w2
  %4 = torch "piper.moe_grouped_mm.default"(%2, %3, %c) facts <pure> : (!q32, !w2, !cnt) -> !q16
  return %4, %2 : !q16, !q32
}
piper.kernel @grouped_W$9920(%dz: !q16, %in: !q16, %h: !q32, %da: !q32, %c: !cnt) -> (!w1, !w2) {
  %0 = torch "aten.silu.default"(%h) facts <pure> : (!q32) -> !q32
  %1 = torch "piper.moe_grouped_mm_weight.default"(%in, %da, %c) facts <pure> : (!q16, !q32, !cnt) -> !w1
  %2 = torch "piper.moe_grouped_mm_weight.default"(%0, %dz, %c) facts <pure> : (!q32, !q16, !cnt) -> !w2
  return %1, %2 : !w1, !w2
}
piper.kernel @topk_bwd$18fa(%dy: !x, %dr: !row, %dgt: !gt, %ix: !ix, %x: !x, %wr: !rt) -> (!x, !rt) {
  %0 = torch "aten.view.default"(%x, [32, 16]) facts <view> : (!x) -> !m
  %1 = torch "aten.t.default"(%wr) facts <view> : (!rt) -> !rtt
  %2 = torch "aten.mm.default"(%0, %1) facts <pure, flops = 4096> : (!m, !rtt) -> !sc
  %3 = torch "aten._to_copy.default"(%2, dtype = f32) facts <pure> : (!sc) -> !sf
  %4 = torch "aten._softmax.default"(%3, -1, false) facts <pure> : (!sf) -> !sf
  %5 = torch "piper.moe_gate_backward.default"(%dgt, %4, %ix, 2) facts <pure> : (!gt, !sf, !ix) -> !sf
  %6 = torch "aten._softmax_backward_data.default"(%5, %4, -1, f32) facts <pure> : (!sf, !sf) -> !sf
  %7 = torch "aten._to_copy.default"(%6, dtype = bf16) facts <pure> : (!sf) -> !sc
  %8 = torch "aten.mm.default"(%7, %wr) facts <pure, flops = 4096> : (!sc, !rt) -> !m
  %9 = torch "piper.moe_permute_backward.default"(%dr, %ix, 32) facts <pure> : (!row, !ix) -> !m
  %10 = torch "aten.add.Tensor"(%8, %9) facts <pure, flops = 512> : (!m, !m) -> !m
  %11 = torch "aten.view.default"(%10, [4, 8, 16]) facts <view> : (!m) -> !x
  %12 = torch "aten.add.Tensor"(%dy, %11) facts <pure, flops = 512> : (!x, !x) -> !x
  %13 = torch "aten.t.default"(%7) facts <view> : (!sc) -> tensor<4x32xbf16>
  %14 = torch "aten.mm.default"(%13, %0) facts <pure, flops = 4096> : (tensor<4x32xbf16>, !m) -> !rt
  return %12, %14 : !x, !rt
}
piper.kernel @sub_mul_sum$77aa(%x: !x, %y: !x) -> (!s, !x) {
  %0 = torch "aten.sub.Tensor"(%x, %y) facts <pure, flops = 512> : (!x, !x) -> !x
  %1 = torch "aten.mul.Tensor"(%0, %0) facts <pure, flops = 512> : (!x, !x) -> !x
  %2 = torch "aten.sum.default"(%1, dtype = f32) facts <pure, flops = 512> : (!x) -> !s
  return %2, %0 : !s, !x
}
piper.kernel @mul_mul$9b12(%t: !s, %d: !x) -> !x {
  %0 = torch "aten.mul.Tensor"(%d, %t) facts <pure, flops = 512> : (!x, !s) -> !x
  %1 = torch "aten.mul.Scalar"(%0, 2) facts <pure, flops = 512> : (!x) -> !x
  return %1 : !x
}

// The layer, cut at its collectives: four pieces of compute, three of
// communication. Sizes go from F to B like saved tensors.
// CHECK-LABEL: piper.chunk @layer.0$F
piper.chunk @layer.0$F pass = F stage = 0 (%x: !xV, %p: !pR, %q: !pX) -> (!xV, !rowV, !ixV, !gtV, !inQ, !hidQ, !cntV, !piper.sizes, !piper.sizes) {
  %wr = unpack @layers.0.router.weight$b %p : !pR -> !rtR
  %w1, %w2 = unpack @layers.0.experts.w1$b %q : !pX -> !w1X, !w2X
  %rows, %sc, %ix, %gt = launch @topk_permute$a1c0(%x, %wr) as "router" on @compute : (!xV, !rtR) -> (!rowV, !cntV, !ixV, !gtV)
  // CHECK: %[[RECV:.*]] = all_to_all %[[SEND:.*]] dim 0 over ["ep"] as "counts" on @ep : !i64_2x2_edpV_epV -> !i64_2x2_edpV_epV
  // CHECK: %[[SIZES:.*]]:2 = host_wait %[[SEND]], %[[RECV]] : !i64_2x2_edpV_epV, !i64_2x2_edpV_epV -> !piper.sizes, !piper.sizes
  // CHECK: all_to_all %{{.*}} dim 0 sizes %[[SIZES]]#0, %[[SIZES]]#1 over ["ep"] as "dispatch" on @ep : !bf16_64x16_edpV_epV -> !bf16_qx16_edpV_epV
  // CHECK: all_to_all %{{.*}} dim 0 sizes %[[SIZES]]#1, %[[SIZES]]#0 over ["ep"] as "combine" on @ep : !bf16_qx16_edpV_epV -> !bf16_64x16_edpV_epV
  %rc = all_to_all %sc dim 0 over ["ep"] as "counts" on @ep : !cntV -> !cntV
  %hs, %hr = host_wait %sc, %rc : !cntV, !cntV -> !piper.sizes, !piper.sizes
  %in = all_to_all %rows dim 0 sizes %hs, %hr over ["ep"] as "dispatch" on @ep : !rowV -> !inQ
  %out, %h = launch @grouped_silu$77d2(%in, %rc, %w1, %w2) as "experts" on @compute : (!inQ, !cntV, !w1X, !w2X) -> (!inQ, !hidQ)
  %bk = all_to_all %out dim 0 sizes %hr, %hs over ["ep"] as "combine" on @ep : !inQ -> !rowV
  %y = launch @unpermute_add$0b9e(%x, %bk, %ix, %gt) as "join" on @compute : (!xV, !rowV, !ixV, !gtV) -> !xV
  return %y, %bk, %ix, %gt, %in, %h, %rc, %hs, %hr : !xV, !rowV, !ixV, !gtV, !inQ, !hidQ, !cntV, !piper.sizes, !piper.sizes
}
// The way back has the same sizes: no second exchange of counts. The router's
// gradient is partial on both axes, the experts' on edp only: their reductions
// follow from the types.
// CHECK-LABEL: piper.chunk @layer.0$B pass = B of @layer.0$F dual [0] -> [0, 1, 2] stage = 0
// CHECK: pack @layers.0.router.weight$b %{{.*}} : !bf16_4x16_edpV_epV -> !bf16_64_edpP_epP
// CHECK: pack @layers.0.experts.w1$b %{{.*}}, %{{.*}} : !bf16_2x16x32_edpV_epV, !bf16_2x32x16_edpV_epV -> !bf16_2048_edpP_epV
piper.chunk @layer.0$B pass = B of @layer.0$F dual [0] -> [0, 1, 2] stage = 0
    (%dy: !xV, %x: !xV, %bk: !rowV, %ix: !ixV, %gt: !gtV, %in: !inQ, %h: !hidQ, %rc: !cntV, %hs: !piper.sizes, %hr: !piper.sizes, %p: !pR, %q: !pX) -> (!xV, !gP, !gX) {
  %wr = unpack @layers.0.router.weight$b %p : !pR -> !rtR
  %w1, %w2 = unpack @layers.0.experts.w1$b %q : !pX -> !w1X, !w2X
  %dbk, %dgt = launch @unpermute_bwd$3e11(%dy, %bk, %ix, %gt) as "join" on @compute : (!xV, !rowV, !ixV, !gtV) -> (!rowV, !gtV)
  %dz = all_to_all %dbk dim 0 sizes %hs, %hr over ["ep"] as "combine" on @ep : !rowV -> !inQ
  %din, %da = launch @grouped_I$c5c5(%dz, %h, %rc, %w1, %w2) as "experts" on @compute : (!inQ, !hidQ, !cntV, !w1X, !w2X) -> (!inQ, !hidQ)
  %dr = all_to_all %din dim 0 sizes %hr, %hs over ["ep"] as "dispatch" on @ep : !inQ -> !rowV
  %dw1, %dw2 = launch @grouped_W$9920(%dz, %in, %h, %da, %rc) as "experts_w" on @compute : (!inQ, !inQ, !hidQ, !hidQ, !cntV) -> (!w1V, !w2V)
  %dx, %dwr = launch @topk_bwd$18fa(%dy, %dr, %dgt, %ix, %x, %wr) as "router" on @compute : (!xV, !rowV, !gtV, !ixV, !xV, !rtR) -> (!xV, !rtV)
  %g = pack @layers.0.router.weight$b %dwr : !rtV -> !gP
  %gx = pack @layers.0.experts.w1$b %dw1, %dw2 : !w1V, !w2V -> !gX
  return %dx, %g, %gx : !xV, !gP, !gX
}
piper.chunk @embed.0$F pass = F stage = 0 (%ids: !idV, %p: !eR) -> !xV {
  %e = unpack @embed.weight$b %p : !eR -> !mR
  %x = launch @embedding$0003(%ids, %e) on @compute : (!idV, !mR) -> !xV
  return %x : !xV
}
piper.chunk @embed.0$B pass = B of @embed.0$F dual [0] -> [1] stage = 0 (%dx: !xV, %ids: !idV) -> !eP {
  %g = launch @embedding_dense_backward$0004(%dx, %ids) on @compute : (!xV, !idV) -> !mV
  %h = pack @embed.weight$b %g : !mV -> !eP
  return %h : !eP
}
piper.chunk @loss.0$F pass = F stage = 1 (%x: !xV, %y: !xV) -> (!sP, !xV) {
  %l, %d = launch @sub_mul_sum$77aa(%x, %y) on @compute : (!xV, !xV) -> (!sV, !xV)
  %share = relabel %l : !sV -> !sP
  return %share, %d : !sP, !xV
}
piper.chunk @loss.0$B pass = B of @loss.0$F dual [0] -> [0] stage = 1 (%t: !sR, %d: !xV) -> !xV {
  %dx = launch @mul_mul$9b12(%t, %d) on @compute : (!sR, !xV) -> !xV
  return %dx : !xV
}

// CHECK-LABEL: piper.cluster @train$cluster of @train phase = ordered
piper.cluster @train$cluster of @train phase = ordered mesh = @mesh order = @order microbatches = 2 {
  %pe = read @embed.weight$b slot value at 0 : !eR
  %p = read @layers.0.router.weight$b slot value at 0 : !pR
  %q = read @layers.0.experts.w1$b slot value at 0 : !pX
  %t = tangent "loss" coeff 2.44140625E-4 at 1 -> !sR
  // 0F0, whole
  %i_0 = input "ids" mb 0 at 0 : !idV
  %x_0 = run @embed.0$F(%i_0, %pe) mb 0 at 0 : (!idV, !eR) -> !xV
  %y_0, %bk_0, %ix_0, %gt_0, %in_0, %h_0, %rc_0, %hs_0, %hr_0 = run @layer.0$F(%x_0, %p, %q) mb 0 at 0 : (!xV, !pR, !pX) -> (!xV, !rowV, !ixV, !gtV, !inQ, !hidQ, !cntV, !piper.sizes, !piper.sizes)
  %yr_0 = transfer %y_0 from 0 to 1 mb 0 on @pp : !xV
  // 1F0, 1B0
  %target_0 = input "target" mb 0 at 1 : !xV
  %l_0, %e_0 = run @loss.0$F(%yr_0, %target_0) mb 0 at 1 : (!xV, !xV) -> (!sP, !xV)
  %dy_0 = run @loss.0$B(%t, %e_0) mb 0 at 1 : (!sR, !xV) -> !xV
  %dyr_0 = transfer %dy_0 from 1 to 0 mb 0 on @pp : !xV
  // (0F1;0B0)OVERLAP_F_B: both layers inlined, their pieces in the order of the
  // lanes. B.experts is queued before the host blocks, so that the device has
  // work while the host waits for the counts.
  // CHECK: run @embed.0$F(%{{.*}}, %{{.*}}) mb 1 at 0
  // CHECK: launch @unpermute_bwd$3e11({{.*}}) as "B.join" on @compute mb 0 at 0
  // CHECK: all_to_all %{{.*}} at [0] dim 0 sizes %{{.*}}, %{{.*}} over ["ep"] as "B.combine" mb 0 on @ep
  // CHECK: launch @topk_permute$a1c0({{.*}}) as "F.router" on @compute mb 1 at 0
  // CHECK: all_to_all {{.*}} as "F.counts" mb 1
  // CHECK: launch @grouped_I$c5c5({{.*}}) as "B.experts"
  // CHECK: host_wait %{{.*}}, %{{.*}} mb 1 at 0
  // CHECK: all_to_all {{.*}} as "F.dispatch" mb 1
  // CHECK: all_to_all {{.*}} as "B.dispatch" mb 0
  // CHECK: launch @grouped_silu$77d2({{.*}}) as "F.experts"
  // CHECK: all_to_all {{.*}} as "F.combine" mb 1
  // CHECK: launch @grouped_W$9920({{.*}}) as "B.experts_w"
  // CHECK: launch @topk_bwd$18fa({{.*}}) as "B.router"
  // CHECK: launch @unpermute_add$0b9e({{.*}}) as "F.join"
  %i_1 = input "ids" mb 1 at 0 : !idV
  %x_1 = run @embed.0$F(%i_1, %pe) mb 1 at 0 : (!idV, !eR) -> !xV
  %wr = unpack @layers.0.router.weight$b %p : !pR -> !rtR
  %w1, %w2 = unpack @layers.0.experts.w1$b %q : !pX -> !w1X, !w2X
  %dbk, %dgt = launch @unpermute_bwd$3e11(%dyr_0, %bk_0, %ix_0, %gt_0) as "B.join" on @compute mb 0 at 0 : (!xV, !rowV, !ixV, !gtV) -> (!rowV, !gtV)
  %dz = all_to_all %dbk at [0] dim 0 sizes %hs_0, %hr_0 over ["ep"] as "B.combine" mb 0 on @ep : !rowV -> !inQ
  %rows, %sc, %ix_1, %gt_1 = launch @topk_permute$a1c0(%x_1, %wr) as "F.router" on @compute mb 1 at 0 : (!xV, !rtR) -> (!rowV, !cntV, !ixV, !gtV)
  %rc_1 = all_to_all %sc at [0] dim 0 over ["ep"] as "F.counts" mb 1 on @ep : !cntV -> !cntV
  %din, %da = launch @grouped_I$c5c5(%dz, %h_0, %rc_0, %w1, %w2) as "B.experts" on @compute mb 0 at 0 : (!inQ, !hidQ, !cntV, !w1X, !w2X) -> (!inQ, !hidQ)
  %hs_1, %hr_1 = host_wait %sc, %rc_1 mb 1 at 0 : !cntV, !cntV -> !piper.sizes, !piper.sizes
  %in_1 = all_to_all %rows at [0] dim 0 sizes %hs_1, %hr_1 over ["ep"] as "F.dispatch" mb 1 on @ep : !rowV -> !inQ // beside B.experts
  %drow = all_to_all %din at [0] dim 0 sizes %hr_0, %hs_0 over ["ep"] as "B.dispatch" mb 0 on @ep : !inQ -> !rowV // beside F.experts
  %out, %h_1 = launch @grouped_silu$77d2(%in_1, %rc_1, %w1, %w2) as "F.experts" on @compute mb 1 at 0 : (!inQ, !cntV, !w1X, !w2X) -> (!inQ, !hidQ)
  %bk_1 = all_to_all %out at [0] dim 0 sizes %hr_1, %hs_1 over ["ep"] as "F.combine" mb 1 on @ep : !inQ -> !rowV // beside B.experts_w, B.router
  %dw1, %dw2 = launch @grouped_W$9920(%dz, %in_0, %h_0, %da, %rc_0) as "B.experts_w" on @compute mb 0 at 0 : (!inQ, !inQ, !hidQ, !hidQ, !cntV) -> (!w1V, !w2V)
  %dx_0, %dwr = launch @topk_bwd$18fa(%dyr_0, %drow, %dgt, %ix_0, %x_0, %wr) as "B.router" on @compute mb 0 at 0 : (!xV, !rowV, !gtV, !ixV, !xV, !rtR) -> (!xV, !rtV)
  %y_1 = launch @unpermute_add$0b9e(%x_1, %bk_1, %ix_1, %gt_1) as "F.join" on @compute mb 1 at 0 : (!xV, !rowV, !ixV, !gtV) -> !xV
  %yr_1 = transfer %y_1 from 0 to 1 mb 1 on @pp : !xV
  %g_0 = pack @layers.0.router.weight$b %dwr : !rtV -> !gP
  %gx_0 = pack @layers.0.experts.w1$b %dw1, %dw2 : !w1V, !w2V -> !gX
  // Gradients are accumulated in f32.
  %Ga = accumulate @layers.0.router.weight$b %g_0 at 0 : !gP -> !GP
  %Xa = accumulate @layers.0.experts.w1$b %gx_0 at 0 : !gX -> !GX
  %ge_0 = run @embed.0$B(%dx_0, %i_0) mb 0 at 0 : (!xV, !idV) -> !eP
  %Ea = accumulate @embed.weight$b %ge_0 at 0 : !eP -> !EP
  // 1F1, 1B1
  %target_1 = input "target" mb 1 at 1 : !xV
  %l_1, %e_1 = run @loss.0$F(%yr_1, %target_1) mb 1 at 1 : (!xV, !xV) -> (!sP, !xV)
  %dy_1 = run @loss.0$B(%t, %e_1) mb 1 at 1 : (!sR, !xV) -> !xV
  %dyr_1 = transfer %dy_1 from 1 to 0 mb 1 on @pp : !xV
  // 0B1, whole
  // CHECK: run @layer.0$B({{.*}}) mb 1 at 0
  %dx_1, %g_1, %gx_1 = run @layer.0$B(%dyr_1, %x_1, %bk_1, %ix_1, %gt_1, %in_1, %h_1, %rc_1, %hs_1, %hr_1, %p, %q) mb 1 at 0 : (!xV, !xV, !rowV, !ixV, !gtV, !inQ, !hidQ, !cntV, !piper.sizes, !piper.sizes, !pR, !pX) -> (!xV, !gP, !gX)
  %G = accumulate @layers.0.router.weight$b %g_1 onto %Ga at 0 : !gP -> !GP
  %X = accumulate @layers.0.experts.w1$b %gx_1 onto %Xa at 0 : !gX -> !GX
  %ge_1 = run @embed.0$B(%dx_1, %i_1) mb 1 at 0 : (!xV, !idV) -> !eP
  %E = accumulate @embed.weight$b %ge_1 onto %Ea at 0 : !eP -> !EP
  // CHECK: all_reduce %{{.*}} at [0] over ["edp", "ep"] on @dp : !f32_64_edpP_epP -> !f32_64_edpR_epR
  // CHECK: all_reduce %{{.*}} at [0] over ["edp"] on @dp : !f32_2048_edpP_epV -> !f32_2048_edpR_epV
  %GR = all_reduce %G at [0] over ["edp", "ep"] on @dp : !GP -> !GR
  %XR = all_reduce %X at [0] over ["edp"] on @dp : !GX -> !GV
  %ER = all_reduce %E at [0] over ["edp", "ep"] on @dp : !EP -> !ER
  %L = sum %l_0, %l_1 at 1 : !sP -> !sP
  %La = all_reduce %L at [1] over ["edp", "ep"] on @dp : !sP -> !sR
  output "loss" %La scale %t at 1 : !sR, !sR
  %u0 = update @layers.0.router.weight$b %GR at 0 optimizer "train:make_adamw" : !GR -> !pR
  %u1 = update @layers.0.experts.w1$b %XR at 0 optimizer "train:make_adamw" : !GV -> !pX
  %u2 = update @embed.weight$b %ER at 0 optimizer "train:make_adamw" : !ER -> !eR
}
