// What piper-verify accepts; what it refuses is in verify-*-invalid.mlir.
// RUN: piper-opt %s -split-input-file --piper-verify | FileCheck %s

// Waiting is transitive: the record stands for all that compute has waited for,
// so that the second send may pass on what was received, and the free needs no
// event of the first: compute knows it from the record that came back.

!x = tensor<4xf32>

// CHECK: piper.program @train$pp0
piper.mesh @mesh [pp = 2 unrolled]
piper.stream @pp
piper.comm @send$0.1 axes [] coordinates [0, 1] for @pp
piper.comm @send$1.0 axes [] coordinates [1, 0] for @pp
piper.program @train$pp0 of @train$cluster at 0 {
  %x = input "x" mb 0 : !x
  %e = record
  %s = send %x to 1 mb 0 on @send$0.1 after %e : !x
  %t = send %x to 1 mb 1 on @send$0.1 after %e : !x
  %y, %r = recv from 1 mb 0 on @send$1.0 after %e : !x
  // The stream is in order: who waits for the second send waits for the first.
  output "y" %y after %t, %r : !x
  free %x, %y : !x, !x
}
piper.program @train$pp1 of @train$cluster at 1 {
  %e = record
  %y, %r = recv from 0 mb 0 on @send$0.1 after %e : !x
  %z, %t = recv from 0 mb 1 on @send$0.1 after %e : !x
  output "y" %y after %r : !x
  %f = record
  %s = send %y to 0 mb 0 on @send$1.0 after %f : !x
}

// -----

// Each communicator is a queue of its own: what both coordinates issue in
// another order, but without waiting in between, finishes.

!x = tensor<4xf32>

// CHECK: piper.program @train$pp0
piper.mesh @mesh [pp = 2 unrolled]
piper.stream @pp
piper.comm @a axes [] coordinates [0, 1] for @pp
piper.comm @b axes [] coordinates [0, 1] for @pp
piper.program @train$pp0 of @train$cluster at 0 {
  %x = input "x" mb 0 : !x
  %e = record
  %a, %ae = all_reduce %x over [] across "pp" on @a after %e : !x -> !x, !piper.event
  %b, %be = all_reduce %x over [] across "pp" on @b after %e : !x -> !x, !piper.event
}
piper.program @train$pp1 of @train$cluster at 1 {
  %x = input "x" mb 0 : !x
  %e = record
  %b, %be = all_reduce %x over [] across "pp" on @b after %e : !x -> !x, !piper.event
  %a, %ae = all_reduce %x over [] across "pp" on @a after %e : !x -> !x, !piper.event
}

// -----

// What the host waited for, every later instruction may use.

!n = tensor<2xi64>
!v = tensor<2xi64, #piper.layout<ep = varying>>

// CHECK: piper.program @train$0
piper.mesh @mesh [ep = 2 manual]
piper.stream @ep
piper.comm @ep$0 axes ["ep"] coordinates [0] for @ep
piper.program @train$0 of @train$cluster at 0 {
  %n = input "n" mb 0 : !v
  %e = record
  %r, %re = all_to_all %n dim 0 over ["ep"] on @ep$0 after %e : !v -> !v, !piper.event
  %s, %t = host_wait %n, %r : !v, !v -> !piper.sizes, !piper.sizes
  %q, %qe = all_to_all %n dim 0 sizes %s, %t over ["ep"] on @ep$0 : !v -> !v, !piper.event
  output "r" %r : !v
  free %n, %r, %s after %qe : !v, !v, !piper.sizes
}

// -----

// Programs of different clusters do not meet: each has all its coordinates.

!x = tensor<4xf32>

// CHECK: piper.program @eval$0
piper.mesh @mesh [dp = 2 manual]
piper.program @train$0 of @train$cluster at 0 {
  %x = input "x" mb 0 : !x
}
piper.program @eval$0 of @eval$cluster at 0 {
  %x = input "x" mb 0 : !x
}

// -----

// Programs are projections of their cluster: frees, records and the order between
// compute and messages are their own.

