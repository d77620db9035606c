// A zero-bubble V on pp 2 x dp 2 with ZeRO-3: four layers on stages 0 to 3,
// placed 0 1 1 0, computing in bf16 from f32 values. Every use gathers its
// bucket and every weight gradient is reduced at once.
// RUN: piper-opt %s | piper-opt | FileCheck %s
// RUN: piper-opt %s -mlir-print-op-generic | piper-opt | FileCheck %s
// RUN: piper-opt %s -emit-bytecode | piper-opt | FileCheck %s

#S = #piper.layout<dp = shard(0)>
#R = #piper.layout<dp = replicated>
#P = #piper.layout<dp = partial>
#V = #piper.layout<dp = varying>
!x = tensor<4x8x16xbf16>
!m = tensor<32x16xbf16>
!mt = tensor<16x32xbf16>
!w = tensor<16x16xbf16>
!b = tensor<16xbf16>
!s = tensor<f32>
!xV = tensor<4x8x16xbf16, #V>
!mV = tensor<32x16xbf16, #V>
!wR = tensor<16x16xbf16, #R>
!bR = tensor<16xbf16, #R>
!wV = tensor<16x16xbf16, #V>
!bV = tensor<16xbf16, #V>
!sV = tensor<f32, #V>
!sP = tensor<f32, #P>
!sR = tensor<f32, #R>
!vS = tensor<136xf32, #S>
!cS = tensor<136xbf16, #S>
!cR = tensor<272xbf16, #R>
!gP = tensor<272xbf16, #P>
!fP = tensor<272xf32, #P>

piper.mesh @mesh [pp = 2 unrolled, dp = 2 manual]
piper.stream @compute
piper.stream @pp priority = 1
piper.stream @gather
piper.stream @reduce
piper.comm @send$0.1 axes [] coordinates [0, 1] for @pp
piper.comm @send$1.0 axes [] coordinates [1, 0] for @pp
piper.comm @gather.dp$1 axes ["dp"] coordinates [1] for @gather
piper.comm @reduce.dp$1 axes ["dp"] coordinates [1] for @reduce

piper.state @layers.0.fc.weight parameter : !w holders [0] replication <["dp"], zero = 3, bucket = 25000000, dtype = f32> optimization <"train:make_adamw">
piper.state @layers.0.fc.bias parameter : !b holders [0] replication <["dp"], zero = 3, bucket = 25000000, dtype = f32> optimization <"train:make_adamw">
piper.state @layers.1.fc.weight parameter : !w holders [1] replication <["dp"], zero = 3, bucket = 25000000, dtype = f32> optimization <"train:make_adamw">
piper.state @layers.1.fc.bias parameter : !b holders [1] replication <["dp"], zero = 3, bucket = 25000000, dtype = f32> optimization <"train:make_adamw">
piper.state @layers.2.fc.weight parameter : !w holders [1] replication <["dp"], zero = 3, bucket = 25000000, dtype = f32> optimization <"train:make_adamw">
piper.state @layers.2.fc.bias parameter : !b holders [1] replication <["dp"], zero = 3, bucket = 25000000, dtype = f32> optimization <"train:make_adamw">
piper.state @layers.3.fc.weight parameter : !w holders [0] replication <["dp"], zero = 3, bucket = 25000000, dtype = f32> optimization <"train:make_adamw">
piper.state @layers.3.fc.bias parameter : !b holders [0] replication <["dp"], zero = 3, bucket = 25000000, dtype = f32> optimization <"train:make_adamw">

// A rank owns half of each bucket: the value that the optimizer updates, its
// bf16 copy, and the accumulated gradient.
// CHECK: piper.bucket @layers.2.fc.weight$b [@layers.2.fc.weight, @layers.2.fc.bias] value : !f32_136_dpS0 compute : !bf16_136_dpS0 grad : !f32_136_dpS0
piper.bucket @layers.0.fc.weight$b [@layers.0.fc.weight, @layers.0.fc.bias] value : !vS compute : !cS grad : !vS
piper.bucket @layers.1.fc.weight$b [@layers.1.fc.weight, @layers.1.fc.bias] value : !vS compute : !cS grad : !vS
piper.bucket @layers.2.fc.weight$b [@layers.2.fc.weight, @layers.2.fc.bias] value : !vS compute : !cS grad : !vS
piper.bucket @layers.3.fc.weight$b [@layers.3.fc.weight, @layers.3.fc.bias] value : !vS compute : !cS grad : !vS

