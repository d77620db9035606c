// A backward chunk is cut in what other chunks wait for and in the gradients of
// states.
// RUN: piper-opt %s -split-input-file --piper-split-backward | FileCheck %s

// Both halves take what they need. The kernel's product with the mask is needed
// by both: the first half makes it and passes it on. The view is built in each.
// What is a dual in the whole is one in its half.

!x = tensor<2x2x4xf32>
!m = tensor<4x4xf32>
!P = tensor<16xf32>

// CHECK: piper.kernel @[[KI:[^(]*]](%{{.*}}: !f32_2x2x4{{.*}}, %{{.*}}: !f32_2x2x4{{.*}}, %{{.*}}: !f32_4x4{{.*}}) -> (!f32_2x2x4, !f32_2x2x4)
// CHECK-NEXT: %[[G:.*]] = torch "aten.mul.Tensor"
// CHECK-NEXT: %[[V:.*]] = torch "aten.view.default"(%[[G]]
// CHECK-NEXT: %[[D:.*]] = torch "aten.mm.default"(%[[V]]
// CHECK-NEXT: %[[DX:.*]] = torch "aten._unsafe_view.default"(%[[D]]
// CHECK-NEXT: %[[COPY:.*]] = torch "aten.clone.default"(%[[DX]]
// CHECK-NEXT: return %[[COPY]], %[[G]]
// CHECK: piper.kernel @[[KW:[^(]*]](%{{.*}}: !f32_4x4{{.*}}, %[[PASSED:.*]]: !f32_2x2x4{{.*}}) -> !f32_4x4
// CHECK-NEXT: %[[V:.*]] = torch "aten.view.default"(%[[PASSED]]
// CHECK-NEXT: %[[DW:.*]] = torch "aten.mm.default"(%{{.*}}, %[[V]])
// CHECK-NEXT: return %[[DW]]
// CHECK-NOT: @whole
piper.mesh @mesh [pp = 1 unrolled]
piper.stream @compute
piper.state @w parameter : !m
piper.bucket @w$b [@w] value : !P grad : !P
piper.kernel @whole(%d: !x, %k: !x, %w: !m, %r: !m) -> (!x, !m) {
  %0 = torch "aten.mul.Tensor"(%d, %k) facts <pure> : (!x, !x) -> !x
  %1 = torch "aten.view.default"(%0, [4, 4]) facts <view> : (!x) -> !m
  %2 = torch "aten.mm.default"(%1, %w) facts <pure> : (!m, !m) -> !m
  %3 = torch "aten._unsafe_view.default"(%2, [2, 2, 4]) facts <view> : (!m) -> !x
  %4 = torch "aten.clone.default"(%3) facts <pure> : (!x) -> !x
  %5 = torch "aten.mm.default"(%r, %1) facts <pure> : (!m, !m) -> !m
  return %4, %5 : !x, !m
}
piper.chunk @a.0$F pass = F stage = 0 (%x: !x, %p: !P) -> !x { return %x : !x }
// The whole launches the same kernels, one behind the other.
// CHECK: piper.chunk @a.0$B pass = B of @a.0$F dual [0] -> [0, 1] input <@a.0$I [0, 1, 3] -> [0]> weight <@a.0$W [2] -> [1]> stage = 0
// CHECK-NEXT: %[[W:.*]] = unpack @w$b
// CHECK-NEXT: %[[I:.*]]:2 = launch @[[KI]]({{.*}}, %[[W]])
// CHECK-NEXT: %[[DW:.*]] = launch @[[KW]]({{.*}}, %[[I]]#1)
// CHECK-NEXT: %[[C:.*]] = pack @w$b %[[DW]]
// CHECK-NEXT: return %[[I]]#0, %[[C]]
piper.chunk @a.0$B pass = B of @a.0$F dual [0] -> [0, 1] stage = 0 (%d: !x, %k: !x, %r: !m, %p: !P) -> (!x, !P) {
  %w = unpack @w$b %p : !P -> !m
  %dx, %dw = launch @whole(%d, %k, %w, %r) on @compute : (!x, !x, !m, !m) -> (!x, !m)
  %c = pack @w$b %dw : !m -> !P
  return %dx, %c : !x, !P
}
// CHECK: piper.chunk @a.0$I pass = I of @a.0$F dual [0] -> [0] stage = 0 (%{{.*}}: !f32_2x2x4{{.*}}, %{{.*}}: !f32_2x2x4{{.*}}, %{{.*}}: !f32_16{{.*}}) -> (!f32_2x2x4, !f32_2x2x4)
// CHECK-NEXT: unpack @w$b
// CHECK-NEXT: %[[I:.*]]:2 = launch @[[KI]]
// CHECK-NEXT: return %[[I]]#0, %[[I]]#1
// CHECK: piper.chunk @a.0$W pass = W of @a.0$F dual [] -> [1] stage = 0 (%[[R:.*]]: !f32_4x4{{.*}}, %[[G:.*]]: !f32_2x2x4{{.*}}) -> !f32_16
// CHECK-NEXT: %[[DW:.*]] = launch @[[KW]](%[[R]], %[[G]])
// CHECK-NEXT: %[[C:.*]] = pack @w$b %[[DW]]
// CHECK-NEXT: return %[[C]]
piper.schedule @order axis = "pp" stages = 1 microbatches = 2 ["0F0 0I0 0F1 0B1 0W0"]
piper.step @train phase = bucketed mesh = @mesh inputs [] dims [] microbatches = 2 order = @order () {}

