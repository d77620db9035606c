// States share buckets, which chunks take and contribute to as flat operands.
// RUN: piper-opt %s -split-input-file --piper-form-buckets | FileCheck %s

// What the same chunks use is one bucket. A chunk takes it as its last operand
// and unpacks it; gradients are packed in the order of the members, whatever
// order they were made in; the step reads buckets and sums contributions. A
// contribution is the gradient of the forward chunk's operand.

!x = tensor<4xf32>
!w = tensor<4x4xf32>

// CHECK: piper.bucket @w$b [@w, @b] value : !f32_20 grad : !f32_20
piper.mesh @mesh [pp = 2 unrolled]
piper.stream @compute
piper.state @w parameter : !w
piper.state @b parameter : !x
piper.kernel @addmv(%b: !x, %w: !w, %x: !x) -> !x {
  %0 = torch "aten.addmv.default"(%b, %w, %x) facts <pure> : (!x, !w, !x) -> !x
  return %0 : !x
}
piper.kernel @grads(%d: !x, %x: !x) -> (!x, !w) {
  %0 = torch "aten.clone.default"(%d) facts <pure> : (!x) -> !x
  %1 = torch "aten.outer.default"(%d, %x) facts <pure> : (!x, !x) -> !w
  return %0, %1 : !x, !w
}
// CHECK-LABEL: piper.chunk @a.0$F
// CHECK-SAME: (%[[X:.*]]: !f32_4{{.*}}, %[[P:.*]]: !f32_20{{.*}}) -> !f32_4
// CHECK-NEXT: %[[M:.*]]:2 = unpack @w$b %[[P]] : !f32_20 -> !f32_4x4, !f32_4
// CHECK-NEXT: launch @addmv(%[[M]]#1, %[[M]]#0, %[[X]])
piper.chunk @a.0$F pass = F (%x: !x) -> !x {
  %b = read @b : !x
  %w = read @w : !w
  %0 = launch @addmv(%b, %w, %x) on @compute : (!x, !w, !x) -> !x
  return %0 : !x
}
// CHECK-LABEL: piper.chunk @a.0$B
// CHECK-SAME: dual [0] -> [1]
// CHECK-SAME: -> !f32_20
// CHECK: %[[G:.*]]:2 = launch @grads
// CHECK-NEXT: %[[C:.*]] = pack @w$b %[[G]]#1, %[[G]]#0 : !f32_4x4, !f32_4 -> !f32_20
// CHECK-NEXT: return %[[C]]
piper.chunk @a.0$B pass = B of @a.0$F dual [0] -> [] (%d: !x, %x: !x) {
  %db, %dw = launch @grads(%d, %x) on @compute : (!x, !x) -> (!x, !w)
  grad @b %db : !x
  grad @w %dw : !w
  return
}
// CHECK-LABEL: piper.step @train phase = bucketed
// CHECK: %[[R:.*]] = read @w$b slot value : !f32_20
// CHECK-NEXT: %[[Y:.*]] = run @a.0$F(%x, %[[R]]) : (!f32_4, !f32_20) -> !f32_4
// CHECK-NEXT: %[[C:.*]] = run @a.0$B(%[[Y]], %x) : (!f32_4, !f32_4) -> !f32_20
// CHECK-NEXT: sum bucket @w$b %[[C]] : !f32_20 -> !f32_20
piper.step @train phase = outlined mesh = @mesh inputs ["x"] dims [0] (%x: !x) {
  %y = run @a.0$F(%x) : (!x) -> !x
  run @a.0$B(%y, %x) : (!x, !x) -> ()
}

// -----

// A bucket is closed before it exceeds its size, here two of three members.

!x = tensor<4xf32>

// CHECK: piper.bucket @a$b [@a, @b] value : !f32_8 loc
// CHECK-NEXT: piper.bucket @c$b [@c] value : !f32_4 loc
piper.mesh @mesh [pp = 2 unrolled]
piper.state @a parameter : !x replication <[], zero = 0, bucket = 32>
piper.state @b parameter : !x replication <[], zero = 0, bucket = 32>
piper.state @c parameter : !x replication <[], zero = 0, bucket = 32>
piper.chunk @a.0$F pass = F (%x: !x) -> (!x, !x, !x) {
  %a = read @a : !x
  %b = read @b : !x
  %c = read @c : !x
  return %a, %b, %c : !x, !x, !x
}

