// From one microbatch of one rank to all microbatches of the cluster.
// RUN: piper-opt %s -split-input-file --piper-unroll-microbatches | FileCheck %s

// Every chunk of pass F or B runs once per microbatch at the home of its stage.
// The mask is made once per microbatch and coordinate that uses it, from its own
// input; a bucket is read once per coordinate. Gradients of all microbatches are
// one sum per coordinate, losses another.

!x = tensor<4xf32>

// CHECK: piper.state @w parameter : !f32_4 holders [0, 1]
piper.mesh @mesh [pp = 2 unrolled]
piper.state @w parameter : !x
piper.bucket @w$b [@w] value : !x grad : !x
piper.chunk @mask$P0 pass = P (%x: !x) -> !x { return %x : !x }
piper.chunk @a.0$F pass = F stage = 0 (%x: !x, %k: !x, %p: !x) -> !x { return %x : !x }
piper.chunk @a.1$F pass = F stage = 1 (%x: !x, %k: !x, %p: !x) -> !x { return %x : !x }
piper.chunk @a.1$B pass = B of @a.1$F stage = 1 (%d: !x) -> (!x, !x) { return %d, %d : !x, !x }
piper.chunk @a.0$B pass = B of @a.0$F stage = 0 (%d: !x) -> !x { return %d : !x }
piper.step @train phase = bucketed mesh = @mesh inputs ["x"] dims [0] axes [] microbatches = 2 order = @order homes [[0, 1]] (%x: !x) {
  %p = read @w$b slot value : !x
  %k = run @mask$P0(%x) : (!x) -> !x
  %y0 = run @a.0$F(%x, %k, %p) : (!x, !x, !x) -> !x
  %y1 = run @a.1$F(%y0, %k, %p) : (!x, !x, !x) -> !x
  %t = tangent "y" coeff 1.0 -> !x
  %d, %g1 = run @a.1$B(%y1) : (!x) -> (!x, !x)
  %s1 = sum bucket @w$b %g1 : !x -> !x
  %g0 = run @a.0$B(%d) : (!x) -> !x
  %s0 = sum bucket @w$b %g0 : !x -> !x
  output "y" %y1 scale %t : !x, !x
}
piper.schedule @order axis = "pp" stages = 2 microbatches = 2 ["0F0 0F1 0B0 0B1", "1F0 1B0 1F1 1B1"]
// CHECK-LABEL: piper.cluster @train$cluster of @train phase = unrolled mesh = @mesh order = @order microbatches = 2
// CHECK-NEXT: %[[T:.*]] = tangent "y" coeff 1.000000e+00 at 1
// CHECK-NEXT: %[[X0:.*]] = input "x" mb 0 at 0
// CHECK-NEXT: %[[K00:.*]] = run @mask$P0(%[[X0]]) mb 0 at 0
// CHECK-NEXT: %[[P0:.*]] = read @w$b slot value at 0
// CHECK-NEXT: %[[Y00:.*]] = run @a.0$F(%[[X0]], %[[K00]], %[[P0]]) mb 0 at 0
// CHECK-NEXT: %[[X1:.*]] = input "x" mb 0 at 1
// CHECK-NEXT: %[[K10:.*]] = run @mask$P0(%[[X1]]) mb 0 at 1
// CHECK-NEXT: %[[P1:.*]] = read @w$b slot value at 1
// CHECK-NEXT: %[[Y10:.*]] = run @a.1$F(%[[Y00]], %[[K10]], %[[P1]]) mb 0 at 1
// CHECK-NEXT: %[[B10:.*]]:2 = run @a.1$B(%[[Y10]]) mb 0 at 1
// CHECK-NEXT: %[[B00:.*]] = run @a.0$B(%[[B10]]#0) mb 0 at 0
// CHECK-NEXT: input "x" mb 1 at 0
// CHECK-NOT: read
// CHECK: %[[Y11:.*]] = run @a.1$F({{.*}}) mb 1 at 1
// CHECK: %[[B11:.*]]:2 = run @a.1$B
// CHECK: %[[B01:.*]] = run @a.0$B
// CHECK-DAG: sum bucket @w$b %[[B00]], %[[B01]] at 0
// CHECK-DAG: sum bucket @w$b %[[B10]]#1, %[[B11]]#1 at 1
// CHECK: %[[Y:.*]] = sum %[[Y10]], %[[Y11]] at 1
// CHECK-NEXT: output "y" %[[Y]] scale %[[T]] at 1

// -----

// A count that does not depend on data is part of the coefficient: one over 4
// examples, 2 microbatches and 2 ranks. A count that does is summed over the
// microbatches before the tangent divides by it.

!x = tensor<4xf32>
!s = tensor<f32>
!n = tensor<i64>

