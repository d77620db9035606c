// Partial sums are finished, and states updated.
// RUN: piper-opt %s -split-input-file --piper-insert-reductions | FileCheck %s

// Counts are reduced before tangents divide by them, gradients before updates,
// losses before they are reported. What a bucket's members are optimized with
// stands on the update.

#R = #piper.layout<dp = replicated>
#P = #piper.layout<dp = partial>
!r = tensor<4xf32, #R>
!p = tensor<4xf32, #P>
!sp = tensor<f32, #P>
!sr = tensor<f32, #R>
!np = tensor<i64, #P>

// CHECK: piper.stream @dp
piper.mesh @mesh [pp = 2 unrolled, dp = 2 manual]
piper.state @w parameter : tensor<4xf32> holders [0] optimization <"train:sgd">
piper.state @v parameter : tensor<4xf32> holders [0]
piper.bucket @w$b [@w] value : !r grad : !p
piper.bucket @v$b [@v] value : !r grad : !p
piper.chunk @n$P0 pass = P () -> !np {
  %n = axis_index "dp" : tensor<i64, #piper.layout<dp = varying>>
  %p = relabel %n : tensor<i64, #piper.layout<dp = varying>> -> !np
  return %p : !np
}
piper.chunk @l.0$F pass = F stage = 0 (%s: !sp) -> !sp { return %s : !sp }
piper.chunk @a.0$B pass = B of @l.0$F stage = 0 (%p: !p) -> !p { return %p : !p }
// CHECK: piper.cluster @train$cluster of @train phase = reduced
// CHECK: %[[N:.*]] = sum %{{.*}} at 0
// CHECK-NEXT: %[[C:.*]] = all_reduce %[[N]] at [0] over ["dp"] on @dp : !i64_scalar_dpP -> !i64_scalar_dpR
// CHECK-NEXT: %[[T:.*]] = tangent "l" count %[[C]] : !i64_scalar_dpR
// CHECK: %[[W:.*]] = sum bucket @w$b
// CHECK-NEXT: %[[WR:.*]] = all_reduce %[[W]] at [0] over ["dp"] on @dp : !f32_4_dpP -> !f32_4_dpR
// CHECK-NEXT: %[[V:.*]] = sum bucket @v$b
// CHECK-NEXT: all_reduce %[[V]] at [0]
// CHECK: %[[S:.*]] = sum %{{.*}} at 0
// CHECK-NEXT: %[[SR:.*]] = all_reduce %[[S]] at [0] over ["dp"] on @dp : !f32_scalar_dpP -> !f32_scalar_dpR
// CHECK-NEXT: output "l" %[[SR]] scale %[[T]] at 0
// CHECK-NEXT: update @w$b %[[WR]] at 0 optimizer "train:sgd" : !f32_4_dpR -> !f32_4_dpR
// CHECK-NOT: update
piper.cluster @train$cluster of @train phase = connected mesh = @mesh microbatches = 1 {
  %c = run @n$P0() mb 0 at 0 : () -> !np
  %n = sum %c at 0 : !np -> !np
  %t = tangent "l" count %n : !np coeff 1.0 at 0 -> !sr
  %x = input "x" mb 0 at 0 : !p
  %s = input "s" mb 0 at 0 : !sp
  %g = run @a.0$B(%x) mb 0 at 0 : (!p) -> !p
  %h = run @a.0$B(%x) mb 0 at 0 : (!p) -> !p
  %G = sum bucket @w$b %g at 0 : !p -> !p
  %H = sum bucket @v$b %h at 0 : !p -> !p
  %l = run @l.0$F(%s) mb 0 at 0 : (!sp) -> !sp
  %L = sum %l at 0 : !sp -> !sp
  output "l" %L scale %t at 0 : !sp, !sr
}

// -----

// A state that several coordinates hold is reduced across them in one call, and
// updated at each with the same sum. The norm counts it at its first holder
// only; it is one sum over all coordinates, even where nothing is counted.

#R = #piper.layout<dp = replicated>
#P = #piper.layout<dp = partial>
!r = tensor<4xf32, #R>
!p = tensor<4xf32, #P>

// CHECK: piper.stream @pp
// CHECK: piper.stream @dp
piper.mesh @mesh [pp = 2 unrolled, dp = 2 manual]
piper.state @e parameter : tensor<4xf32> holders [0, 1] optimization <"train:sgd", clip = 1.0>
piper.bucket @e$b [@e] value : !r grad : !p
piper.chunk @a.0$F pass = F stage = 0 (%p: !p) -> !p { return %p : !p }
piper.chunk @a.0$B pass = B of @a.0$F stage = 0 (%p: !p) -> !p { return %p : !p }
// CHECK: %[[E0:.*]] = sum bucket @e$b %{{.*}} at 0
// CHECK-NEXT: %[[E1:.*]] = sum bucket @e$b %{{.*}} at 1
// CHECK-NEXT: %[[E:.*]]:2 = all_reduce %[[E0]], %[[E1]] at [0, 1] over ["dp"] across "pp" on @dp : !f32_4_dpP, !f32_4_dpP -> !f32_4_dpR, !f32_4_dpR
// CHECK-NEXT: %[[Q0:.*]] = sumsq %[[E]]#0 at 0 : (!f32_4_dpR) -> !f32_scalar_dpR
// CHECK-NEXT: %[[Q1:.*]] = sumsq{{ +}}at 1 : () -> !f32_scalar_dpR
// CHECK-NEXT: %[[Q:.*]]:2 = all_reduce %[[Q0]], %[[Q1]] at [0, 1] over [] across "pp" on @pp
// CHECK-NEXT: output "grad_norm" %[[Q]]#0 at 0
// CHECK-NEXT: update @e$b %[[E]]#0 norm %[[Q]]#0 : {{.*}} at 0 optimizer "train:sgd" clip 1.0
// CHECK-NEXT: update @e$b %[[E]]#1 norm %[[Q]]#1 : {{.*}} at 1 optimizer "train:sgd" clip 1.0
piper.cluster @train$cluster of @train phase = connected mesh = @mesh microbatches = 2 {
  %x = input "x" mb 0 at 0 : !p
  %y = input "x" mb 1 at 1 : !p
  %g = run @a.0$B(%x) mb 0 at 0 : (!p) -> !p
  %h = run @a.0$B(%y) mb 1 at 1 : (!p) -> !p
  %G = sum bucket @e$b %g at 0 : !p -> !p
  %H = sum bucket @e$b %h at 1 : !p -> !p
}

