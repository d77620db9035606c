// The cluster in issue order.
// RUN: piper-opt %s -split-input-file --piper-order-cells | FileCheck %s

// 1F1B: each coordinate runs the cells of its row. Inputs come right before
// their first use, transfers right behind what they move, and a gradient is
// accumulated as soon as it is made, in issue order, whatever order the sum had.
// Losses and updates come last.

!x = tensor<4xf32>

piper.mesh @mesh [pp = 2 unrolled]
piper.stream @pp
piper.schedule @order axis = "pp" stages = 2 microbatches = 2 ["0F0 0F1 0B0 0B1", "1F0 1B0 1F1 1B1"]
piper.state @w parameter : !x holders [0] optimization <"train:sgd">
piper.bucket @w$b [@w] value : !x grad : !x
piper.chunk @a.0$F pass = F stage = 0 (%x: !x, %p: !x) -> !x { return %x : !x }
piper.chunk @a.1$F pass = F stage = 1 (%x: !x) -> !x { return %x : !x }
piper.chunk @a.1$B pass = B of @a.1$F stage = 1 (%x: !x) -> !x { return %x : !x }
piper.chunk @a.0$B pass = B of @a.0$F stage = 0 (%x: !x) -> !x { return %x : !x }
// CHECK-LABEL: piper.cluster @train$cluster of @train phase = ordered
// CHECK-NEXT: %[[X0:.*]] = input "x" mb 0 at 0
// CHECK-NEXT: %[[P:.*]] = read @w$b slot value at 0
// CHECK-NEXT: %[[Y0:.*]] = run @a.0$F(%[[X0]], %[[P]]) mb 0 at 0
// CHECK-NEXT: %[[R0:.*]] = transfer %[[Y0]] from 0 to 1 mb 0
// CHECK-NEXT: %[[Z0:.*]] = run @a.1$F(%[[R0]]) mb 0 at 1
// CHECK-NEXT: %[[X1:.*]] = input "x" mb 1 at 0
// CHECK-NEXT: %[[Y1:.*]] = run @a.0$F(%[[X1]], %[[P]]) mb 1 at 0
// CHECK-NEXT: %[[R1:.*]] = transfer %[[Y1]] from 0 to 1 mb 1
// CHECK-NEXT: %[[D0:.*]] = run @a.1$B(%[[Z0]]) mb 0 at 1
// CHECK-NEXT: %[[Q0:.*]] = transfer %[[D0]] from 1 to 0 mb 0
// CHECK-NEXT: %[[G0:.*]] = run @a.0$B(%[[Q0]]) mb 0 at 0
// CHECK-NEXT: %[[A:.*]] = accumulate @w$b %[[G0]] at 0
// CHECK-NEXT: %[[Z1:.*]] = run @a.1$F(%[[R1]]) mb 1 at 1
// CHECK-NEXT: %[[L:.*]] = sum %[[Z0]], %[[Z1]] at 1
// CHECK-NEXT: %[[D1:.*]] = run @a.1$B(%[[Z1]]) mb 1 at 1
// CHECK-NEXT: %[[Q1:.*]] = transfer %[[D1]] from 1 to 0 mb 1
// CHECK-NEXT: %[[G1:.*]] = run @a.0$B(%[[Q1]]) mb 1 at 0
// CHECK-NEXT: %[[B:.*]] = accumulate @w$b %[[G1]] onto %[[A]] at 0
// CHECK-NEXT: output "y" %[[L]] at 1
// CHECK-NEXT: update @w$b %[[B]] at 0
// CHECK-NEXT: }
piper.cluster @train$cluster of @train phase = reduced mesh = @mesh order = @order microbatches = 2 {
  %x0 = input "x" mb 0 at 0 : !x
  %x1 = input "x" mb 1 at 0 : !x
  %p = read @w$b slot value at 0 : !x
  %y0 = run @a.0$F(%x0, %p) mb 0 at 0 : (!x, !x) -> !x
  %y1 = run @a.0$F(%x1, %p) mb 1 at 0 : (!x, !x) -> !x
  %r0 = transfer %y0 from 0 to 1 mb 0 on @pp : !x
  %r1 = transfer %y1 from 0 to 1 mb 1 on @pp : !x
  %z0 = run @a.1$F(%r0) mb 0 at 1 : (!x) -> !x
  %d0 = run @a.1$B(%z0) mb 0 at 1 : (!x) -> !x
  %q0 = transfer %d0 from 1 to 0 mb 0 on @pp : !x
  %g0 = run @a.0$B(%q0) mb 0 at 0 : (!x) -> !x
  %z1 = run @a.1$F(%r1) mb 1 at 1 : (!x) -> !x
  %d1 = run @a.1$B(%z1) mb 1 at 1 : (!x) -> !x
  %q1 = transfer %d1 from 1 to 0 mb 1 on @pp : !x
  %g1 = run @a.0$B(%q1) mb 1 at 0 : (!x) -> !x
  %G = sum bucket @w$b %g1, %g0 at 0 : !x -> !x
  %L = sum %z0, %z1 at 1 : !x -> !x
  output "y" %L at 1 : !x
  %u = update @w$b %G at 0 optimizer "train:sgd" : !x -> !x
}

