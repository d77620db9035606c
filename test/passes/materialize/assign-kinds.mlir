// What ranks along manual axes hold of each value.
// RUN: piper-opt %s -split-input-file --piper-assign-kinds | FileCheck %s

// Inputs vary along the data axes unless they have no batch dim; states are
// replicated; a launch of replicated values is replicated, else it varies. A
// rank's loss and count are its share of the total, hence partial.

!x = tensor<4xf32>
!s = tensor<f32>
!n = tensor<i64>

piper.mesh @mesh [pp = 2 unrolled, dp = 2 manual]
piper.stream @compute
piper.state @w parameter : !x
piper.kernel @mul(%x: !x, %y: !x) -> !x {
  %0 = torch "aten.mul.Tensor"(%x, %y) facts <pure> : (!x, !x) -> !x
  return %0 : !x
}
piper.kernel @sum(%x: !x) -> !s {
  %0 = torch "aten.sum.default"(%x) facts <pure> : (!x) -> !s
  return %0 : !s
}
piper.kernel @count(%x: !x) -> !n {
  %0 = torch "aten.count_nonzero.default"(%x) facts <pure> : (!x) -> !n
  return %0 : !n
}
piper.kernel @scale(%t: !s, %x: !x) -> !x {
  %0 = torch "aten.mul.Tensor"(%x, %t) facts <pure> : (!x, !s) -> !x
  return %0 : !x
}
// CHECK-LABEL: piper.chunk @loss$P0 pass = P
// CHECK-SAME: (%[[X:.*]]: !f32_4_dpV{{.*}}) -> !i64_scalar_dpP
// CHECK-NEXT: %[[N:.*]] = launch @count(%[[X]]) on @compute : (!f32_4_dpV) -> !i64_scalar_dpV
// CHECK-NEXT: %[[P:.*]] = relabel %[[N]] : !i64_scalar_dpV -> !i64_scalar_dpP
// CHECK-NEXT: return %[[P]]
piper.chunk @loss$P0 pass = P (%x: !x) -> !n {
  %0 = launch @count(%x) on @compute : (!x) -> !n
  return %0 : !n
}
// CHECK-LABEL: piper.chunk @a.0$F pass = F
// CHECK-SAME: (%[[X:.*]]: !f32_4_dpV{{.*}}, %[[T:.*]]: !f32_4_dpR{{.*}}) -> (!f32_4_dpV, !f32_4_dpR)
// CHECK-NEXT: %[[W:.*]] = read @w : !f32_4_dpR
// CHECK-NEXT: launch @mul(%[[X]], %[[W]]) on @compute : (!f32_4_dpV, !f32_4_dpR) -> !f32_4_dpV
// CHECK-NEXT: launch @mul(%[[T]], %[[W]]) on @compute : (!f32_4_dpR, !f32_4_dpR) -> !f32_4_dpR
piper.chunk @a.0$F pass = F (%x: !x, %t: !x) -> (!x, !x) {
  %w = read @w : !x
  %0 = launch @mul(%x, %w) on @compute : (!x, !x) -> !x
  %1 = launch @mul(%t, %w) on @compute : (!x, !x) -> !x
  return %0, %1 : !x, !x
}
// CHECK-LABEL: piper.chunk @loss.0$F pass = F
// CHECK-SAME: -> !f32_scalar_dpP
// CHECK: relabel %{{.*}} : !f32_scalar_dpV -> !f32_scalar_dpP
piper.chunk @loss.0$F pass = F (%x: !x) -> !s {
  %0 = launch @sum(%x) on @compute : (!x) -> !s
  return %0 : !s
}
// CHECK-LABEL: piper.chunk @a.0$B pass = B
// CHECK-SAME: (%{{.*}}: !f32_scalar_dpR{{.*}}, %{{.*}}: !f32_4_dpV{{.*}}) {
// CHECK: grad @w %{{.*}} : !f32_4_dpV
piper.chunk @a.0$B pass = B of @a.0$F (%t: !s, %x: !x) {
  %0 = launch @scale(%t, %x) on @compute : (!s, !x) -> !x
  grad @w %0 : !x
  return
}
// CHECK-LABEL: piper.step @train phase = outlined
// CHECK-SAME: (%x: !f32_4_dpV{{.*}}, %table: !f32_4_dpR
// CHECK: run @loss$P0(%x) : (!f32_4_dpV) -> !i64_scalar_dpP
// CHECK: run @a.0$F(%x, %table) : (!f32_4_dpV, !f32_4_dpR) -> (!f32_4_dpV, !f32_4_dpR)
// CHECK: tangent "loss" count %{{.*}} : !i64_scalar_dpP coeff 1.0{{.*}} -> !f32_scalar_dpR
// CHECK: output "loss" %{{.*}} scale %{{.*}} : !f32_scalar_dpP, !f32_scalar_dpR
piper.step @train phase = outlined mesh = @mesh inputs ["x", "table"] dims [0, -1] axes ["dp"] (%x: !x, %table: !x) {
  %n = run @loss$P0(%x) : (!x) -> !n
  %a, %b = run @a.0$F(%x, %table) : (!x, !x) -> (!x, !x)
  %l = run @loss.0$F(%a) : (!x) -> !s
  %t = tangent "loss" count %n : !n coeff 1.0 -> !s
  run @a.0$B(%t, %x) : (!s, !x) -> ()
  output "loss" %l scale %t : !s, !s
}

// -----

// A manual axis that is no data axis: all its ranks see the same examples.

!x = tensor<4xf32>

// CHECK: piper.step @train
// CHECK-SAME: (%x: !f32_4_dpV_epR
piper.mesh @mesh [dp = 2 manual, ep = 2 manual]
piper.step @train phase = outlined mesh = @mesh inputs ["x"] dims [0] axes ["dp"] (%x: !x) {}

// -----

// Without manual axes types have no layout.

!x = tensor<4xf32>

// CHECK: piper.step @train
// CHECK-SAME: (%x: !f32_4 loc
piper.mesh @mesh [pp = 2 unrolled]
piper.step @train phase = outlined mesh = @mesh inputs ["x"] dims [0] axes [] (%x: !x) {}