// -----

// An op with a mask is called in each half, for other results.

!x = tensor<4xf32>
!P = tensor<4xf32>
piper.mesh @mesh [pp = 1 unrolled]
piper.stream @compute
piper.state @w parameter : !x
piper.bucket @w$b [@w] value : !P grad : !P
// CHECK: piper.kernel
// CHECK: torch "aten.native_layer_norm_backward.default"({{.*}}, [true, false, false])
// CHECK-SAME: -> !f32_4
// CHECK: piper.kernel
// CHECK: torch "aten.native_layer_norm_backward.default"({{.*}}, [false, true, false])
// CHECK-SAME: {positions = array<i64: 1>}
// CHECK-SAME: -> !f32_4
piper.kernel @norm(%d: !x, %x: !x) -> (!x, !x) {
  %0, %1 = torch "aten.native_layer_norm_backward.default"(%d, %x, [true, true, false]) facts <pure, mask = 2> : (!x, !x) -> (!x, !x)
  return %0, %1 : !x, !x
}
piper.chunk @a.0$F pass = F stage = 0 (%x: !x) -> !x { return %x : !x }
piper.chunk @a.0$B pass = B of @a.0$F stage = 0 (%d: !x, %x: !x) -> (!x, !P) {
  %dx, %dw = launch @norm(%d, %x) on @compute : (!x, !x) -> (!x, !x)
  %c = pack @w$b %dw : !x -> !P
  return %dx, %c : !x, !P
}
piper.schedule @order axis = "pp" stages = 1 microbatches = 1 ["0F0 0I0 0W0"]
piper.step @train phase = bucketed mesh = @mesh inputs [] dims [] microbatches = 1 order = @order () {}

// -----

// A chunk that only trains has no first half, one that only passes on has no
// second. A gradient of a state that is the gradient of the input, too, is
// copied: results alias nothing.

!x = tensor<4xf32>
!P = tensor<4xf32>
piper.mesh @mesh [pp = 1 unrolled]
piper.stream @compute
piper.state @w parameter : !x
piper.bucket @w$b [@w] value : !P grad : !P
piper.kernel @relu(%d: !x) -> !x {
  %0 = torch "aten.relu.default"(%d) facts <pure> : (!x) -> !x
  return %0 : !x
}
piper.kernel @both(%d: !x) -> (!x, !x) {
  %0 = torch "aten.relu.default"(%d) facts <pure> : (!x) -> !x
  %1 = torch "aten.clone.default"(%0) facts <pure> : (!x) -> !x
  return %0, %1 : !x, !x
}
piper.chunk @a.0$F pass = F stage = 0 (%x: !x) -> !x { return %x : !x }
// CHECK: piper.chunk @a.0$B pass = B of @a.0$F weight <@a.0$W [0] -> [0]> stage = 0
piper.chunk @a.0$B pass = B of @a.0$F stage = 0 (%d: !x) -> !P {
  %dw = launch @relu(%d) on @compute : (!x) -> !x
  %c = pack @w$b %dw : !x -> !P
  return %c : !P
}
// CHECK: piper.chunk @a.0$W
piper.chunk @a.1$F pass = F stage = 0 (%x: !x) -> !x { return %x : !x }
// CHECK: piper.chunk @a.1$B pass = B of @a.1$F input <@a.1$I [0] -> [0]> stage = 0
piper.chunk @a.1$B pass = B of @a.1$F stage = 0 (%d: !x) -> !x {
  %dx = launch @relu(%d) on @compute : (!x) -> !x
  return %dx : !x
}
// CHECK: piper.chunk @a.1$I
piper.chunk @a.2$F pass = F stage = 0 (%x: !x) -> !x { return %x : !x }
// CHECK: piper.chunk @a.2$B pass = B of @a.2$F input <@a.2$I [0] -> [0]> weight <@a.2$W [] -> [1]> stage = 0
piper.chunk @a.2$B pass = B of @a.2$F stage = 0 (%d: !x) -> (!x, !P) {
  %dx, %dw = launch @both(%d) on @compute : (!x) -> (!x, !x)
  %c = pack @w$b %dw : !x -> !P
  return %dx, %c : !x, !P
}
piper.schedule @order axis = "pp" stages = 1 microbatches = 1 ["0F0 0I0 0W0"]
piper.step @train phase = bucketed mesh = @mesh inputs [] dims [] microbatches = 1 order = @order () {}

