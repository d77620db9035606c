// Slots that are derived from a value and do not follow its updates.
// RUN: piper-opt %s -split-input-file -verify-diagnostics --piper-verify

//===----------------------------------------------------------------------===//
// Programs
//===----------------------------------------------------------------------===//

// Behind an update the slot is stale: it is written before the end.

!v = tensor<4xf32>
!c = tensor<4xbf16>
piper.mesh @mesh [pp = 1 unrolled]
piper.state @w parameter : !c holders [0]
piper.bucket @w$b [@w] value : !v compute : !c grad : !v
piper.program @train$pp0 of @train$cluster at 0 {
  %i = input "g" mb 0 : !v
  %g = accumulate @w$b %i : !v -> !v
  // expected-error @+1 {{expected slot compute of @w$b to be written behind it, got no write: the slot would be stale}}
  %u = update @w$b %g optimizer "train:sgd" : !v -> !v
}

// -----

// A write before the update does not count; it is of the value of that time.

!v = tensor<4xf32>
!c = tensor<4xbf16>
piper.mesh @mesh [pp = 1 unrolled]
piper.state @w parameter : !c holders [0]
piper.bucket @w$b [@w] value : !v compute : !c grad : !v
piper.program @train$pp0 of @train$cluster at 0 {
  %v = read @w$b slot value : !v
  %c = convert %v : !v -> !c
  write @w$b slot compute %c : !c
  %i = input "g" mb 0 : !v
  %g = accumulate @w$b %i : !v -> !v
  // expected-error @+1 {{expected slot compute of @w$b to be written behind it}}
  %u = update @w$b %g optimizer "train:sgd" : !v -> !v
}

// -----

// What is written behind an update is the new value, not what was converted
// before it.

!v = tensor<4xf32>
!c = tensor<4xbf16>
piper.mesh @mesh [pp = 1 unrolled]
piper.state @w parameter : !c holders [0]
piper.bucket @w$b [@w] value : !v compute : !c grad : !v
piper.program @train$pp0 of @train$cluster at 0 {
  %v = read @w$b slot value : !v
  %c = convert %v : !v -> !c
  %i = input "g" mb 0 : !v
  %g = accumulate @w$b %i : !v -> !v
  // expected-note @+1 {{the value is updated here}}
  %u = update @w$b %g optimizer "train:sgd" : !v -> !v
  // expected-error @+1 {{expected what the last update of @w$b gives, perhaps converted, gathered or sliced, got another value}}
  write @w$b slot compute %c : !c
}

// -----

// Nor is it the new value of another bucket, of the same type.

!v = tensor<4xf32>
!c = tensor<4xbf16>
piper.mesh @mesh [pp = 1 unrolled]
piper.state @w parameter : !c holders [0]
piper.state @x parameter : !c holders [0]
piper.bucket @w$b [@w] value : !v compute : !c grad : !v
piper.bucket @x$b [@x] value : !v compute : !c grad : !v
piper.program @train$pp0 of @train$cluster at 0 {
  %i = input "g" mb 0 : !v
  %g = accumulate @w$b %i : !v -> !v
  // expected-note @+1 {{the value is updated here}}
  %u = update @w$b %g optimizer "train:sgd" : !v -> !v
  %h = accumulate @x$b %i : !v -> !v
  %t = update @x$b %h optimizer "train:sgd" : !v -> !v
  %c = convert %t : !v -> !c
  // expected-error @+1 {{expected what the last update of @w$b gives, perhaps converted, gathered or sliced, got another value}}
  write @w$b slot compute %c : !c
}

// -----

// Where nothing is updated, what is written is what slot value holds.

!v = tensor<4xf32>
!c = tensor<4xbf16>
piper.mesh @mesh [pp = 1 unrolled]
piper.state @w parameter : !c holders [0]
piper.bucket @w$b [@w] value : !v compute : !c
piper.program @eval$pp0 of @eval$cluster at 0 {
  %i = input "g" mb 0 : !c
  // expected-error @+1 {{expected what slot value of @w$b gives, perhaps converted, gathered or sliced, got another value}}
  write @w$b slot compute %i : !c
}

// -----

// What was gathered from the slot before the update is old, although nobody
// overwrote it; to free it is no use.

