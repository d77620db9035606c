// From a captured step to runs of chunks that launch kernels.
// RUN: piper-opt %s -split-input-file --piper-outline-chunks | FileCheck %s

// Three equal layers share one forward and one backward kernel; kernels name no
// state, so only the chunks differ. Backward chunks name their forward chunk.

!x = tensor<4x8xf32>
!w = tensor<8x8xf32>
!s = tensor<f32>

// CHECK: piper.stream @compute
// CHECK: piper.kernel [[MUL:@mul\$[0-9a-f]+]]
// CHECK: piper.chunk @embed.0$F pass = F
// CHECK: piper.kernel [[FORWARD:@mm_relu\$[0-9a-f]+]]
// CHECK-NOT: tag
// CHECK: cost <flops = 544, bytes = 512>
// CHECK: piper.chunk @layer.0$F pass = F (%[[X:.*]]: !f32_4x8
// CHECK-NEXT: %[[W:.*]] = read @w0
// CHECK-NEXT: %[[Y:.*]] = launch [[FORWARD]](%[[X]], %[[W]]) on @compute
// CHECK-NEXT: return %[[Y]]
// CHECK: piper.chunk @layer.1$F
// CHECK: launch [[FORWARD]](
// CHECK: piper.chunk @layer.2$F
// CHECK: launch [[FORWARD]](
// CHECK: piper.kernel [[BACKWARD:@mm_threshold_backward\$[0-9a-f]+]]
// CHECK: piper.chunk @layer.2$B pass = B of @layer.2$F
// CHECK: %[[G:.*]]:2 = launch [[BACKWARD]](
// CHECK-NEXT: grad @w2 %[[G]]#1
// CHECK-NEXT: return %[[G]]#0
// CHECK: piper.chunk @layer.1$B pass = B of @layer.1$F
// CHECK: launch [[BACKWARD]](
// CHECK: piper.chunk @layer.0$B pass = B of @layer.0$F
// CHECK: launch [[BACKWARD]](
// CHECK: piper.step @train phase = outlined
// CHECK-NEXT: run @embed.0$F(%x)
// CHECK: run @layer.2$F
// CHECK-NEXT: run @loss.0$F
// CHECK-NEXT: tangent "loss"
// CHECK-NEXT: run @loss.0$B
// CHECK-NEXT: run @layer.2$B
// CHECK: output "loss"
piper.mesh @mesh [pp = 2 unrolled]
piper.state @e parameter : !x
piper.state @w0 parameter : !w
piper.state @w1 parameter : !w
piper.state @w2 parameter : !w
piper.step @train phase = captured mesh = @mesh inputs ["x"] dims [0] (%x: !x) {
  %e = read @e : !x
  %w0 = read @w0 : !w
  %w1 = read @w1 : !w
  %w2 = read @w2 : !w
  %x0 = torch "aten.mul.Tensor"(%x, %e) facts <pure, flops = 32> tag <"embed.0" F> : (!x, !x) -> !x
  %a0 = torch "aten.mm.default"(%x0, %w0) facts <pure, flops = 512> tag <"layer.0" F> : (!x, !w) -> !x
  %x1 = torch "aten.relu.default"(%a0) facts <pure, flops = 32> tag <"layer.0" F> : (!x) -> !x
  %a1 = torch "aten.mm.default"(%x1, %w1) facts <pure, flops = 512> tag <"layer.1" F> : (!x, !w) -> !x
  %x2 = torch "aten.relu.default"(%a1) facts <pure, flops = 32> tag <"layer.1" F> : (!x) -> !x
  %a2 = torch "aten.mm.default"(%x2, %w2) facts <pure, flops = 512> tag <"layer.2" F> : (!x, !w) -> !x
  %x3 = torch "aten.relu.default"(%a2) facts <pure, flops = 32> tag <"layer.2" F> : (!x) -> !x
  %l = torch "aten.sum.default"(%x3) facts <pure, flops = 32> tag <"loss.0" F> : (!x) -> !s
  %t = tangent "loss" coeff 1.0 -> !s
  output "loss" %l scale %t : !s, !s
  %d4 = torch "aten.expand.default"(%t, [4, 8]) facts <view> tag <"loss.0" B> : (!s) -> !x
  %d3 = torch "aten.clone.default"(%d4) facts <pure> tag <"loss.0" B> : (!x) -> !x
  %c2 = torch "aten.threshold_backward.default"(%d3, %x3, 0) facts <pure, flops = 32> tag <"layer.2" B> : (!x, !x) -> !x
  %u2 = torch "aten.t.default"(%x2) facts <view> tag <"layer.2" B> : (!x) -> tensor<8x4xf32>
  %g2 = torch "aten.mm.default"(%u2, %c2) facts <pure, flops = 512> tag <"layer.2" B> : (tensor<8x4xf32>, !x) -> !w
  grad @w2 %g2 tag <"layer.2" B> : !w
  %v2 = torch "aten.t.default"(%w2) facts <view> tag <"layer.2" B> : (!w) -> !w
  %d2 = torch "aten.mm.default"(%c2, %v2) facts <pure, flops = 512> tag <"layer.2" B> : (!x, !w) -> !x
  %c1 = torch "aten.threshold_backward.default"(%d2, %x2, 0) facts <pure, flops = 32> tag <"layer.1" B> : (!x, !x) -> !x
  %u1 = torch "aten.t.default"(%x1) facts <view> tag <"layer.1" B> : (!x) -> tensor<8x4xf32>
  %g1 = torch "aten.mm.default"(%u1, %c1) facts <pure, flops = 512> tag <"layer.1" B> : (tensor<8x4xf32>, !x) -> !w
  grad @w1 %g1 tag <"layer.1" B> : !w
  %v1 = torch "aten.t.default"(%w1) facts <view> tag <"layer.1" B> : (!w) -> !w
  %d1 = torch "aten.mm.default"(%c1, %v1) facts <pure, flops = 512> tag <"layer.1" B> : (!x, !w) -> !x
  %c0 = torch "aten.threshold_backward.default"(%d1, %x1, 0) facts <pure, flops = 32> tag <"layer.0" B> : (!x, !x) -> !x
  %u0 = torch "aten.t.default"(%x0) facts <view> tag <"layer.0" B> : (!x) -> tensor<8x4xf32>
  %g0 = torch "aten.mm.default"(%u0, %c0) facts <pure, flops = 512> tag <"layer.0" B> : (tensor<8x4xf32>, !x) -> !w
  grad @w0 %g0 tag <"layer.0" B> : !w
  %v0 = torch "aten.t.default"(%w0) facts <view> tag <"layer.0" B> : (!w) -> !w
  %d0 = torch "aten.mm.default"(%c0, %v0) facts <pure, flops = 512> tag <"layer.0" B> : (!x, !w) -> !x
  %ge = torch "aten.mul.Tensor"(%d0, %x) facts <pure, flops = 32> tag <"embed.0" B> : (!x, !x) -> !x
  grad @e %ge tag <"embed.0" B> : !x
}