!x = tensor<4xf32>

// CHECK: piper.program @train$pp1
piper.mesh @mesh [pp = 2 unrolled]
piper.stream @pp
piper.comm @send$0.1 axes [] coordinates [0, 1] for @pp
piper.chunk @a.0$F pass = F stage = 0 (%x: !x) -> !x { return %x : !x }
piper.chunk @a.1$F pass = F stage = 1 (%x: !x) -> !x { return %x : !x }
piper.step @train phase = bucketed mesh = @mesh inputs ["x"] dims [0] microbatches = 2 homes [[0, 1]] (%x: !x) {
  %0 = run @a.0$F(%x) : (!x) -> !x
  %1 = run @a.1$F(%0) : (!x) -> !x
  output "z" %1 : !x
}
piper.cluster @train$cluster of @train phase = lowered mesh = @mesh microbatches = 2 {
  %x0 = input "x" mb 0 at 0 : !x
  %y0 = run @a.0$F(%x0) mb 0 at 0 : (!x) -> !x
  %r0 = transfer %y0 from 0 to 1 mb 0 as "a.0$F#0" on @pp : !x
  %x1 = input "x" mb 1 at 0 : !x
  %y1 = run @a.0$F(%x1) mb 1 at 0 : (!x) -> !x
  %r1 = transfer %y1 from 0 to 1 mb 1 as "a.0$F#0" on @pp : !x
  %z0 = run @a.1$F(%r0) mb 0 at 1 : (!x) -> !x
  %z1 = run @a.1$F(%r1) mb 1 at 1 : (!x) -> !x
  %z = sum %z0, %z1 at 1 : !x -> !x
  output "z" %z at 1 : !x
}
piper.program @train$pp0 of @train$cluster at 0 {
  %x0 = input "x" mb 0 : !x
  %y0 = run @a.0$F(%x0) mb 0 : (!x) -> !x
  %e0 = record
  %s0 = send %y0 to 1 mb 0 as "a.0$F#0" on @send$0.1 after %e0 : !x
  %x1 = input "x" mb 1 : !x
  %y1 = run @a.0$F(%x1) mb 1 : (!x) -> !x
  %e1 = record
  %s1 = send %y1 to 1 mb 1 as "a.0$F#0" on @send$0.1 after %e1 : !x
  free %x0, %y0, %x1, %y1 after %s1 : !x, !x, !x, !x
}
piper.program @train$pp1 of @train$cluster at 1 {
  %e = record
  %r0, %f0 = recv from 0 mb 0 as "a.0$F#0" on @send$0.1 after %e : !x
  %r1, %f1 = recv from 0 mb 1 as "a.0$F#0" on @send$0.1 after %e : !x
  %z0 = run @a.1$F(%r0) mb 0 after %f0 : (!x) -> !x
  %z1 = run @a.1$F(%r1) mb 1 after %f1 : (!x) -> !x
  %z = sum %z0, %z1 : !x -> !x
  output "z" %z : !x
  free %r0, %r1, %z0, %z1, %z : !x, !x, !x, !x, !x
}

// -----

// A slot that is derived from the value follows its update: here whole, in
// another dtype, of a value of which a rank has half (ZeRO-1). What was read from
// it before may be freed behind the update, and what is read behind the write is
// new. Where nothing is updated, the slot may be written from the value.

!v = tensor<2xf32, #piper.layout<dp = shard(0)>>
!f = tensor<2xbf16, #piper.layout<dp = shard(0)>>
!c = tensor<4xbf16, #piper.layout<dp = replicated>>