!v = tensor<2xf32, #piper.layout<dp = shard(0)>>
!c = tensor<2xbf16, #piper.layout<dp = shard(0)>>
!f = tensor<4xbf16, #piper.layout<dp = replicated>>
piper.mesh @mesh [dp = 2 manual]
piper.stream @dp
piper.comm @gather.dp$0 axes ["dp"] coordinates [0] for @dp
piper.state @w parameter : tensor<4xbf16> holders [0]
piper.bucket @w$b [@w] value : !v compute : !c grad : !v
piper.chunk @a.0$F pass = F stage = 0 (%w: !f) -> !f { return %w : !f }
piper.program @train$0 of @train$cluster at 0 {
  // expected-note @+1 {{it is read here}}
  %c = read @w$b slot compute : !c
  %e = record
  %f, %fe = all_gather %c dim 0 over ["dp"] on @gather.dp$0 after %e : !c -> !f, !piper.event
  %y = run @a.0$F(%f) mb 0 after %fe : (!f) -> !f
  %i = input "g" mb 0 : !v
  %g = accumulate @w$b %i : !v -> !v
  // expected-note @+1 {{the value is updated here}}
  %u = update @w$b %g optimizer "train:sgd" : !v -> !v
  %n = convert %u : !v -> !c
  write @w$b slot compute %n : !c
  // expected-error @+1 {{expected slot compute of @w$b as it is behind the last update, got operand 0 from before}}
  %z = run @a.0$F(%f) mb 1 : (!f) -> !f
  free %f : !f
}

// -----

// What is read between the update and the write is old as well.

!v = tensor<4xf32>
!c = tensor<4xbf16>
piper.mesh @mesh [pp = 1 unrolled]
piper.state @w parameter : !c holders [0]
piper.bucket @w$b [@w] value : !v compute : !c grad : !v
piper.chunk @a.0$F pass = F stage = 0 (%w: !c) -> !c { return %w : !c }
piper.program @train$pp0 of @train$cluster at 0 {
  %i = input "g" mb 0 : !v
  %g = accumulate @w$b %i : !v -> !v
  // expected-note @+1 {{the value is updated here}}
  %u = update @w$b %g optimizer "train:sgd" : !v -> !v
  // expected-note @+1 {{it is read here}}
  %c = read @w$b slot compute : !c
  %n = convert %u : !v -> !c
  write @w$b slot compute %n : !c
  // expected-error @+1 {{expected slot compute of @w$b as it is behind the last update, got operand 0 from before}}
  %z = run @a.0$F(%c) mb 0 : (!c) -> !c
}

// -----

// So is what was converted from the value before it, for all but a write of the
// slot, which has a message of its own above.

!v = tensor<4xf32>
!c = tensor<4xbf16>
piper.mesh @mesh [pp = 1 unrolled]
piper.state @w parameter : !c holders [0]
piper.bucket @w$b [@w] value : !v compute : !c grad : !v
piper.chunk @a.0$F pass = F stage = 0 (%w: !c) -> !c { return %w : !c }
piper.program @train$pp0 of @train$cluster at 0 {
  // expected-note @+1 {{it is read here}}
  %v = read @w$b slot value : !v
  %c = convert %v : !v -> !c
  %i = input "g" mb 0 : !v
  %g = accumulate @w$b %i : !v -> !v
  // expected-note @+1 {{the value is updated here}}
  %u = update @w$b %g optimizer "train:sgd" : !v -> !v
  %n = convert %u : !v -> !c
  write @w$b slot compute %n : !c
  // expected-error @+1 {{expected slot value of @w$b as it is behind the last update, got operand 0 from before}}
  %z = run @a.0$F(%c) mb 0 : (!c) -> !c
}

//===----------------------------------------------------------------------===//
// Clusters
//===----------------------------------------------------------------------===//

// -----

// Twin stages: every holder updates its own value and writes its own slot.