// -----

// A view of what another chunk made is rebuilt where it is used: the chunk
// passes on what owns memory.

!x = tensor<4x8xf32>
!v = tensor<8x4xf32>

// CHECK: piper.kernel @relu
// CHECK-NOT: aten.t.default
// CHECK: piper.kernel @neg$
// CHECK-SAME: (%[[A:.*]]: !f32_4x8{{.*}}) -> !f32_8x4
// CHECK-NEXT: %[[V:.*]] = torch "aten.t.default"(%[[A]])
// CHECK-NEXT: torch "aten.neg.default"(%[[V]])
// CHECK: piper.step @train
// CHECK-NEXT: %[[R:.*]] = run @a.0$F(%x) : (!f32_4x8) -> !f32_4x8
// CHECK-NEXT: run @b.0$F(%[[R]]) : (!f32_4x8) -> !f32_8x4
piper.mesh @mesh [pp = 2 unrolled]
piper.step @train phase = captured mesh = @mesh inputs ["x"] dims [0] (%x: !x) {
  %0 = torch "aten.relu.default"(%x) facts <pure> tag <"a.0" F> : (!x) -> !x
  %1 = torch "aten.t.default"(%0) facts <view> tag <"a.0" F> : (!x) -> !v
  %2 = torch "aten.neg.default"(%1) facts <pure> tag <"b.0" F> : (!v) -> !v
  output "y" %2 : !v
}

// -----

// Results are contiguous and alias nothing: what is strided as captured is
// copied, and so is a view that the step reports.