// -----

// A tied weight has other users than its neighbours, and so its own bucket; a
// frozen parameter and a buffer have no gradient, and nobody shares a bucket
// with what a directive treats differently. What no chunk uses is in none.

!x = tensor<4xf32>

// CHECK: piper.bucket @e$b [@e] value : !f32_4 grad : !f32_4
// CHECK-NEXT: piper.bucket @w$b [@w] value : !f32_4 grad : !f32_4
// CHECK-NEXT: piper.bucket @f$b [@f] value : !f32_4 loc
// CHECK-NEXT: piper.bucket @t$b [@t] value : !f32_4 loc
// CHECK-NEXT: piper.bucket @v$b [@v] value : !f32_4 grad : !f32_4
// CHECK-NOT: @unused$b
piper.mesh @mesh [pp = 2 unrolled]
piper.state @e parameter : !x
piper.state @w parameter : !x
piper.state @f parameter frozen : !x
piper.state @t buffer : !x
piper.state @v parameter : !x optimization <"train:sgd">
piper.state @unused parameter : !x
piper.chunk @a.0$F pass = F (%x: !x) -> !x {
  %e = read @e : !x
  return %e : !x
}
piper.chunk @b.0$F pass = F (%x: !x) -> (!x, !x, !x, !x, !x) {
  %e = read @e : !x
  %w = read @w : !x
  %f = read @f : !x
  %t = read @t : !x
  %v = read @v : !x
  return %e, %w, %f, %t, %v : !x, !x, !x, !x, !x
}
piper.chunk @b.0$B pass = B of @b.0$F (%d: !x) -> !x {
  grad @e %d : !x
  grad @w %d : !x
  grad @v %d : !x
  return %d : !x
}
// CHECK-LABEL: piper.chunk @a.0$B
// CHECK: pack @e$b
piper.chunk @a.0$B pass = B of @a.0$F (%d: !x) {
  grad @e %d : !x
  return
}
// CHECK-LABEL: piper.step @train phase = bucketed
// CHECK: run @b.0$B(%x)
// CHECK: sum bucket @e$b %[[B:.*]]#
// CHECK: run @a.0$B
// CHECK: sum bucket @e$b
piper.step @train phase = outlined mesh = @mesh inputs ["x"] dims [0] (%x: !x) {
  %a = run @a.0$F(%x) : (!x) -> !x
  %b:5 = run @b.0$F(%a) : (!x) -> (!x, !x, !x, !x, !x)
  %d = run @b.0$B(%x) : (!x) -> !x
  run @a.0$B(%d) : (!x) -> ()
}

// -----

// The gradient slot has the dtype of the reduction: contributions are packed as
// they are, and widened when they are summed. Gradients of replicated states are
// partial.

#R = #piper.layout<dp = replicated>
#V = #piper.layout<dp = varying>
!x = tensor<4xbf16>
!r = tensor<4xbf16, #R>
!v = tensor<4xbf16, #V>

// CHECK: piper.bucket @w$b [@w] value : !bf16_4_dpR grad : !f32_4_dpP
// CHECK: pack @w$b %{{.*}} : !bf16_4_dpV -> !bf16_4_dpP
// CHECK: sum bucket @w$b %{{.*}} : !bf16_4_dpP -> !f32_4_dpP
piper.mesh @mesh [dp = 2 manual]
piper.state @w parameter : !x replication <["dp"], zero = 0, bucket = 100, dtype = f32>
piper.chunk @a.0$F pass = F (%x: !v) -> !v {
  %w = read @w : !r
  return %x : !v
}
piper.chunk @a.0$B pass = B of @a.0$F (%d: !v) {
  grad @w %d : !v
  return
}
piper.step @train phase = outlined mesh = @mesh inputs ["x"] dims [0] (%x: !v) {
  %a = run @a.0$F(%x) : (!v) -> !v
  run @a.0$B(%a) : (!v) -> ()
}
