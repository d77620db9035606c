// DualPipeV on two ranks, which hold stages 0 and 3, and 1 and 2 (the V): the table that
// `piper.order("DualPipeV")` writes, of four microbatches. Each stage is a layer whose ranks
// exchange rows, in either direction.
// RUN: piper-opt %s --piper-record --piper-materialize --piper-lower=single-queue | FileCheck %s

// The pairs of pp0: (0F3;3B1), (3F2;0B0) and (3F3;0B1). The rows of either microbatch are under
// way while the other computes. No program needs a queue for each communicator.
// CHECK-LABEL: piper.program @train$pp0
// CHECK: run @layer.3$B({{.*}} mb 1
// CHECK: all_to_all {{.*}} as "layer.3 collect" mb 1
// CHECK-NOT: mb 1
// CHECK: run @layer.0$F({{.*}} mb 3
// CHECK: all_to_all {{.*}} as "layer.0 dispatch" mb 3
// CHECK-NOT: mb 3
// CHECK: run @layer.3$B1({{.*}} mb 1 after
// CHECK: run @layer.0$F1({{.*}} mb 3 after
//
// CHECK: run @layer.0$B({{.*}} mb 0 after
// CHECK: all_to_all {{.*}} as "layer.0 collect" mb 0
// CHECK-NOT: mb 0
// CHECK: run @layer.3$F({{.*}} mb 2
// CHECK: all_to_all {{.*}} as "layer.3 dispatch" mb 2
// CHECK-NOT: mb 2
// CHECK: run @layer.0$B1({{.*}} mb 0 after
// CHECK: run @layer.3$F1({{.*}} mb 2 after
//
// CHECK: run @layer.0$B({{.*}} mb 1 after
// CHECK: all_to_all {{.*}} as "layer.0 collect" mb 1
// CHECK-NOT: mb 1
// CHECK: run @layer.3$F({{.*}} mb 3
// CHECK: all_to_all {{.*}} as "layer.3 dispatch" mb 3
// CHECK-NOT: mb 3
// CHECK: run @layer.0$B1({{.*}} mb 1 after
// CHECK: run @layer.3$F1({{.*}} mb 3 after

// The pairs of pp1: (2F2;1B0), (1F3;2B1) and (2F3;1B1).
// CHECK-LABEL: piper.program @train$pp1
// CHECK: run @layer.1$B({{.*}} mb 0
// CHECK: all_to_all {{.*}} as "layer.1 collect" mb 0
// CHECK-NOT: mb 0
// CHECK: run @layer.2$F({{.*}} mb 2
// CHECK: all_to_all {{.*}} as "layer.2 dispatch" mb 2
// CHECK-NOT: mb 2
// CHECK: run @layer.1$B1({{.*}} mb 0 after
// CHECK: run @layer.2$F1({{.*}} mb 2 after
//
// CHECK: run @layer.2$B({{.*}} mb 1 after
// CHECK: all_to_all {{.*}} as "layer.2 collect" mb 1
// CHECK-NOT: mb 1
// CHECK: run @layer.1$F({{.*}} mb 3
// CHECK: all_to_all {{.*}} as "layer.1 dispatch" mb 3
// CHECK-NOT: mb 3
// CHECK: run @layer.2$B1({{.*}} mb 1 after
// CHECK: run @layer.1$F1({{.*}} mb 3 after
//
// CHECK: run @layer.1$B({{.*}} mb 1
// CHECK: all_to_all {{.*}} as "layer.1 collect" mb 1
// CHECK-NOT: mb 1
// CHECK: run @layer.2$F({{.*}} mb 3
// CHECK: all_to_all {{.*}} as "layer.2 dispatch" mb 3
// CHECK-NOT: mb 3
// CHECK: run @layer.1$B1({{.*}} mb 1 after
// CHECK: run @layer.2$F1({{.*}} mb 3 after

!x = tensor<4x4xf32>
!w = tensor<4x4xf32>
!s = tensor<f32>

piper.mesh @mesh [pp = 2 unrolled, ep = 2 manual]
piper.stream @compute
piper.stream @ep
piper.schedule @order axis = "pp" stages = 4 microbatches = 4 [
  "0F0 0F1 0F2 3F0 3I0 3W0 3F1 (0F3;3B1)OVERLAP_F_B (3F2;0B0)OVERLAP_F_B 3B2 (3F3;0B1)OVERLAP_F_B 3B3 0I2 0W2 0I3 0W3",
  "1F0 2F0 1F1 2F1 1F2 2B0 (2F2;1B0)OVERLAP_F_B (1F3;2B1)OVERLAP_F_B (2F3;1B1)OVERLAP_F_B 2B2 1B2 2I3 1I3 2W3 1W3"]