!x = tensor<4x8xf32>
!v = tensor<8x4xf32>

// CHECK: piper.kernel @mul_clone
// CHECK-NEXT: %[[M:.*]] = torch "aten.mul.Tensor"{{.*}} facts <pure, strided>
// CHECK-NEXT: %[[C:.*]] = torch "aten.clone.default"(%[[M]], memory_format = #piper.const<"torch.contiguous_format">)
// CHECK-NEXT: return %[[C]]
// CHECK: piper.kernel @neg_clone
// CHECK: %[[N:.*]] = torch "aten.neg.default"
// CHECK-NEXT: %[[V:.*]] = torch "aten.t.default"(%[[N]])
// CHECK-NEXT: %[[D:.*]] = torch "aten.clone.default"(%[[V]]
// CHECK-NEXT: return %[[D]]
piper.mesh @mesh [pp = 2 unrolled]
piper.step @train phase = captured mesh = @mesh inputs ["x"] dims [0] (%x: !x) {
  %0 = torch "aten.mul.Tensor"(%x, 2.0) facts <pure, strided> tag <"a.0" F> : (!x) -> !x
  %1 = torch "aten.neg.default"(%0) facts <pure> tag <"b.0" F> : (!x) -> !x
  %2 = torch "aten.t.default"(%1) facts <view> tag <"b.0" F> : (!x) -> !v
  output "y" %2 : !v
}

// -----

// Gradients that are a view, or what another chunk made, are copies. A value
// that is both passed on and a gradient is one result.

!x = tensor<4x8xf32>
!v = tensor<8x4xf32>
!s = tensor<f32>

// CHECK: piper.kernel @mul_clone{{[^(]*}}(%{{.*}}: !f32_scalar{{.*}}, %[[A:.*]]: !f32_4x8{{.*}}) -> (!f32_4x8, !f32_8x4)
// CHECK: %[[E:.*]] = torch "aten.expand.default"
// CHECK-NEXT: %[[M:.*]] = torch "aten.mul.Tensor"(%[[E]], %[[A]])
// CHECK-NEXT: %[[V:.*]] = torch "aten.t.default"(%[[M]])
// CHECK-NEXT: %[[C:.*]] = torch "aten.clone.default"(%[[V]]
// CHECK-NEXT: return %[[M]], %[[C]]
// CHECK: piper.chunk @b.0$B
// CHECK: %[[L:.*]]:2 = launch
// CHECK-NEXT: grad @u %[[L]]#0
// CHECK-NEXT: grad @w %[[L]]#1
// CHECK-NEXT: return %[[L]]#0
// CHECK: piper.kernel @clone{{[^(]*}}(%[[G:.*]]: !f32_4x8
// CHECK-NEXT: %[[D:.*]] = torch "aten.clone.default"(%[[G]]
// CHECK-NEXT: return %[[D]]
// CHECK: piper.chunk @a.0$B
// CHECK: grad @b
piper.mesh @mesh [pp = 2 unrolled]
piper.state @w parameter : !v
piper.state @u parameter : !x
piper.state @b parameter : !x
piper.step @train phase = captured mesh = @mesh inputs ["x"] dims [0] (%x: !x) {
  %0 = torch "aten.neg.default"(%x) facts <pure> tag <"a.0" F> : (!x) -> !x
  %1 = torch "aten.sum.default"(%0) facts <pure> tag <"b.0" F> : (!x) -> !s
  %t = tangent "loss" coeff 1.0 -> !s
  output "loss" %1 scale %t : !s, !s
  %2 = torch "aten.expand.default"(%t, [4, 8]) facts <view> tag <"b.0" B> : (!s) -> !x
  %3 = torch "aten.mul.Tensor"(%2, %x) facts <pure> tag <"b.0" B> : (!x, !x) -> !x
  %4 = torch "aten.t.default"(%3) facts <view> tag <"b.0" B> : (!x) -> !v
  grad @u %3 tag <"b.0" B> : !x
  grad @w %4 tag <"b.0" B> : !v
  grad @b %3 tag <"a.0" B> : !x
}

// -----

// Ops of pass P become one chunk per connected piece, so that a coordinate
// makes only the masks that its chunks need.

!x = tensor<4xf32>
!k = tensor<4xi1>