piper.strategy @strategy mesh = @mesh {
  piper.do.annotate {"layers.*" = "layer", loss = "loss"}
  // CHECK: piper.do.place <all> stages = 4 axis = "pp" coordinates [0, 1, 1, 0]
  piper.do.place <all> stages = 4 axis = "pp" coordinates [0, 1, 1, 0]
  piper.do.split microbatches = 2 dims = {target = 0, x = 0}
  piper.do.replicate <all> axes = ["dp"] zero = 3 bucket = 25000000 reduce = "each" dtype = f32
  piper.do.order @order
  piper.do.update <all> optimizer = "train:make_adamw"
}
// One idle cell per coordinate, before the first F and between 0F1 and 3F0.
piper.schedule @order axis = "pp" stages = 4 microbatches = 2
    ["0F0 0F1 3F0 3I0 3F1 3I1 0I0 3W0 0I1 3W1 0W0 0W1",
     "1F0 2F0 1F1 2F1 2I0 1I0 2I1 1I1 2W0 1W0 2W1 1W1"]

// Kernels: x + relu(fc(x)) and its two backward halves.
piper.kernel @addmm_relu$2f0a(%x: !x, %w: !w, %b: !b) -> (!x, !m) {
  %0 = torch "aten.view.default"(%x, [32, 16]) facts <view> : (!x) -> !m
  %1 = torch "aten.t.default"(%w) facts <view> : (!w) -> !w
  %2 = torch "aten.addmm.default"(%b, %0, %1) facts <pure, flops = 16384> : (!b, !m, !w) -> !m
  %3 = torch "aten.relu.default"(%2) facts <pure, flops = 512> : (!m) -> !m
  %4 = torch "aten.view.default"(%3, [4, 8, 16]) facts <view> : (!m) -> !x
  %5 = torch "aten.add.Tensor"(%x, %4) facts <pure, flops = 512> : (!x, !x) -> !x
  return %5, %3 : !x, !m
} cost <flops = 17408, bytes = 3616>
piper.kernel @mm$51f0(%dy: !x, %r: !m, %w: !w) -> (!x, !m) {
  %0 = torch "aten.view.default"(%dy, [32, 16]) facts <view> : (!x) -> !m
  %1 = torch "aten.threshold_backward.default"(%0, %r, 0) facts <pure, flops = 512> : (!m, !m) -> !m
  %2 = torch "aten.mm.default"(%1, %w) facts <pure, flops = 16384> : (!m, !w) -> !m
  %3 = torch "aten.view.default"(%2, [4, 8, 16]) facts <view> : (!m) -> !x
  %4 = torch "aten.add.Tensor"(%dy, %3) facts <pure, flops = 512> : (!x, !x) -> !x
  return %4, %1 : !x, !m
}
piper.kernel @threshold$0c3d(%dy: !x, %r: !m) -> !m {
  %0 = torch "aten.view.default"(%dy, [32, 16]) facts <view> : (!x) -> !m
  %1 = torch "aten.threshold_backward.default"(%0, %r, 0) facts <pure, flops = 512> : (!m, !m) -> !m
  return %1 : !m
}
piper.kernel @mm_sum$e802(%x: !x, %da: !m) -> (!w, !b) {
  %0 = torch "aten.t.default"(%da) facts <view> : (!m) -> !mt
  %1 = torch "aten.view.default"(%x, [32, 16]) facts <view> : (!x) -> !m
  %2 = torch "aten.mm.default"(%0, %1) facts <pure, flops = 16384> : (!mt, !m) -> !w
  %3 = torch "aten.sum.dim_IntList"(%da, [0]) facts <pure, flops = 512> : (!m) -> !b
  return %2, %3 : !w, !b
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

// Chunks. The parameter is an operand: the chunk sees it gathered. I takes the
// cotangent through the layer and keeps what W needs, so W has no parameter.
piper.chunk @layer.0$F pass = F stage = 0 (%x: !xV, %p: !cR) -> (!xV, !mV) {
  %w, %b = unpack @layers.0.fc.weight$b %p : !cR -> !wR, !bR
  %y, %r = launch @addmm_relu$2f0a(%x, %w, %b) on @compute : (!xV, !wR, !bR) -> (!xV, !mV)
  return %y, %r : !xV, !mV
}
piper.chunk @layer.1$F pass = F stage = 1 (%x: !xV, %p: !cR) -> (!xV, !mV) {
  %w, %b = unpack @layers.1.fc.weight$b %p : !cR -> !wR, !bR
  %y, %r = launch @addmm_relu$2f0a(%x, %w, %b) on @compute : (!xV, !wR, !bR) -> (!xV, !mV)
  return %y, %r : !xV, !mV
}
piper.chunk @layer.2$F pass = F stage = 2 (%x: !xV, %p: !cR) -> (!xV, !mV) {
  %w, %b = unpack @layers.2.fc.weight$b %p : !cR -> !wR, !bR
  %y, %r = launch @addmm_relu$2f0a(%x, %w, %b) on @compute : (!xV, !wR, !bR) -> (!xV, !mV)
  return %y, %r : !xV, !mV
}
piper.chunk @layer.3$F pass = F stage = 3 (%x: !xV, %p: !cR) -> (!xV, !mV) {
  %w, %b = unpack @layers.3.fc.weight$b %p : !cR -> !wR, !bR
  %y, %r = launch @addmm_relu$2f0a(%x, %w, %b) on @compute : (!xV, !wR, !bR) -> (!xV, !mV)
  return %y, %r : !xV, !mV
}
piper.chunk @loss.0$F pass = F stage = 3 (%x: !xV, %y: !xV) -> (!sP, !xV) {
  %l, %d = launch @sub_mul_sum$77aa(%x, %y) on @compute : (!xV, !xV) -> (!sV, !xV)
  %share = relabel %l : !sV -> !sP
  return %share, %d : !sP, !xV
}
piper.chunk @loss.0$I pass = I of @loss.0$F dual [0] -> [0] stage = 3 (%t: !sR, %d: !xV) -> !xV {
  %dx = launch @mul_mul$9b12(%t, %d) on @compute : (!sR, !xV) -> !xV
  return %dx : !xV
}
piper.chunk @layer.3$I pass = I of @layer.3$F dual [0] -> [0] stage = 3 (%dy: !xV, %r: !mV, %p: !cR) -> (!xV, !mV) {
  %w, %b = unpack @layers.3.fc.weight$b %p : !cR -> !wR, !bR
  %dx, %da = launch @mm$51f0(%dy, %r, %w) on @compute : (!xV, !mV, !wR) -> (!xV, !mV)
  return %dx, %da : !xV, !mV
}
piper.chunk @layer.3$W pass = W of @layer.3$F dual [] -> [1] stage = 3 (%x: !xV, %da: !mV) -> !gP {
  %dw, %db = launch @mm_sum$e802(%x, %da) on @compute : (!xV, !mV) -> (!wV, !bV)
  %g = pack @layers.3.fc.weight$b %dw, %db : !wV, !bV -> !gP
  return %g : !gP
}
// CHECK-LABEL: piper.chunk @layer.2$I pass = I of @layer.2$F dual [0] -> [0] stage = 2
// CHECK: launch @mm$51f0(%{{.*}}, %{{.*}}, %{{.*}}) on @compute : (!bf16_4x8x16_dpV, !bf16_32x16_dpV, !bf16_16x16_dpR) -> (!bf16_4x8x16_dpV, !bf16_32x16_dpV)
piper.chunk @layer.2$I pass = I of @layer.2$F dual [0] -> [0] stage = 2 (%dy: !xV, %r: !mV, %p: !cR) -> (!xV, !mV) {
  %w, %b = unpack @layers.2.fc.weight$b %p : !cR -> !wR, !bR
  %dx, %da = launch @mm$51f0(%dy, %r, %w) on @compute : (!xV, !mV, !wR) -> (!xV, !mV)
  return %dx, %da : !xV, !mV
}
// CHECK-LABEL: piper.chunk @layer.2$W pass = W of @layer.2$F dual [] -> [1] stage = 2
// CHECK: pack @layers.2.fc.weight$b %{{.*}}, %{{.*}} : !bf16_16x16_dpV, !bf16_16_dpV -> !bf16_272_dpP
piper.chunk @layer.2$W pass = W of @layer.2$F dual [] -> [1] stage = 2 (%x: !xV, %da: !mV) -> !gP {
  %dw, %db = launch @mm_sum$e802(%x, %da) on @compute : (!xV, !mV) -> (!wV, !bV)
  %g = pack @layers.2.fc.weight$b %dw, %db : !wV, !bV -> !gP
  return %g : !gP
}
piper.chunk @layer.1$I pass = I of @layer.1$F dual [0] -> [0] stage = 1 (%dy: !xV, %r: !mV, %p: !cR) -> (!xV, !mV) {
  %w, %b = unpack @layers.1.fc.weight$b %p : !cR -> !wR, !bR
  %dx, %da = launch @mm$51f0(%dy, %r, %w) on @compute : (!xV, !mV, !wR) -> (!xV, !mV)
  return %dx, %da : !xV, !mV
}
piper.chunk @layer.1$W pass = W of @layer.1$F dual [] -> [1] stage = 1 (%x: !xV, %da: !mV) -> !gP {
  %dw, %db = launch @mm_sum$e802(%x, %da) on @compute : (!xV, !mV) -> (!wV, !bV)
  %g = pack @layers.1.fc.weight$b %dw, %db : !wV, !bV -> !gP
  return %g : !gP
}
// The batch needs no gradient, so the first layer's I needs no parameter.
// CHECK-LABEL: piper.chunk @layer.0$I pass = I of @layer.0$F dual [0] -> [] stage = 0
piper.chunk @layer.0$I pass = I of @layer.0$F dual [0] -> [] stage = 0 (%dy: !xV, %r: !mV) -> !mV {
  %da = launch @threshold$0c3d(%dy, %r) on @compute : (!xV, !mV) -> !mV
  return %da : !mV
}
piper.chunk @layer.0$W pass = W of @layer.0$F dual [] -> [1] stage = 0 (%x: !xV, %da: !mV) -> !gP {
  %dw, %db = launch @mm_sum$e802(%x, %da) on @compute : (!xV, !mV) -> (!wV, !bV)
  %g = pack @layers.0.fc.weight$b %dw, %db : !wV, !bV -> !gP
  return %g : !gP
}

// A gather is issued one cell early, unless that cell uses the same bucket. A
// reduced gradient is added one cell late, so that compute does not wait for it.
// CHECK-LABEL: piper.cluster @train$cluster of @train phase = ordered
piper.cluster @train$cluster of @train phase = ordered mesh = @mesh order = @order microbatches = 2 {
  %s0 = read @layers.0.fc.weight$b slot compute at 0 : !cS
  %s1 = read @layers.1.fc.weight$b slot compute at 1 : !cS
  %s2 = read @layers.2.fc.weight$b slot compute at 1 : !cS
  %s3 = read @layers.3.fc.weight$b slot compute at 0 : !cS
  // A mean over 2048 elements: the count does not depend on the data.
  %t = tangent "loss" coeff 4.8828125E-4 at 0 -> !sR
  %f0_0 = all_gather %s0 at [0] dim 0 over ["dp"] on @gather : !cS -> !cR
  %f1_0 = all_gather %s1 at [1] dim 0 over ["dp"] on @gather : !cS -> !cR
  // 0F0
  %x0_0 = input "x" mb 0 at 0 : !xV
  %x1_0, %r0_0 = run @layer.0$F(%x0_0, %f0_0) mb 0 at 0 : (!xV, !cR) -> (!xV, !mV)
  %x1r_0 = transfer %x1_0 from 0 to 1 mb 0 on @pp : !xV
  %f0_1 = all_gather %s0 at [0] dim 0 over ["dp"] on @gather : !cS -> !cR
  // 1F0: the gather of 2F0 runs beside it
  // CHECK: run @layer.0$F({{.*}}) mb 0 at 0
  // CHECK: %[[FOR_F:.*]] = all_gather %[[SHARD:.*]] at [1] dim 0 over ["dp"] on @gather : !bf16_136_dpS0 -> !bf16_272_dpR
  // CHECK: run @layer.1$F({{.*}}) mb 0 at 1
  // CHECK: run @layer.2$F(%{{.*}}, %[[FOR_F]]) mb 0 at 1
  %f2_0 = all_gather %s2 at [1] dim 0 over ["dp"] on @gather : !cS -> !cR
  %x2_0, %r1_0 = run @layer.1$F(%x1r_0, %f1_0) mb 0 at 1 : (!xV, !cR) -> (!xV, !mV)
  // 0F1
  %f3_0 = all_gather %s3 at [0] dim 0 over ["dp"] on @gather : !cS -> !cR
  %x0_1 = input "x" mb 1 at 0 : !xV
  %x1_1, %r0_1 = run @layer.0$F(%x0_1, %f0_1) mb 1 at 0 : (!xV, !cR) -> (!xV, !mV)
  %x1r_1 = transfer %x1_1 from 0 to 1 mb 1 on @pp : !xV
  // 2F0: at the bottom of the V nothing is transferred
  %f1_1 = all_gather %s1 at [1] dim 0 over ["dp"] on @gather : !cS -> !cR
  %x3_0, %r2_0 = run @layer.2$F(%x2_0, %f2_0) mb 0 at 1 : (!xV, !cR) -> (!xV, !mV)
  %x3r_0 = transfer %x3_0 from 1 to 0 mb 0 on @pp : !xV
  // 3F0
  %x4_0, %r3_0 = run @layer.3$F(%x3r_0, %f3_0) mb 0 at 0 : (!xV, !cR) -> (!xV, !mV)
  %y_0 = input "target" mb 0 at 0 : !xV
  %l_0, %e_0 = run @loss.0$F(%x4_0, %y_0) mb 0 at 0 : (!xV, !xV) -> (!sP, !xV)
  %b3_0 = all_gather %s3 at [0] dim 0 over ["dp"] on @gather : !cS -> !cR
  // 1F1
  %f2_1 = all_gather %s2 at [1] dim 0 over ["dp"] on @gather : !cS -> !cR
  %x2_1, %r1_1 = run @layer.1$F(%x1r_1, %f1_1) mb 1 at 1 : (!xV, !cR) -> (!xV, !mV)
  // 3I0
  %d4_0 = run @loss.0$I(%t, %e_0) mb 0 at 0 : (!sR, !xV) -> !xV
  %d3_0, %a3_0 = run @layer.3$I(%d4_0, %r3_0, %b3_0) mb 0 at 0 : (!xV, !mV, !cR) -> (!xV, !mV)
  %d3r_0 = transfer %d3_0 from 0 to 1 mb 0 on @pp : !xV
  %f3_1 = all_gather %s3 at [0] dim 0 over ["dp"] on @gather : !cS -> !cR
  // 2F1
  %x3_1, %r2_1 = run @layer.2$F(%x2_1, %f2_1) mb 1 at 1 : (!xV, !cR) -> (!xV, !mV)
  %x3r_1 = transfer %x3_1 from 1 to 0 mb 1 on @pp : !xV
  // 2I0: the second use is a second gather
  // CHECK: run @layer.2$F({{.*}}) mb 1 at 1
  // CHECK: %[[FOR_I:.*]] = all_gather %[[SHARD]] at [1]
  // CHECK: run @layer.2$I(%{{.*}}, %{{.*}}, %[[FOR_I]]) mb 0 at 1
  %b2_0 = all_gather %s2 at [1] dim 0 over ["dp"] on @gather : !cS -> !cR
  %b1_0 = all_gather %s1 at [1] dim 0 over ["dp"] on @gather : !cS -> !cR
  %d2_0, %a2_0 = run @layer.2$I(%d3r_0, %r2_0, %b2_0) mb 0 at 1 : (!xV, !mV, !cR) -> (!xV, !mV)
  // 3F1
  %x4_1, %r3_1 = run @layer.3$F(%x3r_1, %f3_1) mb 1 at 0 : (!xV, !cR) -> (!xV, !mV)
  %y_1 = input "target" mb 1 at 0 : !xV
  %l_1, %e_1 = run @loss.0$F(%x4_1, %y_1) mb 1 at 0 : (!xV, !xV) -> (!sP, !xV)
  %b3_1 = all_gather %s3 at [0] dim 0 over ["dp"] on @gather : !cS -> !cR
  // 1I0
  %b2_1 = all_gather %s2 at [1] dim 0 over ["dp"] on @gather : !cS -> !cR
  %d1_0, %a1_0 = run @layer.1$I(%d2_0, %r1_0, %b1_0) mb 0 at 1 : (!xV, !mV, !cR) -> (!xV, !mV)
  %d1r_0 = transfer %d1_0 from 1 to 0 mb 0 on @pp : !xV
  // 3I1
  %d4_1 = run @loss.0$I(%t, %e_1) mb 1 at 0 : (!sR, !xV) -> !xV
  %d3_1, %a3_1 = run @layer.3$I(%d4_1, %r3_1, %b3_1) mb 1 at 0 : (!xV, !mV, !cR) -> (!xV, !mV)
  %d3r_1 = transfer %d3_1 from 0 to 1 mb 1 on @pp : !xV
  // 0I0: no gather
  %a0_0 = run @layer.0$I(%d1r_0, %r0_0) mb 0 at 0 : (!xV, !mV) -> !mV
  // 2I1
  %b1_1 = all_gather %s1 at [1] dim 0 over ["dp"] on @gather : !cS -> !cR
  %d2_1, %a2_1 = run @layer.2$I(%d3r_1, %r2_1, %b2_1) mb 1 at 1 : (!xV, !mV, !cR) -> (!xV, !mV)
  // 3W0
  %g3_0 = run @layer.3$W(%x3r_0, %a3_0) mb 0 at 0 : (!xV, !mV) -> !gP
  %h3_0 = convert %g3_0 at 0 : !gP -> !fP
  %i3_0 = reduce_scatter %h3_0 at [0] dim 0 over ["dp"] on @reduce : !fP -> !vS
  // 1I1
  %d1_1, %a1_1 = run @layer.1$I(%d2_1, %r1_1, %b1_1) mb 1 at 1 : (!xV, !mV, !cR) -> (!xV, !mV)
  %d1r_1 = transfer %d1_1 from 1 to 0 mb 1 on @pp : !xV
  // 0I1
  %a0_1 = run @layer.0$I(%d1r_1, %r0_1) mb 1 at 0 : (!xV, !mV) -> !mV
  %G3a = accumulate @layers.3.fc.weight$b %i3_0 at 0 : !vS -> !vS
  // 2W0: the reduce dtype is f32
  // CHECK: %[[G:.*]] = run @layer.2$W({{.*}}) mb 0 at 1
  // CHECK: %[[H:.*]] = convert %[[G]] at 1 : !bf16_272_dpP -> !f32_272_dpP
  // CHECK: %[[I:.*]] = reduce_scatter %[[H]] at [1] dim 0 over ["dp"] on @reduce : !f32_272_dpP -> !f32_136_dpS0
  // CHECK: %[[FIRST:.*]] = accumulate @layers.2.fc.weight$b %[[I]] at 1 : !f32_136_dpS0 -> !f32_136_dpS0
  %g2_0 = run @layer.2$W(%x2_0, %a2_0) mb 0 at 1 : (!xV, !mV) -> !gP
  %h2_0 = convert %g2_0 at 1 : !gP -> !fP
  %i2_0 = reduce_scatter %h2_0 at [1] dim 0 over ["dp"] on @reduce : !fP -> !vS
  // 3W1
  %g3_1 = run @layer.3$W(%x3r_1, %a3_1) mb 1 at 0 : (!xV, !mV) -> !gP
  %h3_1 = convert %g3_1 at 0 : !gP -> !fP
  %i3_1 = reduce_scatter %h3_1 at [0] dim 0 over ["dp"] on @reduce : !fP -> !vS
  // 1W0
  %g1_0 = run @layer.1$W(%x1r_0, %a1_0) mb 0 at 1 : (!xV, !mV) -> !gP
  %h1_0 = convert %g1_0 at 1 : !gP -> !fP
  %i1_0 = reduce_scatter %h1_0 at [1] dim 0 over ["dp"] on @reduce : !fP -> !vS
  %G2a = accumulate @layers.2.fc.weight$b %i2_0 at 1 : !vS -> !vS
  // 0W0
  %g0_0 = run @layer.0$W(%x0_0, %a0_0) mb 0 at 0 : (!xV, !mV) -> !gP
  %h0_0 = convert %g0_0 at 0 : !gP -> !fP
  %i0_0 = reduce_scatter %h0_0 at [0] dim 0 over ["dp"] on @reduce : !fP -> !vS
  %G3 = accumulate @layers.3.fc.weight$b %i3_1 onto %G3a at 0 : !vS -> !vS
  // 2W1
  %g2_1 = run @layer.2$W(%x2_1, %a2_1) mb 1 at 1 : (!xV, !mV) -> !gP
  %h2_1 = convert %g2_1 at 1 : !gP -> !fP
  %i2_1 = reduce_scatter %h2_1 at [1] dim 0 over ["dp"] on @reduce : !fP -> !vS
  %G1a = accumulate @layers.1.fc.weight$b %i1_0 at 1 : !vS -> !vS
  // 0W1
  %g0_1 = run @layer.0$W(%x0_1, %a0_1) mb 1 at 0 : (!xV, !mV) -> !gP
  %h0_1 = convert %g0_1 at 0 : !gP -> !fP
  %i0_1 = reduce_scatter %h0_1 at [0] dim 0 over ["dp"] on @reduce : !fP -> !vS
  %G0a = accumulate @layers.0.fc.weight$b %i0_0 at 0 : !vS -> !vS
  // 1W1
  %g1_1 = run @layer.1$W(%x1r_1, %a1_1) mb 1 at 1 : (!xV, !mV) -> !gP
  %h1_1 = convert %g1_1 at 1 : !gP -> !fP
  %i1_1 = reduce_scatter %h1_1 at [1] dim 0 over ["dp"] on @reduce : !fP -> !vS
  // CHECK: accumulate @layers.2.fc.weight$b %{{.*}} onto %[[FIRST]] at 1
  %G2 = accumulate @layers.2.fc.weight$b %i2_1 onto %G2a at 1 : !vS -> !vS
  %G0 = accumulate @layers.0.fc.weight$b %i0_1 onto %G0a at 0 : !vS -> !vS
  %G1 = accumulate @layers.1.fc.weight$b %i1_1 onto %G1a at 1 : !vS -> !vS
  %L = sum %l_0, %l_1 at 0 : !sP -> !sP
  %La = all_reduce %L at [0] over ["dp"] on @reduce : !sP -> !sR
  output "loss" %La scale %t at 0 : !sR, !sR
  // The bf16 copy is stale between the update and the write.
  %v0 = update @layers.0.fc.weight$b %G0 at 0 optimizer "train:make_adamw" : !vS -> !vS
  %u0 = convert %v0 at 0 : !vS -> !cS
  write @layers.0.fc.weight$b slot compute %u0 at 0 : !cS
  %v1 = update @layers.1.fc.weight$b %G1 at 1 optimizer "train:make_adamw" : !vS -> !vS
  %u1 = convert %v1 at 1 : !vS -> !cS
  write @layers.1.fc.weight$b slot compute %u1 at 1 : !cS
  // CHECK: %[[V:.*]] = update @layers.2.fc.weight$b %{{.*}} at 1 optimizer "train:make_adamw" : !f32_136_dpS0 -> !f32_136_dpS0
  // CHECK: %[[U:.*]] = convert %[[V]] at 1 : !f32_136_dpS0 -> !bf16_136_dpS0
  // CHECK: write @layers.2.fc.weight$b slot compute %[[U]] at 1 : !bf16_136_dpS0
  %v2 = update @layers.2.fc.weight$b %G2 at 1 optimizer "train:make_adamw" : !vS -> !vS
  %u2 = convert %v2 at 1 : !vS -> !cS
  write @layers.2.fc.weight$b slot compute %u2 at 1 : !cS
  %v3 = update @layers.3.fc.weight$b %G3 at 0 optimizer "train:make_adamw" : !vS -> !vS
  %u3 = convert %v3 at 0 : !vS -> !cS
  write @layers.3.fc.weight$b slot compute %u3 at 0 : !cS
}

// A gathered value lives from its gather to the cell that uses it.
// CHECK-LABEL: piper.program @train$pp1 of @train$cluster at 1
piper.program @train$pp1 of @train$cluster at 1 {
  %s1 = read @layers.1.fc.weight$b slot compute : !cS
  %s2 = read @layers.2.fc.weight$b slot compute : !cS
  %a0 = record
  %f1_0, %e0 = all_gather %s1 dim 0 over ["dp"] on @gather.dp$1 after %a0 : !cS -> !cR, !piper.event
  // CHECK: all_gather %{{.*}} dim 0 over ["dp"] on @gather.dp$1
  // CHECK: %[[F:[a-z0-9_]+]], %[[FE:[a-z0-9_]+]] = all_gather %{{.*}} dim 0 over ["dp"] on @gather.dp$1 after %{{.*}} : !bf16_136_dpS0 -> !bf16_272_dpR, !piper.event
  // CHECK: run @layer.1$F
  // CHECK: run @layer.2$F(%{{.*}}, %[[F]]) mb 0 after %[[FE]] :
  // CHECK: free %[[F]] :
  %f2_0, %e1 = all_gather %s2 dim 0 over ["dp"] on @gather.dp$1 after %a0 : !cS -> !cR, !piper.event
  %x1_0, %b0 = recv from 0 mb 0 on @send$0.1 after %a0 : !xV
  %x1_1, %b1 = recv from 0 mb 1 on @send$0.1 after %a0 : !xV
  // 1F0
  %x2_0, %r1_0 = run @layer.1$F(%x1_0, %f1_0) mb 0 after %b0, %e0 : (!xV, !cR) -> (!xV, !mV)
  free %f1_0 : !cR
  %a1 = record
  // 2F0
  %f1_1, %e2 = all_gather %s1 dim 0 over ["dp"] on @gather.dp$1 after %a1 : !cS -> !cR, !piper.event
  %x3_0, %r2_0 = run @layer.2$F(%x2_0, %f2_0) mb 0 after %e1 : (!xV, !cR) -> (!xV, !mV)
  free %f2_0 : !cR
  %a2 = record
  %c0 = send %x3_0 to 0 mb 0 on @send$1.0 after %a2 : !xV
  // 1F1
  %f2_1, %e3 = all_gather %s2 dim 0 over ["dp"] on @gather.dp$1 after %a2 : !cS -> !cR, !piper.event
  %x2_1, %r1_1 = run @layer.1$F(%x1_1, %f1_1) mb 1 after %b1, %e2 : (!xV, !cR) -> (!xV, !mV)
  free %f1_1 : !cR
  // 2F1
  %x3_1, %r2_1 = run @layer.2$F(%x2_1, %f2_1) mb 1 after %e3 : (!xV, !cR) -> (!xV, !mV)
  free %f2_1 : !cR
  free %x3_0 after %c0 : !xV
  %a3 = record
  %c1 = send %x3_1 to 0 mb 1 on @send$1.0 after %a3 : !xV
  %d3_0, %b2 = recv from 0 mb 0 on @send$0.1 after %a3 : !xV
  %d3_1, %b3 = recv from 0 mb 1 on @send$0.1 after %a3 : !xV
  %b2_0, %e4 = all_gather %s2 dim 0 over ["dp"] on @gather.dp$1 after %a3 : !cS -> !cR, !piper.event
  // 2I0
  %b1_0, %e5 = all_gather %s1 dim 0 over ["dp"] on @gather.dp$1 after %a3 : !cS -> !cR, !piper.event
  %d2_0, %a2_0 = run @layer.2$I(%d3_0, %r2_0, %b2_0) mb 0 after %b2, %e4 : (!xV, !mV, !cR) -> (!xV, !mV)
  free %d3_0, %r2_0, %b2_0 : !xV, !mV, !cR
  %a4 = record
  // 1I0
  %b2_1, %e6 = all_gather %s2 dim 0 over ["dp"] on @gather.dp$1 after %a4 : !cS -> !cR, !piper.event
  %d1_0, %a1_0 = run @layer.1$I(%d2_0, %r1_0, %b1_0) mb 0 after %e5 : (!xV, !mV, !cR) -> (!xV, !mV)
  free %d2_0, %r1_0, %b1_0 : !xV, !mV, !cR
  free %x3_1 after %c1 : !xV
  %a5 = record
  %c2 = send %d1_0 to 0 mb 0 on @send$1.0 after %a5 : !xV
  // 2I1
  %b1_1, %e7 = all_gather %s1 dim 0 over ["dp"] on @gather.dp$1 after %a5 : !cS -> !cR, !piper.event
  %d2_1, %a2_1 = run @layer.2$I(%d3_1, %r2_1, %b2_1) mb 1 after %b3, %e6 : (!xV, !mV, !cR) -> (!xV, !mV)
  free %d3_1, %r2_1, %b2_1 : !xV, !mV, !cR
  // 1I1
  %d1_1, %a1_1 = run @layer.1$I(%d2_1, %r1_1, %b1_1) mb 1 after %e7 : (!xV, !mV, !cR) -> (!xV, !mV)
  free %d2_1, %r1_1, %b1_1 : !xV, !mV, !cR
  %a6 = record
  %c3 = send %d1_1 to 0 mb 1 on @send$1.0 after %a6 : !xV
  // 2W0
  %g2_0 = run @layer.2$W(%x2_0, %a2_0) mb 0 : (!xV, !mV) -> !gP
  %h2_0 = convert %g2_0 : !gP -> !fP
  free %x2_0, %a2_0, %g2_0 : !xV, !mV, !gP
  free %d1_0 after %c2 : !xV
  %a7 = record
  // CHECK: %[[I:[a-z0-9_]+]], %[[IE:[a-z0-9_]+]] = reduce_scatter %[[H:[0-9]+]] dim 0 over ["dp"] on @reduce.dp$1 after %{{.*}} : !f32_272_dpP -> !f32_136_dpS0, !piper.event
  // CHECK: run @layer.1$W
  // CHECK: accumulate @layers.2.fc.weight$b %[[I]] after %[[IE]] : !f32_136_dpS0 -> !f32_136_dpS0
  // CHECK: free %[[H]], %[[I]] : !f32_272_dpP, !f32_136_dpS0
  %i2_0, %e8 = reduce_scatter %h2_0 dim 0 over ["dp"] on @reduce.dp$1 after %a7 : !fP -> !vS, !piper.event
  // 1W0
  %g1_0 = run @layer.1$W(%x1_0, %a1_0) mb 0 : (!xV, !mV) -> !gP
  %h1_0 = convert %g1_0 : !gP -> !fP
  free %x1_0, %a1_0, %g1_0 : !xV, !mV, !gP
  %a8 = record
  %i1_0, %e9 = reduce_scatter %h1_0 dim 0 over ["dp"] on @reduce.dp$1 after %a8 : !fP -> !vS, !piper.event
  %G2a = accumulate @layers.2.fc.weight$b %i2_0 after %e8 : !vS -> !vS
  free %h2_0, %i2_0 : !fP, !vS
  // 2W1
  %g2_1 = run @layer.2$W(%x2_1, %a2_1) mb 1 : (!xV, !mV) -> !gP
  %h2_1 = convert %g2_1 : !gP -> !fP
  free %x2_1, %a2_1, %g2_1 : !xV, !mV, !gP
  %a9 = record
  %i2_1, %e10 = reduce_scatter %h2_1 dim 0 over ["dp"] on @reduce.dp$1 after %a9 : !fP -> !vS, !piper.event
  %G1a = accumulate @layers.1.fc.weight$b %i1_0 after %e9 : !vS -> !vS
  free %h1_0, %i1_0 : !fP, !vS
  // 1W1
  %g1_1 = run @layer.1$W(%x1_1, %a1_1) mb 1 : (!xV, !mV) -> !gP
  %h1_1 = convert %g1_1 : !gP -> !fP
  free %x1_1, %a1_1, %g1_1 : !xV, !mV, !gP
  %a10 = record
  %i1_1, %e11 = reduce_scatter %h1_1 dim 0 over ["dp"] on @reduce.dp$1 after %a10 : !fP -> !vS, !piper.event
  %G2 = accumulate @layers.2.fc.weight$b %i2_1 onto %G2a after %e10 : !vS -> !vS
  free %h2_1, %i2_1 : !fP, !vS
  %G1 = accumulate @layers.1.fc.weight$b %i1_1 onto %G1a after %e11 : !vS -> !vS
  free %h1_1, %i1_1 : !fP, !vS
  %v1 = update @layers.1.fc.weight$b %G1 optimizer "train:make_adamw" : !vS -> !vS
  %u1 = convert %v1 : !vS -> !cS
  write @layers.1.fc.weight$b slot compute %u1 : !cS
  %v2 = update @layers.2.fc.weight$b %G2 optimizer "train:make_adamw" : !vS -> !vS
  %u2 = convert %v2 : !vS -> !cS
  write @layers.2.fc.weight$b slot compute %u2 : !cS
  free %u1, %u2 : !cS, !cS
  free %d1_1 after %c3 : !xV
}
