// Gradients have the dual kinds of what they are gradients of.
// RUN: piper-opt %s -split-input-file --piper-assign-kinds | FileCheck %s

// The first chunk makes a row of a state alone: ranks hold the same, and each
// has a term of its gradient. The launch varies; the chunk says what it is. In
// the first chunk's backward the term is a rank's own value, and so is what it
// adds to the gradient of the state.

!x = tensor<2x4xf32>
!r = tensor<4xf32>
!s = tensor<f32>
piper.mesh @mesh [dp = 2 manual]
piper.stream @compute
piper.state @w parameter : !r
piper.kernel @tanh(%w: !r) -> !r {
  %0 = torch "aten.tanh.default"(%w) facts <pure> : (!r) -> !r
  return %0 : !r
}
piper.kernel @sum(%x: !x, %r: !r) -> !s {
  %0 = torch "aten.mul.Tensor"(%x, %r) facts <pure> : (!x, !r) -> !x
  %1 = torch "aten.sum.default"(%0) facts <pure> : (!x) -> !s
  return %1 : !s
}
piper.kernel @scale(%t: !s, %x: !x) -> !r {
  %0 = torch "aten.mul.Tensor"(%x, %t) facts <pure> : (!x, !s) -> !x
  %1 = torch "aten.sum.dim_IntList"(%0, [0]) facts <pure> : (!x) -> !r
  return %1 : !r
}
piper.kernel @tanh_backward(%d: !r, %y: !r) -> !r {
  %0 = torch "aten.tanh_backward.default"(%d, %y) facts <pure> : (!r, !r) -> !r
  return %0 : !r
}
piper.chunk @row.0$F pass = F () -> !r {
  %w = read @w : !r
  %0 = launch @tanh(%w) on @compute : (!r) -> !r
  return %0 : !r
}
piper.chunk @loss.0$F pass = F (%x: !x, %r: !r) -> !s {
  %0 = launch @sum(%x, %r) on @compute : (!x, !r) -> !s
  return %0 : !s
}
// CHECK: piper.chunk @loss.0$B pass = B of @loss.0$F dual [0] -> [1] (%[[T:.*]]: !f32_scalar_dpR{{.*}}, %[[X:.*]]: !f32_2x4_dpV{{.*}}) -> !f32_4_dpP {
// CHECK-NEXT: %[[D:.*]] = launch @scale(%[[T]], %[[X]]) on @compute : (!f32_scalar_dpR, !f32_2x4_dpV) -> !f32_4_dpV
// CHECK-NEXT: %[[P:.*]] = relabel %[[D]] : !f32_4_dpV -> !f32_4_dpP
// CHECK-NEXT: return %[[P]]
piper.chunk @loss.0$B pass = B of @loss.0$F dual [0] -> [1] (%t: !s, %x: !x) -> !r {
  %0 = launch @scale(%t, %x) on @compute : (!s, !x) -> !r
  return %0 : !r
}
// CHECK: piper.chunk @row.0$B pass = B of @row.0$F dual [0] -> [] (%[[D:.*]]: !f32_4_dpP{{.*}}, %[[Y:.*]]: !f32_4_dpR{{.*}}) {
// CHECK-NEXT: %[[V:.*]] = relabel %[[D]] : !f32_4_dpP -> !f32_4_dpV
// CHECK-NEXT: %[[G:.*]] = launch @tanh_backward(%[[V]], %[[Y]]) on @compute : (!f32_4_dpV, !f32_4_dpR) -> !f32_4_dpV
// CHECK-NEXT: grad @w %[[G]] : !f32_4_dpV
piper.chunk @row.0$B pass = B of @row.0$F dual [0] -> [] (%d: !r, %y: !r) {
  %0 = launch @tanh_backward(%d, %y) on @compute : (!r, !r) -> !r
  grad @w %0 : !r
  return
}
// CHECK: piper.step
// CHECK: run @loss.0$B(%{{.*}}, %x) : (!f32_scalar_dpR, !f32_2x4_dpV) -> !f32_4_dpP
// CHECK: run @row.0$B(%{{.*}}) : (!f32_4_dpP, !f32_4_dpR) -> ()
piper.step @train phase = outlined mesh = @mesh inputs ["x"] dims [0] axes ["dp"] microbatches = 2 (%x: !x) {
  %r = run @row.0$F() : () -> !r
  %l = run @loss.0$F(%x, %r) : (!x, !r) -> !s
  %t = tangent "loss" coeff 1.0 -> !s
  %d = run @loss.0$B(%t, %x) : (!s, !x) -> !r
  run @row.0$B(%d, %r) : (!r, !r) -> ()
  output "loss" %l scale %t : !s, !s
}

// -----

// One value is the cotangent of both terms of a sum, of which one varies and one
// is replicated: it has the kind of a launch, and no chunk calls it a dual. The
// gradient of what varies varies, also if it is made of what is replicated.