// -----

// Counts and tangents come first; a reduction of a gradient right behind its
// last contribution. Without a schedule, one microbatch follows the other.

#R = #piper.layout<dp = replicated>
#P = #piper.layout<dp = partial>
!r = tensor<4xf32, #R>
!p = tensor<4xf32, #P>
!n = tensor<i64, #P>
!m = tensor<i64, #R>
!s = tensor<f32, #R>

piper.mesh @mesh [dp = 2 manual]
piper.stream @dp
piper.state @v parameter : tensor<4xf32> holders [0]
piper.state @w parameter : tensor<4xf32> holders [0]
piper.bucket @v$b [@v] value : !r grad : !p
piper.bucket @w$b [@w] value : !r grad : !p
piper.chunk @n$P0 pass = P (%n: !n) -> !n { return %n : !n }
piper.chunk @a.0$F pass = F stage = 0 (%x: !p) -> !p { return %x : !p }
piper.chunk @a.1$F pass = F stage = 0 (%x: !p) -> !p { return %x : !p }
piper.chunk @a.1$B pass = B of @a.1$F stage = 0 (%t: !s, %x: !p) -> (!p, !p) { return %x, %x : !p, !p }
piper.chunk @a.0$B pass = B of @a.0$F stage = 0 (%x: !p) -> !p { return %x : !p }
// CHECK-LABEL: piper.cluster @train$cluster of @train phase = ordered
// CHECK-NEXT: input "n" mb 0
// CHECK-NEXT: run @n$P0
// CHECK-NEXT: input "n" mb 1
// CHECK-NEXT: run @n$P0
// CHECK-NEXT: sum
// CHECK-NEXT: all_reduce
// CHECK-NEXT: tangent "l"
// CHECK-NEXT: input "x" mb 0
// CHECK-NEXT: run @a.0$F({{.*}}) mb 0
// CHECK-NEXT: run @a.1$F({{.*}}) mb 0
// CHECK-NEXT: run @a.1$B({{.*}}) mb 0
// CHECK-NEXT: accumulate @v$b
// CHECK-NEXT: run @a.0$B({{.*}}) mb 0
// CHECK-NEXT: accumulate @w$b
// CHECK-NEXT: input "x" mb 1
// CHECK-NEXT: run @a.0$F({{.*}}) mb 1
// CHECK-NEXT: run @a.1$F({{.*}}) mb 1
// CHECK-NEXT: run @a.1$B({{.*}}) mb 1
// CHECK-NEXT: %[[V:.*]] = accumulate @v$b
// CHECK-NEXT: all_reduce %[[V]]
// CHECK-NEXT: run @a.0$B({{.*}}) mb 1
// CHECK-NEXT: %[[W:.*]] = accumulate @w$b
// CHECK-NEXT: all_reduce %[[W]]
// CHECK-NEXT: }
piper.cluster @train$cluster of @train phase = reduced mesh = @mesh microbatches = 2 {
  %x0 = input "x" mb 0 at 0 : !p
  %y0 = run @a.0$F(%x0) mb 0 at 0 : (!p) -> !p
  %z0 = run @a.1$F(%y0) mb 0 at 0 : (!p) -> !p
  %n0 = input "n" mb 0 at 0 : !n
  %c0 = run @n$P0(%n0) mb 0 at 0 : (!n) -> !n
  %n1 = input "n" mb 1 at 0 : !n
  %c1 = run @n$P0(%n1) mb 1 at 0 : (!n) -> !n
  %c = sum %c0, %c1 at 0 : !n -> !n
  %m = all_reduce %c at [0] over ["dp"] on @dp : !n -> !m
  %t = tangent "l" count %m : !m coeff 1.0 at 0 -> !s
  %d0, %g0 = run @a.1$B(%t, %z0) mb 0 at 0 : (!s, !p) -> (!p, !p)
  %h0 = run @a.0$B(%d0) mb 0 at 0 : (!p) -> !p
  %x1 = input "x" mb 1 at 0 : !p
  %y1 = run @a.0$F(%x1) mb 1 at 0 : (!p) -> !p
  %z1 = run @a.1$F(%y1) mb 1 at 0 : (!p) -> !p
  %d1, %g1 = run @a.1$B(%t, %z1) mb 1 at 0 : (!s, !p) -> (!p, !p)
  %h1 = run @a.0$B(%d1) mb 1 at 0 : (!p) -> !p
  %G = sum bucket @v$b %g0, %g1 at 0 : !p -> !p
  %H = sum bucket @w$b %h0, %h1 at 0 : !p -> !p
  %K = all_reduce %G at [0] over ["dp"] on @dp : !p -> !r
  %J = all_reduce %H at [0] over ["dp"] on @dp : !p -> !r
}