// -----

// A step may be skipped: by the norm, which is the same everywhere, clipped or
// not.

#R = #piper.layout<dp = replicated>
#P = #piper.layout<dp = partial>
!r = tensor<4xf32, #R>
!p = tensor<4xf32, #P>

piper.mesh @mesh [pp = 2 unrolled, dp = 2 manual]
piper.state @e parameter : tensor<4xf32> holders [0, 1] optimization <"train:sgd", skip_nonfinite>
piper.bucket @e$b [@e] value : !r grad : !p
piper.chunk @a.0$F pass = F stage = 0 (%p: !p) -> !p { return %p : !p }
piper.chunk @a.0$B pass = B of @a.0$F stage = 0 (%p: !p) -> !p { return %p : !p }
// CHECK: %[[E:.*]]:2 = all_reduce %{{.*}} at [0, 1] over ["dp"] across "pp" on @dp
// CHECK: %[[Q:.*]]:2 = all_reduce %{{.*}} at [0, 1] over [] across "pp" on @pp
// CHECK-NEXT: output "grad_norm" %[[Q]]#0 at 0
// CHECK-NEXT: %[[K0:.*]] = nonfinite %[[Q]]#0 at 0 : !f32_scalar_dpR -> !i1_scalar_dpR
// CHECK-NEXT: %[[K1:.*]] = nonfinite %[[Q]]#1 at 1 : !f32_scalar_dpR -> !i1_scalar_dpR
// CHECK-NEXT: update @e$b %[[E]]#0 skip %[[K0]] : !i1_scalar_dpR at 0 optimizer "train:sgd" :
// CHECK-NEXT: update @e$b %[[E]]#1 skip %[[K1]] : !i1_scalar_dpR at 1 optimizer "train:sgd" :
piper.cluster @train$cluster of @train phase = connected mesh = @mesh microbatches = 2 {
  %x = input "x" mb 0 at 0 : !p
  %y = input "x" mb 1 at 1 : !p
  %g = run @a.0$B(%x) mb 0 at 0 : (!p) -> !p
  %h = run @a.0$B(%y) mb 1 at 1 : (!p) -> !p
  %G = sum bucket @e$b %g at 0 : !p -> !p
  %H = sum bucket @e$b %h at 1 : !p -> !p
}

// -----

// Without manual axes and on one coordinate sums are whole; the norm needs no
// reduction either.

!x = tensor<4xf64>

// CHECK: piper.cluster @train$cluster of @train phase = reduced
// CHECK-NOT: all_reduce
// CHECK: %[[G:.*]] = sum bucket @w$b
// CHECK-NEXT: %[[Q:.*]] = sumsq %[[G]] at 0 : (!f64_4) -> !f64_scalar
// CHECK-NEXT: output "grad_norm" %[[Q]] at 0
// CHECK-NEXT: update @w$b %[[G]] norm %[[Q]]
// CHECK-NOT: all_reduce
piper.mesh @mesh [pp = 1 unrolled]
piper.state @w parameter : !x holders [0] optimization <"train:sgd", clip = 1.0>
piper.bucket @w$b [@w] value : !x grad : !x
piper.chunk @a.0$F pass = F stage = 0 (%x: !x) -> !x { return %x : !x }
piper.chunk @a.0$B pass = B of @a.0$F stage = 0 (%x: !x) -> !x { return %x : !x }
piper.cluster @train$cluster of @train phase = connected mesh = @mesh microbatches = 1 {
  %x = input "x" mb 0 at 0 : !x
  %g = run @a.0$B(%x) mb 0 at 0 : (!x) -> !x
  %G = sum bucket @w$b %g at 0 : !x -> !x
}

// -----

// A loss at two coordinates is one sum of both, reported by each.

!s = tensor<f32>

piper.mesh @mesh [pp = 2 unrolled]
piper.chunk @l.0$F pass = F stage = 0 (%s: !s) -> !s { return %s : !s }
// CHECK: %[[L:.*]]:2 = all_reduce %{{.*}}, %{{.*}} at [0, 1] over [] across "pp" on @pp
// CHECK: output "l" %[[L]]#0 at 0
// CHECK: output "l" %[[L]]#1 at 1
piper.cluster @eval$cluster of @eval phase = connected mesh = @mesh microbatches = 2 {
  %x = input "s" mb 0 at 0 : !s
  %y = input "s" mb 1 at 1 : !s
  %l = run @l.0$F(%x) mb 0 at 0 : (!s) -> !s
  %m = run @l.0$F(%y) mb 1 at 1 : (!s) -> !s
  %L = sum %l at 0 : !s -> !s
  %M = sum %m at 1 : !s -> !s
  output "l" %L at 0 : !s
  output "l" %M at 1 : !s
}