piper.strategy @strategy mesh = @mesh {
  piper.do.place <all> stages = 4 axis = "pp" sizes [1, 1, 1, 2] coordinates [0, 1, 1, 0]
  piper.do.split microbatches = 4 dims = {x = 0}
  piper.do.replicate <all> axes = ["ep"] zero = 0 bucket = 25000000 reduce = "last"
  piper.do.update <all> optimizer = "sgd"
  piper.do.order @order
}
piper.state @layers.0.w parameter : !w
piper.state @layers.1.w parameter : !w
piper.state @layers.2.w parameter : !w
piper.state @layers.3.w parameter : !w

piper.kernel @project(%x: !x, %w: !w) -> !x {
  %y = torch "aten.mm.default"(%x, %w) facts <pure, flops = 128> : (!x, !w) -> !x
  return %y : !x
}
piper.kernel @relu(%y: !x) -> !x {
  %z = torch "aten.relu.default"(%y) facts <pure, flops = 16> : (!x) -> !x
  return %z : !x
}
piper.kernel @total(%z: !x) -> !s {
  %l = torch "aten.sum.default"(%z) facts <pure, flops = 16> : (!x) -> !s
  return %l : !s
}
piper.kernel @total_backward(%t: !s) -> !x {
  %e = torch "aten.expand.default"(%t, [4, 4]) facts <view, strided> : (!s) -> !x
  %d = torch "aten.clone.default"(%e) facts <pure> : (!x) -> !x
  return %d : !x
}
piper.kernel @relu_backward(%dz: !x, %z: !x) -> !x {
  %dy = torch "aten.threshold_backward.default"(%dz, %z, 0) facts <pure, flops = 16> : (!x, !x) -> !x
  return %dy : !x
}
piper.kernel @project_backward(%dy: !x, %x: !x, %w: !w) -> (!x, !w) {
  %v = torch "aten.t.default"(%w) facts <view, strided> : (!w) -> !w
  %dx = torch "aten.mm.default"(%dy, %v) facts <pure, flops = 128> : (!x, !w) -> !x
  %u = torch "aten.t.default"(%x) facts <view, strided> : (!x) -> !x
  %dw = torch "aten.mm.default"(%u, %dy) facts <pure, flops = 128> : (!x, !x) -> !w
  return %dx, %dw : !x, !w
}
piper.chunk @layer.0$F pass = F (%x: !x) -> !x {
  %w = read @layers.0.w : !w
  %y = launch @project(%x, %w) on @compute : (!x, !w) -> !x
  return %y : !x
}
piper.chunk @layer.0$F1 pass = F (%y: !x) -> !x {
  %z = launch @relu(%y) on @compute : (!x) -> !x
  return %z : !x
}
piper.chunk @layer.0$B pass = B of @layer.0$F1 dual [0] -> [0] (%dz: !x, %z: !x) -> !x {
  %dy = launch @relu_backward(%dz, %z) on @compute : (!x, !x) -> !x
  return %dy : !x
}
piper.chunk @layer.0$B1 pass = B of @layer.0$F dual [0] -> [0] (%dy: !x, %x: !x) -> !x {
  %w = read @layers.0.w : !w
  %dx, %dw = launch @project_backward(%dy, %x, %w) on @compute : (!x, !x, !w) -> (!x, !w)
  grad @layers.0.w %dw : !w
  return %dx : !x
}
piper.chunk @layer.1$F pass = F (%x: !x) -> !x {
  %w = read @layers.1.w : !w
  %y = launch @project(%x, %w) on @compute : (!x, !w) -> !x
  return %y : !x
}
piper.chunk @layer.1$F1 pass = F (%y: !x) -> !x {
  %z = launch @relu(%y) on @compute : (!x) -> !x
  return %z : !x
}
piper.chunk @layer.1$B pass = B of @layer.1$F1 dual [0] -> [0] (%dz: !x, %z: !x) -> !x {
  %dy = launch @relu_backward(%dz, %z) on @compute : (!x, !x) -> !x
  return %dy : !x
}
piper.chunk @layer.1$B1 pass = B of @layer.1$F dual [0] -> [0] (%dy: !x, %x: !x) -> !x {
  %w = read @layers.1.w : !w
  %dx, %dw = launch @project_backward(%dy, %x, %w) on @compute : (!x, !x, !w) -> (!x, !w)
  grad @layers.1.w %dw : !w
  return %dx : !x
}
piper.chunk @layer.2$F pass = F (%x: !x) -> !x {
  %w = read @layers.2.w : !w
  %y = launch @project(%x, %w) on @compute : (!x, !w) -> !x
  return %y : !x
}
piper.chunk @layer.2$F1 pass = F (%y: !x) -> !x {
  %z = launch @relu(%y) on @compute : (!x) -> !x
  return %z : !x
}
piper.chunk @layer.2$B pass = B of @layer.2$F1 dual [0] -> [0] (%dz: !x, %z: !x) -> !x {
  %dy = launch @relu_backward(%dz, %z) on @compute : (!x, !x) -> !x
  return %dy : !x
}
piper.chunk @layer.2$B1 pass = B of @layer.2$F dual [0] -> [0] (%dy: !x, %x: !x) -> !x {
  %w = read @layers.2.w : !w
  %dx, %dw = launch @project_backward(%dy, %x, %w) on @compute : (!x, !x, !w) -> (!x, !w)
  grad @layers.2.w %dw : !w
  return %dx : !x
}
piper.chunk @layer.3$F pass = F (%x: !x) -> !x {
  %w = read @layers.3.w : !w
  %y = launch @project(%x, %w) on @compute : (!x, !w) -> !x
  return %y : !x
}
piper.chunk @layer.3$F1 pass = F (%y: !x) -> !x {
  %z = launch @relu(%y) on @compute : (!x) -> !x
  return %z : !x
}
piper.chunk @layer.3$B pass = B of @layer.3$F1 dual [0] -> [0] (%dz: !x, %z: !x) -> !x {
  %dy = launch @relu_backward(%dz, %z) on @compute : (!x, !x) -> !x
  return %dy : !x
}
piper.chunk @layer.3$B1 pass = B of @layer.3$F dual [0] -> [0] (%dy: !x, %x: !x) -> !x {
  %w = read @layers.3.w : !w
  %dx, %dw = launch @project_backward(%dy, %x, %w) on @compute : (!x, !x, !w) -> (!x, !w)
  grad @layers.3.w %dw : !w
  return %dx : !x
}
piper.chunk @head.0$F pass = F (%z: !x) -> !s {
  %l = launch @total(%z) on @compute : (!x) -> !s
  return %l : !s
}
piper.chunk @head.0$B pass = B of @head.0$F dual [0] -> [0] (%t: !s) -> !x {
  %dz = launch @total_backward(%t) on @compute : (!s) -> !x
  return %dz : !x
}
piper.step @train phase = outlined mesh = @mesh inputs ["x"] dims [0] (%x: !x) {
  %y0 = run @layer.0$F(%x) : (!x) -> !x
  %m0 = all_to_all %y0 dim 0 over ["ep"] as "layer.0 dispatch" on @ep : !x -> !x
  %z0 = run @layer.0$F1(%m0) : (!x) -> !x
  %y1 = run @layer.1$F(%z0) : (!x) -> !x
  %m1 = all_to_all %y1 dim 0 over ["ep"] as "layer.1 dispatch" on @ep : !x -> !x
  %z1 = run @layer.1$F1(%m1) : (!x) -> !x
  %y2 = run @layer.2$F(%z1) : (!x) -> !x
  %m2 = all_to_all %y2 dim 0 over ["ep"] as "layer.2 dispatch" on @ep : !x -> !x
  %z2 = run @layer.2$F1(%m2) : (!x) -> !x
  %y3 = run @layer.3$F(%z2) : (!x) -> !x
  %m3 = all_to_all %y3 dim 0 over ["ep"] as "layer.3 dispatch" on @ep : !x -> !x
  %z3 = run @layer.3$F1(%m3) : (!x) -> !x
  %l = run @head.0$F(%z3) : (!x) -> !s
  %t = tangent "loss" coeff 1.0 examples 4 -> !s
  output "loss" %l scale %t : !s, !s
  %d3 = run @head.0$B(%t) : (!s) -> !x
  %dm3 = run @layer.3$B(%d3, %z3) : (!x, !x) -> !x
  %dy3 = all_to_all %dm3 dim 0 over ["ep"] as "layer.3 collect" on @ep : !x -> !x
  %d2 = run @layer.3$B1(%dy3, %z2) : (!x, !x) -> !x
  %dm2 = run @layer.2$B(%d2, %z2) : (!x, !x) -> !x
  %dy2 = all_to_all %dm2 dim 0 over ["ep"] as "layer.2 collect" on @ep : !x -> !x
  %d1 = run @layer.2$B1(%dy2, %z1) : (!x, !x) -> !x
  %dm1 = run @layer.1$B(%d1, %z1) : (!x, !x) -> !x
  %dy1 = all_to_all %dm1 dim 0 over ["ep"] as "layer.1 collect" on @ep : !x -> !x
  %d0 = run @layer.1$B1(%dy1, %z0) : (!x, !x) -> !x
  %dm0 = run @layer.0$B(%d0, %z0) : (!x, !x) -> !x
  %dy0 = all_to_all %dm0 dim 0 over ["ep"] as "layer.0 collect" on @ep : !x -> !x
  %dx = run @layer.0$B1(%dy0, %x) : (!x, !x) -> !x
}