// CHECK: piper.program @train$0
// CHECK: write @w$b slot compute
piper.mesh @mesh [dp = 2 manual]
piper.stream @dp
piper.comm @gather.dp$0 axes ["dp"] coordinates [0] for @dp
piper.state @w parameter : tensor<4xbf16> holders [0]
piper.bucket @w$b [@w] value : !v compute : !c grad : !v
piper.chunk @a.0$F pass = F stage = 0 (%w: !c) -> !c { return %w : !c }
piper.chunk @b.0$F pass = F stage = 0 (%w: !f) -> !f { return %w : !f }
piper.program @train$0 of @train$cluster at 0 {
  %w = read @w$b slot compute : !c
  %s = slice %w dim 0 over "dp" : !c -> !f
  %h = run @b.0$F(%s) mb 0 : (!f) -> !f
  %g = input "g" mb 0 : !v
  %G = accumulate @w$b %g : !v -> !v
  %u = update @w$b %G optimizer "train:sgd" : !v -> !v
  %n = convert %u : !v -> !f
  free %s : !f
  %e = record
  %m, %me = all_gather %n dim 0 over ["dp"] on @gather.dp$0 after %e : !f -> !c, !piper.event
  output "h" %h after %me : !f
  write @w$b slot compute %m : !c
  %x = read @w$b slot compute : !c
  %y = run @a.0$F(%x) mb 0 : (!c) -> !c
}
piper.program @eval$0 of @eval$cluster at 0 {
  %v = read @w$b slot value : !v
  %n = convert %v : !v -> !f
  %e = record
  %m, %me = all_gather %n dim 0 over ["dp"] on @gather.dp$0 after %e : !f -> !c, !piper.event
  output "n" %n after %me : !f
  write @w$b slot compute %m : !c
  %x = read @w$b slot compute : !c
  %y = run @a.0$F(%x) mb 0 : (!c) -> !c
}

// -----

// So does each holder's slot in a cluster.

!x = tensor<4xf32>
!c = tensor<4xbf16>

// CHECK: piper.cluster @train$cluster
// CHECK: write @w$b slot compute %{{.*}} at 0
// CHECK: write @w$b slot compute %{{.*}} at 1
piper.mesh @mesh [pp = 2 unrolled]
piper.stream @pp
piper.state @w parameter : !c holders [0, 1] optimization <"train:sgd">
piper.bucket @w$b [@w] value : !x compute : !c grad : !x
piper.chunk @a.0$F pass = F stage = 0 (%x: !c, %w: !c) -> !c { return %x : !c }
piper.chunk @a.0$B pass = B of @a.0$F stage = 0 (%x: !c) -> !c {
  %g = pack @w$b %x : !c -> !c
  return %g : !c
}
piper.step @train phase = bucketed mesh = @mesh inputs ["x"] dims [0] microbatches = 2 homes [[0], [1]] (%x: !c) {
  %w = read @w$b slot compute : !c
  %0 = run @a.0$F(%x, %w) : (!c, !c) -> !c
  %1 = run @a.0$B(%0) : (!c) -> !c
}
piper.cluster @train$cluster of @train phase = ordered mesh = @mesh microbatches = 2 {
  %w0 = read @w$b slot compute at 0 : !c
  %w1 = read @w$b slot compute at 1 : !c
  %i = input "x" mb 0 at 0 : !c
  %f = run @a.0$F(%i, %w0) mb 0 at 0 : (!c, !c) -> !c
  %g = run @a.0$B(%f) mb 0 at 0 : (!c) -> !c
  %G = accumulate @w$b %g at 0 : !c -> !x
  %j = input "x" mb 1 at 1 : !c
  %e = run @a.0$F(%j, %w1) mb 1 at 1 : (!c, !c) -> !c
  %h = run @a.0$B(%e) mb 1 at 1 : (!c) -> !c
  %H = accumulate @w$b %h at 1 : !c -> !x
  %R, %S = all_reduce %G, %H at [0, 1] over [] across "pp" on @pp : !x, !x -> !x, !x
  %u = update @w$b %R at 0 optimizer "train:sgd" : !x -> !x
  %v = update @w$b %S at 1 optimizer "train:sgd" : !x -> !x
  %m = convert %u at 0 : !x -> !c
  %n = convert %v at 1 : !x -> !c
  write @w$b slot compute %m at 0 : !c
  write @w$b slot compute %n at 1 : !c
}