!x = tensor<4xf32>
!c = tensor<4xbf16>
piper.mesh @mesh [pp = 2 unrolled]
piper.stream @pp
piper.state @w parameter : !c holders [0, 1] optimization <"train:sgd">
piper.bucket @w$b [@w] value : !x compute : !c grad : !x
piper.chunk @a.0$F pass = F stage = 0 (%x: !x) -> !x { return %x : !x }
piper.chunk @a.0$B pass = B of @a.0$F stage = 0 (%x: !c) -> !c {
  %g = pack @w$b %x : !c -> !c
  return %g : !c
}
piper.step @train phase = bucketed mesh = @mesh inputs ["x"] dims [0] microbatches = 2 homes [[0], [1]] (%x: !c) {
  %1 = run @a.0$B(%x) : (!c) -> !c
}
piper.cluster @train$cluster of @train phase = reduced mesh = @mesh microbatches = 2 {
  %i = input "x" mb 0 at 0 : !c
  %j = input "x" mb 1 at 1 : !c
  %g = run @a.0$B(%i) mb 0 at 0 : (!c) -> !c
  %h = run @a.0$B(%j) mb 1 at 1 : (!c) -> !c
  %G = sum bucket @w$b %g at 0 : !c -> !x
  %H = sum bucket @w$b %h at 1 : !c -> !x
  %R, %S = all_reduce %G, %H at [0, 1] over [] across "pp" on @pp : !x, !x -> !x, !x
  %u = update @w$b %R at 0 optimizer "train:sgd" : !x -> !x
  %n = convert %u at 0 : !x -> !c
  write @w$b slot compute %n at 0 : !c
  // expected-error @+1 {{expected slot compute of @w$b to be written behind it at coordinate 1, got no write: the slot would be stale}}
  %v = update @w$b %S at 1 optimizer "train:sgd" : !x -> !x
}

// -----

// In issue order nothing old is used behind the update.

!x = tensor<4xf32>
!c = tensor<4xbf16>
piper.mesh @mesh [pp = 1 unrolled]
piper.state @w parameter : !c holders [0] optimization <"train:sgd">
piper.bucket @w$b [@w] value : !x compute : !c grad : !x
piper.chunk @a.0$F pass = F stage = 0 (%x: !c, %w: !c) -> !c { return %x : !c }
piper.chunk @a.0$B pass = B of @a.0$F stage = 0 (%x: !c) -> !c {
  %g = pack @w$b %x : !c -> !c
  return %g : !c
}
piper.step @train phase = bucketed mesh = @mesh inputs ["x"] dims [0] microbatches = 1 homes [[0]] (%x: !c) {
  %w = read @w$b slot compute : !c
  %0 = run @a.0$F(%x, %w) : (!c, !c) -> !c
  %1 = run @a.0$B(%x) : (!c) -> !c
}
piper.cluster @train$cluster of @train phase = ordered mesh = @mesh microbatches = 1 {
  // expected-note @+1 {{it is read here}}
  %w = read @w$b slot compute at 0 : !c
  %i = input "x" mb 0 at 0 : !c
  %f = run @a.0$F(%i, %w) mb 0 at 0 : (!c, !c) -> !c
  %g = run @a.0$B(%i) mb 0 at 0 : (!c) -> !c
  %G = accumulate @w$b %g at 0 : !c -> !x
  // expected-note @+1 {{the value is updated here}}
  %u = update @w$b %G at 0 optimizer "train:sgd" : !x -> !x
  // expected-error @+1 {{expected slot compute of @w$b as it is behind the last update, got operand 0 from before}}
  output "w" %w at 0 : !c
}

// -----

// What was gathered from shards is that of before the update.

#S = #piper.layout<dp = shard(0)>
#R = #piper.layout<dp = replicated>
!v = tensor<4xf32, #S>
!w = tensor<8xf32, #R>
piper.mesh @mesh [pp = 1 unrolled, dp = 2 manual]
piper.stream @dp
piper.comm @gather.dp$0 axes ["dp"] coordinates [0] for @dp
piper.state @w parameter : tensor<8xf32> holders [0]
piper.bucket @w$b [@w] value : !v grad : !v
piper.program @train$pp0 of @train$cluster at 0 {
  // expected-note @+1 {{it is read here}}
  %v = read @w$b slot value : !v
  %r = record
  %w, %e = all_gather %v dim 0 over ["dp"] on @gather.dp$0 after %r : !v -> !w, !piper.event
  %s = sumsq %w after %e : (!w) -> tensor<f32, #R>
  %i = input "g" mb 0 : !v
  %g = accumulate @w$b %i : !v -> !v
  // expected-note @+1 {{the value is updated here}}
  %u = update @w$b %g optimizer "train:sgd" : !v -> !v
  // expected-error @+1 {{expected slot value of @w$b as it is behind the last update, got operand 0 from before}}
  %t = sumsq %w : (!w) -> tensor<f32, #R>
}