piper.mesh @mesh [dp = 2 manual]
piper.chunk @n$P0 pass = P (%n: !n) -> !n { return %n : !n }
piper.chunk @l.0$F pass = F stage = 0 (%s: !s) -> !s { return %s : !s }
piper.step @train phase = bucketed mesh = @mesh inputs ["s", "n"] dims [0, 0] axes ["dp"] microbatches = 2 homes [[0]] (%s: !s, %n: !n) {
  %c = run @n$P0(%n) : (!n) -> !n
  %l = run @l.0$F(%s) : (!s) -> !s
  %t = tangent "mean" coeff 1.0 examples 4 -> !s
  %u = tangent "valid" count %c : !n coeff 0.5 -> !s
  output "mean" %l scale %t : !s, !s
  output "valid" %l scale %u : !s, !s
}
// CHECK-LABEL: piper.cluster @train$cluster
// CHECK-NEXT: %[[T:.*]] = tangent "mean" coeff 6.250000e-02 at 0
// CHECK-NEXT: input "n" mb 0 at 0
// CHECK-NEXT: %[[N0:.*]] = run @n$P0
// CHECK-NEXT: input "n" mb 1 at 0
// CHECK-NEXT: %[[N1:.*]] = run @n$P0
// CHECK-NEXT: %[[N:.*]] = sum %[[N0]], %[[N1]] at 0
// CHECK-NEXT: %[[U:.*]] = tangent "valid" count %[[N]] : {{.*}} coeff 5.000000e-01 at 0
// CHECK: output "mean" %{{.*}} scale %[[T]] at 0
// CHECK: output "valid" %{{.*}} scale %[[U]] at 0

// -----

// Homes may differ per microbatch: then every stage has two, each with its own
// tangent, count, sum of gradients and reported loss. All counts, and all losses,
// come before what uses them: they will be one reduction.

!x = tensor<4xf32>
!n = tensor<i64>

// CHECK: piper.state @w parameter : !f32_4 holders [0, 1]
piper.mesh @mesh [pp = 2 unrolled]
piper.state @w parameter : !x
piper.bucket @w$b [@w] value : !x grad : !x
piper.chunk @n$P0 pass = P (%n: !n) -> !n { return %n : !n }
piper.chunk @a.0$F pass = F stage = 0 (%x: !x, %p: !x) -> !x { return %x : !x }
piper.chunk @a.1$F pass = F stage = 1 (%x: !x) -> !x { return %x : !x }
piper.chunk @a.0$B pass = B of @a.0$F stage = 0 (%t: !x) -> !x { return %t : !x }
piper.step @train phase = bucketed mesh = @mesh inputs ["x", "n"] dims [0, 0] axes [] microbatches = 2 homes [[0, 1], [1, 0]] (%x: !x, %n: !n) {
  %p = read @w$b slot value : !x
  %c = run @n$P0(%n) : (!n) -> !n
  %y0 = run @a.0$F(%x, %p) : (!x, !x) -> !x
  %y1 = run @a.1$F(%y0) : (!x) -> !x
  %t = tangent "y" count %c : !n coeff 1.0 -> !x
  %g = run @a.0$B(%t) : (!x) -> !x
  %s = sum bucket @w$b %g : !x -> !x
  output "y" %y1 scale %t : !x, !x
}
// CHECK-LABEL: piper.cluster @train$cluster
// CHECK: %[[N0:.*]] = sum %{{.*}} at 0
// CHECK-NEXT: %[[N1:.*]] = sum %{{.*}} at 1
// CHECK-NEXT: %[[T0:.*]] = tangent "y" count %[[N0]] : {{.*}} at 0
// CHECK-NEXT: %[[T1:.*]] = tangent "y" count %[[N1]] : {{.*}} at 1
// CHECK: run @a.0$F({{.*}}) mb 0 at 0
// CHECK: run @a.1$F({{.*}}) mb 0 at 1
// CHECK: %[[G0:.*]] = run @a.0$B(%[[T0]]) mb 0 at 0
// CHECK: run @a.0$F({{.*}}) mb 1 at 1
// CHECK: run @a.1$F({{.*}}) mb 1 at 0
// CHECK: %[[G1:.*]] = run @a.0$B(%[[T1]]) mb 1 at 1
// CHECK-NEXT: sum bucket @w$b %[[G0]] at 0
// CHECK-NEXT: sum bucket @w$b %[[G1]] at 1
// CHECK-DAG: %[[L0:.*]] = sum %{{.*}} at 0
// CHECK-DAG: %[[L1:.*]] = sum %{{.*}} at 1
// CHECK-DAG: output "y" %[[L0]] scale %[[T0]] at 0
// CHECK-DAG: output "y" %[[L1]] scale %[[T1]] at 1

// -----

// A value without a scale is reported as it is.

!x = tensor<4xf32>

// CHECK-LABEL: piper.cluster @eval$cluster
// CHECK: %[[S:.*]] = sum %{{.*}} at 0
// CHECK-NEXT: output "y" %[[S]] at 0
piper.mesh @mesh [pp = 1 unrolled]
piper.chunk @a.0$F.eval pass = F stage = 0 (%x: !x) -> !x { return %x : !x }
piper.step @eval phase = bucketed mesh = @mesh inputs ["x"] dims [0] axes [] microbatches = 1 homes [[0]] (%x: !x) {
  %y = run @a.0$F.eval(%x) : (!x) -> !x
  output "y" %y : !x
}