// -----

// Without cells I and W nothing is cut.

!x = tensor<4xf32>
piper.mesh @mesh [pp = 1 unrolled]
piper.chunk @a.0$F pass = F stage = 0 (%x: !x) -> !x { return %x : !x }
// CHECK: piper.chunk @a.0$B pass = B of @a.0$F stage = 0
// CHECK-NOT: piper.chunk
// CHECK: piper.step
piper.chunk @a.0$B pass = B of @a.0$F stage = 0 (%d: !x) -> !x { return %d : !x }
piper.schedule @order axis = "pp" stages = 1 microbatches = 1 ["0F0 0B0"]
piper.step @train phase = bucketed mesh = @mesh inputs [] dims [] microbatches = 1 order = @order () {}

// -----

// A value of the forward pass that is computed again may be one of several: it
// does not depend on the cotangent, and is made once, for both halves. Of what is
// replicated alone a half makes replicated values; they get the kind of the whole.

!x = tensor<4xf32>
!R = tensor<4xf32, #piper.layout<dp = replicated>>
!V = tensor<4xf32, #piper.layout<dp = varying>>
!P = tensor<4xf32, #piper.layout<dp = partial>>
piper.mesh @mesh [pp = 1 unrolled, dp = 2 manual]
piper.stream @compute
piper.state @w parameter : !x
piper.bucket @w$b [@w] value : !R grad : !P
piper.kernel @whole(%d: !x, %x: !x) -> (!x, !x) {
  %0, %1 = torch "aten.frexp.Tensor"(%d) facts <pure> : (!x) -> (!x, !x)
  %2 = torch "aten.mul.Tensor"(%1, %x) facts <pure> : (!x, !x) -> !x
  return %0, %2 : !x, !x
}
// CHECK: piper.chunk @a.0$B pass = B of @a.0$F
// CHECK-NEXT: %[[I:.*]]:2 = launch @frexp{{.*}} : (!f32_4_dpR) -> (!f32_4_dpR, !f32_4_dpR)
// CHECK-NEXT: %[[W:.*]] = launch @mul{{.*}}(%{{.*}}, %[[I]]#1) {{.*}} : (!f32_4_dpV, !f32_4_dpR) -> !f32_4_dpV
// CHECK-NEXT: %[[DX:.*]] = relabel %[[I]]#0 : !f32_4_dpR -> !f32_4_dpV
// CHECK-NEXT: %[[C:.*]] = pack @w$b %[[W]]
// CHECK-NEXT: return %[[DX]], %[[C]]
// CHECK: piper.chunk @a.0$I
// CHECK: relabel
// CHECK: piper.chunk @a.0$W
piper.chunk @a.0$F pass = F stage = 0 (%x: !V) -> (!V, !V) { return %x, %x : !V, !V }
piper.chunk @a.0$B pass = B of @a.0$F stage = 0 (%d: !R, %x: !V) -> (!V, !P) {
  %dx, %dw = launch @whole(%d, %x) on @compute : (!R, !V) -> (!V, !V)
  %c = pack @w$b %dw : !V -> !P
  return %dx, %c : !V, !P
}
piper.schedule @order axis = "pp" stages = 1 microbatches = 1 ["0F0 0I0 0W0"]
piper.step @train phase = bucketed mesh = @mesh inputs ["x"] dims [0] microbatches = 1 order = @order (%x: !V) {
  %r = read @w$b slot value : !R
  %y:2 = run @a.0$F(%x) : (!V) -> (!V, !V)
  %d:2 = run @a.0$B(%r, %y#0) : (!R, !V) -> (!V, !P)
}