!x = tensor<4xf32>
!s = tensor<f32>
piper.mesh @mesh [dp = 2 manual]
piper.stream @compute
piper.state @w parameter : !x
piper.kernel @tanh(%x: !x) -> !x {
  %0 = torch "aten.tanh.default"(%x) facts <pure> : (!x) -> !x
  return %0 : !x
}
piper.kernel @sum(%x: !x, %r: !x) -> !s {
  %0 = torch "aten.add.Tensor"(%x, %r) facts <pure> : (!x, !x) -> !x
  %1 = torch "aten.sum.default"(%0) facts <pure> : (!x) -> !s
  return %1 : !s
}
piper.kernel @fill(%t: !s) -> !x {
  %0 = torch "aten.expand.default"(%t, [4]) facts <view> : (!s) -> !x
  %1 = torch "aten.clone.default"(%0) facts <pure> : (!x) -> !x
  return %1 : !x
}
piper.kernel @neg(%x: !x) -> !x {
  %0 = torch "aten.neg.default"(%x) facts <pure> : (!x) -> !x
  return %0 : !x
}
piper.chunk @row.0$F pass = F () -> !x {
  %w = read @w : !x
  %0 = launch @tanh(%w) on @compute : (!x) -> !x
  return %0 : !x
}
piper.chunk @x.0$F pass = F (%x: !x) -> !x {
  %0 = launch @tanh(%x) on @compute : (!x) -> !x
  return %0 : !x
}
piper.chunk @both.0$F pass = F (%x: !x, %r: !x) -> (!x, !x) {
  %0 = launch @neg(%x) on @compute : (!x) -> !x
  return %0, %r : !x, !x
}
piper.chunk @loss.0$F pass = F (%x: !x, %r: !x) -> !s {
  %0 = launch @sum(%x, %r) on @compute : (!x, !x) -> !s
  return %0 : !s
}
// CHECK: piper.chunk @loss.0$B pass = B of @loss.0$F dual [0] -> [] (%{{.*}}: !f32_scalar_dpR{{.*}}) -> !f32_4_dpR {
piper.chunk @loss.0$B pass = B of @loss.0$F dual [0] -> [0] (%t: !s) -> !x {
  %0 = launch @fill(%t) on @compute : (!s) -> !x
  return %0 : !x
}
// CHECK: piper.chunk @both.0$B pass = B of @both.0$F dual [] -> [0] (%{{.*}}: !f32_4_dpR{{.*}}) -> !f32_4_dpV {
// CHECK-NEXT: launch @neg
// CHECK-NEXT: relabel %{{.*}} : !f32_4_dpR -> !f32_4_dpV
piper.chunk @both.0$B pass = B of @both.0$F dual [0] -> [0] (%d: !x) -> !x {
  %0 = launch @neg(%d) on @compute : (!x) -> !x
  return %0 : !x
}
// CHECK: piper.chunk @row.0$B pass = B of @row.0$F (%{{.*}}: !f32_4_dpR
piper.chunk @row.0$B pass = B of @row.0$F dual [0] -> [] (%d: !x) {
  grad @w %d : !x
  return
}
piper.step @train phase = outlined mesh = @mesh inputs ["x"] dims [0] axes ["dp"] microbatches = 2 (%x: !x) {
  %r = run @row.0$F() : () -> !x
  %y = run @x.0$F(%x) : (!x) -> !x
  %b:2 = run @both.0$F(%y, %r) : (!x, !x) -> (!x, !x)
  %l = run @loss.0$F(%b#0, %r) : (!x, !x) -> !s
  %t = tangent "loss" coeff 1.0 -> !s
  %d = run @loss.0$B(%t) : (!s) -> !x
  %e = run @both.0$B(%d) : (!x) -> !x
  run @row.0$B(%d) : (!x) -> ()
  output "loss" %l scale %t : !s, !s
}

// -----

// A tangent is the same on all ranks. It is the cotangent of a loss, of which
// ranks hold parts, and called no dual of what varies.

!s = tensor<f32>
piper.mesh @mesh [dp = 2 manual]
piper.stream @compute
piper.kernel @sum(%x: !s) -> !s {
  %0 = torch "aten.sum.default"(%x) facts <pure> : (!s) -> !s
  return %0 : !s
}
piper.chunk @a.0$F pass = F (%x: !s) -> !s {
  %0 = launch @sum(%x) on @compute : (!s) -> !s
  return %0 : !s
}
piper.chunk @b.0$F pass = F (%x: !s) -> !s {
  %0 = launch @sum(%x) on @compute : (!s) -> !s
  return %0 : !s
}
// CHECK: piper.chunk @a.0$B pass = B of @a.0$F (
piper.chunk @a.0$B pass = B of @a.0$F dual [0] -> [] (%t: !s) {
  return
}
piper.step @train phase = outlined mesh = @mesh inputs ["x"] dims [0] axes ["dp"] microbatches = 2 (%x: !s) {
  %a = run @a.0$F(%x) : (!s) -> !s
  %l = run @b.0$F(%a) : (!s) -> !s
  %t = tangent "loss" coeff 1.0 -> !s
  run @a.0$B(%t) : (!s) -> ()
  output "loss" %l scale %t : !s, !s
}