// -----

// An evaluation takes the forward cells of the table of training.

!x = tensor<4xf32>

piper.mesh @mesh [pp = 2 unrolled]
piper.stream @pp
piper.schedule @order axis = "pp" stages = 2 microbatches = 2 ["0F1 0F0 0B0 0B1", "1F1 1B1 1F0 1B0"]
piper.chunk @a.0$F.eval pass = F stage = 0 (%x: !x) -> !x { return %x : !x }
piper.chunk @a.1$F.eval pass = F stage = 1 (%x: !x) -> !x { return %x : !x }
// CHECK-LABEL: piper.cluster @eval$cluster of @eval phase = ordered
// CHECK: run @a.0$F.eval({{.*}}) mb 1 at 0
// CHECK: run @a.1$F.eval({{.*}}) mb 1 at 1
// CHECK: run @a.0$F.eval({{.*}}) mb 0 at 0
// CHECK: run @a.1$F.eval({{.*}}) mb 0 at 1
piper.cluster @eval$cluster of @eval phase = reduced mesh = @mesh order = @order microbatches = 2 {
  %x0 = input "x" mb 0 at 0 : !x
  %x1 = input "x" mb 1 at 0 : !x
  %y0 = run @a.0$F.eval(%x0) mb 0 at 0 : (!x) -> !x
  %y1 = run @a.0$F.eval(%x1) mb 1 at 0 : (!x) -> !x
  %r0 = transfer %y0 from 0 to 1 mb 0 on @pp : !x
  %r1 = transfer %y1 from 0 to 1 mb 1 on @pp : !x
  %z0 = run @a.1$F.eval(%r0) mb 0 at 1 : (!x) -> !x
  %z1 = run @a.1$F.eval(%r1) mb 1 at 1 : (!x) -> !x
}