// CHECK: piper.kernel @gt_logical_not
// CHECK: piper.chunk @mask$P0 pass = P
// CHECK: piper.kernel @lt$
// CHECK: piper.chunk @mask$P1 pass = P
// CHECK: piper.step @train
// CHECK-NEXT: %[[M0:.*]] = run @mask$P0(%x)
// CHECK-NEXT: %[[M1:.*]] = run @mask$P1(%x)
// CHECK-NEXT: %[[A:.*]] = run @a.0$F(%[[M0]], %x)
// CHECK-NEXT: run @b.0$F(%[[M1]], %[[A]], %x)
piper.mesh @mesh [pp = 2 unrolled]
piper.step @train phase = captured mesh = @mesh inputs ["x"] dims [0] (%x: !x) {
  %0 = torch "aten.gt.Scalar"(%x, 0) facts <pure> tag <"mask" P> : (!x) -> !k
  %1 = torch "aten.lt.Scalar"(%x, 0) facts <pure> tag <"mask" P> : (!x) -> !k
  %2 = torch "aten.logical_not.default"(%0) facts <pure> tag <"mask" P> : (!k) -> !k
  %3 = torch "aten.where.self"(%2, %x, %x) facts <pure> tag <"a.0" F> : (!k, !x, !x) -> !x
  %4 = torch "aten.where.self"(%1, %3, %x) facts <pure> tag <"b.0" F> : (!k, !x, !x) -> !x
  output "y" %4 : !x
}

// -----

// What nothing needs is dropped. Chunks of another step than train carry its
// name.
!x = tensor<4xf32>

// CHECK: piper.kernel @relu
// CHECK-NOT: neg
// CHECK: piper.chunk @a.0$F.eval pass = F
// CHECK: piper.step @eval phase = outlined
piper.mesh @mesh [pp = 2 unrolled]
piper.state @unused parameter : !x
piper.step @eval phase = captured mesh = @mesh inputs ["x"] dims [0] (%x: !x) {
  %w = read @unused : !x
  %0 = torch "aten.relu.default"(%x) facts <pure> tag <"a.0" F> : (!x) -> !x
  %1 = torch "aten.neg.default"(%0) facts <pure> tag <"a.0" F> : (!x) -> !x
  %2 = torch "aten.mul.Tensor"(%1, %w) facts <pure> tag <"a.0" F> : (!x, !x) -> !x
  output "y" %0 : !x
}

// -----

// A backward chunk says which operands are cotangents of which results of its
// forward chunk, and which results gradients of which operands. What is noted on
// a view is about what it looks at; the cotangent of the loss is its tangent. A
// value with two users has two terms: the second chunk adds to the third's, which
// to it is neither. Kernels do not know.

!x = tensor<4x8xf32>
!m = tensor<32xf32>
!s = tensor<f32>
// CHECK-NOT: primals
// CHECK-NOT: cotangents
// CHECK: piper.chunk @c.0$B pass = B of @c.0$F dual [-1, 0] -> [1, 0] (%{{.*}}: !f32_4x8{{.*}}, %{{.*}}: !f32_scalar{{.*}}, %{{.*}}: !f32_4x8{{.*}})
// CHECK: piper.chunk @b.0$B pass = B of @b.0$F dual [0] -> [0] (
// CHECK: piper.chunk @a.0$B pass = B of @a.0$F dual [-1, 0] -> [] (
// CHECK: piper.step
// CHECK-NOT: primals
// CHECK-NOT: cotangents
// CHECK: %[[X:.*]] = run @a.0$F(
// CHECK: %[[Y:.*]] = run @b.0$F(%[[X]])
// CHECK: run @c.0$F(%[[X]], %[[Y]])
// CHECK: %[[D:.*]]:2 = run @c.0$B(
// CHECK: %[[E:.*]] = run @b.0$B(%[[D]]#0, %[[D]]#1)
// CHECK: run @a.0$B(%x, %[[E]])
piper.mesh @mesh [pp = 2 unrolled]
piper.state @e parameter : !x
piper.step @train phase = captured mesh = @mesh inputs ["x"] dims [0] (%x: !x) {
  %e = read @e : !x
  %a0 = torch "aten.mul.Tensor"(%x, %e) facts <pure> tag <"a.0" F> {primals = [[0]]} : (!x, !x) -> !x
  %b0 = torch "aten.neg.default"(%a0) facts <pure> tag <"b.0" F> : (!x) -> !x
  %b1 = torch "aten.view.default"(%b0, [32]) facts <view> tag <"b.0" F> {primals = [[1]]} : (!x) -> !m
  %c0 = torch "aten.view.default"(%a0, [32]) facts <view> tag <"c.0" F> : (!x) -> !m
  %c1 = torch "aten.mul.Tensor"(%c0, %b1) facts <pure> tag <"c.0" F> : (!m, !m) -> !m
  %l = torch "aten.sum.default"(%c1) facts <pure> tag <"c.0" F> : (!m) -> !s
  %t = tangent "loss" coeff 1.0 -> !s
  output "loss" %l scale %t : !s, !s
  %d0 = torch "aten.mul.Tensor"(%c0, %t) facts <pure> tag <"c.0" B> {cotangents = [[1]]} : (!m, !s) -> !m
  %d1 = torch "aten.mul.Tensor"(%b1, %t) facts <pure> tag <"c.0" B> : (!m, !s) -> !m
  %d2 = torch "aten.view.default"(%d1, [4, 8]) facts <view> tag <"c.0" B> {cotangents = [[0]]} : (!m) -> !x
  %d3 = torch "aten.view.default"(%d0, [4, 8]) facts <view> tag <"b.0" B> : (!m) -> !x
  %d4 = torch "aten.neg.default"(%d3) facts <pure> tag <"b.0" B> {cotangents = [[0]]} : (!x) -> !x
  %d5 = torch "aten.add.Tensor"(%d2, %d4) facts <pure> tag <"b.0" B> {cotangents = [[0]]} : (!x, !x) -> !x
  %g = torch "aten.mul.Tensor"(%x, %d5) facts <pure> tag <"a.0" B> : (!x, !x) -> !x
  grad @e %g tag <"a.0" B> : !x
}

// -----

// What a backward pass computes again is no cotangent, although the op is one
// with a primal. A tangent may be the cotangent of more than the loss.

!x = tensor<8xf32>
!s = tensor<f32>
// CHECK: piper.chunk @b.0$B pass = B of @b.0$F dual [-1, 0] -> [0] (%{{.*}}: !f32_8{{.*}}, %{{.*}}: !f32_scalar
// CHECK: piper.chunk @a.0$B pass = B of @a.0$F dual [-1, 1, 0] -> [] (%{{.*}}: !f32_8{{.*}}, %{{.*}}: !f32_scalar{{.*}}, %{{.*}}: !f32_8
piper.mesh @mesh [pp = 2 unrolled]
piper.state @e parameter : !x
piper.step @train phase = captured mesh = @mesh inputs ["x"] dims [0] (%x: !x) {
  %e = read @e : !x
  %a0 = torch "aten.mul.Tensor"(%x, %e) facts <pure> tag <"a.0" F> {primals = [[0]]} : (!x, !x) -> !x
  %a1 = torch "aten.sum.default"(%a0) facts <pure> tag <"a.0" F> {primals = [[1]]} : (!x) -> !s
  %b0 = torch "aten.cos.default"(%a0) facts <pure> tag <"b.0" F> : (!x) -> !x
  %b1 = torch "aten.sum.default"(%b0) facts <pure> tag <"b.0" F> : (!x) -> !s
  %l = torch "aten.add.Tensor"(%b1, %a1) facts <pure> tag <"b.0" F> : (!s, !s) -> !s
  %t = tangent "loss" coeff 1.0 {cotangents = [[1]]} -> !s
  output "loss" %l scale %t : !s, !s
  %a2 = torch "aten.mul.Tensor"(%x, %e) facts <pure> tag <"b.0" B> {primals = [[0]]} : (!x, !x) -> !x
  %d0 = torch "aten.mul.Tensor"(%t, %a2) facts <pure> tag <"b.0" B> {cotangents = [[0]]} : (!s, !x) -> !x
  %d1 = torch "aten.mul.Tensor"(%x, %t) facts <pure> tag <"a.0" B> : (!x, !s) -> !x
  %d2 = torch "aten.mul.Tensor"(%d1, %d0) facts <pure> tag <"a.0" B> : (!x, !x) -> !x
  grad @e %d2 tag <"a.0" B> : !x
}
