// Clusters that lose an update, or convert a gradient on its way to one.
// RUN: piper-opt %s -split-input-file -verify-diagnostics --piper-verify

//===----------------------------------------------------------------------===//
// Clusters: updates
//===----------------------------------------------------------------------===//

// An optimized state is updated once.

!x = tensor<4xf32>
piper.mesh @mesh [pp = 2 unrolled]
// expected-note @+1 {{the state is here}}
piper.state @w parameter : !x holders [0] optimization <"train:sgd">
piper.state @v parameter : !x holders [0]
piper.bucket @w$b [@w] value : !x grad : !x
piper.bucket @v$b [@v] value : !x grad : !x
piper.chunk @a.0$F pass = F stage = 0 (%x: !x) -> !x { return %x : !x }
piper.chunk @b.0$F pass = F stage = 0 (%x: !x) -> !x { return %x : !x }
piper.chunk @a.0$B pass = B of @a.0$F stage = 0 (%x: !x) -> !x {
  %g = pack @w$b %x : !x -> !x
  return %g : !x
}
piper.chunk @b.0$B pass = B of @b.0$F stage = 0 (%x: !x) -> !x {
  %g = pack @v$b %x : !x -> !x
  return %g : !x
}
piper.step @train phase = bucketed mesh = @mesh inputs ["x"] dims [0] microbatches = 1 homes [[0, 1]] (%x: !x) {
  %0 = run @a.0$F(%x) : (!x) -> !x
  %1 = run @b.0$F(%0) : (!x) -> !x
  %2 = run @b.0$B(%1) : (!x) -> !x
  %3 = run @a.0$B(%1) : (!x) -> !x
}
// expected-error @+1 {{expected an update of @w$b at coordinate 0, got none}}
piper.cluster @train$cluster of @train phase = reduced mesh = @mesh microbatches = 1 {
  %i = input "x" mb 0 at 0 : !x
  %0 = run @a.0$F(%i) mb 0 at 0 : (!x) -> !x
  %1 = run @b.0$F(%0) mb 0 at 0 : (!x) -> !x
  %h = run @b.0$B(%1) mb 0 at 0 : (!x) -> !x
  %g = run @a.0$B(%1) mb 0 at 0 : (!x) -> !x
  %G = sum bucket @w$b %g at 0 : !x -> !x
  %H = sum bucket @v$b %h at 0 : !x -> !x
}

// -----

!x = tensor<4xf32>
piper.mesh @mesh [pp = 2 unrolled]
piper.state @w parameter : !x holders [0] optimization <"train:sgd">
piper.state @v parameter : !x holders [0]
piper.bucket @w$b [@w] value : !x grad : !x
piper.bucket @v$b [@v] value : !x grad : !x
piper.chunk @a.0$F pass = F stage = 0 (%x: !x) -> !x { return %x : !x }
piper.chunk @b.0$F pass = F stage = 0 (%x: !x) -> !x { return %x : !x }
piper.chunk @a.0$B pass = B of @a.0$F stage = 0 (%x: !x) -> !x {
  %g = pack @w$b %x : !x -> !x
  return %g : !x
}
piper.chunk @b.0$B pass = B of @b.0$F stage = 0 (%x: !x) -> !x {
  %g = pack @v$b %x : !x -> !x
  return %g : !x
}
piper.step @train phase = bucketed mesh = @mesh inputs ["x"] dims [0] microbatches = 1 homes [[0, 1]] (%x: !x) {
  %0 = run @a.0$F(%x) : (!x) -> !x
  %1 = run @b.0$F(%0) : (!x) -> !x
  %2 = run @b.0$B(%1) : (!x) -> !x
  %3 = run @a.0$B(%1) : (!x) -> !x
}
piper.cluster @train$cluster of @train phase = reduced mesh = @mesh microbatches = 1 {
  %i = input "x" mb 0 at 0 : !x
  %0 = run @a.0$F(%i) mb 0 at 0 : (!x) -> !x
  %1 = run @b.0$F(%0) mb 0 at 0 : (!x) -> !x
  %h = run @b.0$B(%1) mb 0 at 0 : (!x) -> !x
  %g = run @a.0$B(%1) mb 0 at 0 : (!x) -> !x
  %G = sum bucket @w$b %g at 0 : !x -> !x
  %H = sum bucket @v$b %h at 0 : !x -> !x
  // expected-note @+1 {{the other update is here}}
  %u = update @w$b %G at 0 optimizer "train:sgd" : !x -> !x
  // expected-error @+1 {{expected one update of @w$b at coordinate 0, got a second}}
  %v = update @w$b %G at 0 optimizer "train:sgd" : !x -> !x
}

// -----

// A state that no directive optimizes stays as it is.

!x = tensor<4xf32>
piper.mesh @mesh [pp = 2 unrolled]
piper.state @w parameter : !x holders [0] optimization <"train:sgd">
// expected-note @+1 {{the state is here}}
piper.state @v parameter : !x holders [0]
piper.bucket @w$b [@w] value : !x grad : !x
piper.bucket @v$b [@v] value : !x grad : !x
piper.chunk @a.0$F pass = F stage = 0 (%x: !x) -> !x { return %x : !x }
piper.chunk @b.0$F pass = F stage = 0 (%x: !x) -> !x { return %x : !x }
piper.chunk @a.0$B pass = B of @a.0$F stage = 0 (%x: !x) -> !x {
  %g = pack @w$b %x : !x -> !x
  return %g : !x
}
piper.chunk @b.0$B pass = B of @b.0$F stage = 0 (%x: !x) -> !x {
  %g = pack @v$b %x : !x -> !x
  return %g : !x
}
piper.step @train phase = bucketed mesh = @mesh inputs ["x"] dims [0] microbatches = 1 homes [[0, 1]] (%x: !x) {
  %0 = run @a.0$F(%x) : (!x) -> !x
  %1 = run @b.0$F(%0) : (!x) -> !x
  %2 = run @b.0$B(%1) : (!x) -> !x
  %3 = run @a.0$B(%1) : (!x) -> !x
}
piper.cluster @train$cluster of @train phase = reduced mesh = @mesh microbatches = 1 {
  %i = input "x" mb 0 at 0 : !x
  %0 = run @a.0$F(%i) mb 0 at 0 : (!x) -> !x
  %1 = run @b.0$F(%0) mb 0 at 0 : (!x) -> !x
  %h = run @b.0$B(%1) mb 0 at 0 : (!x) -> !x
  %g = run @a.0$B(%1) mb 0 at 0 : (!x) -> !x
  %G = sum bucket @w$b %g at 0 : !x -> !x
  %H = sum bucket @v$b %h at 0 : !x -> !x
  %u = update @w$b %G at 0 optimizer "train:sgd" : !x -> !x
  // expected-error @+1 {{expected no update of @v, got #piper.optimization<"train:sgd">}}
  %v = update @v$b %H at 0 optimizer "train:sgd" : !x -> !x
}

// -----

// The update is the one that was recorded.

!x = tensor<4xf32>
piper.mesh @mesh [pp = 2 unrolled]
// expected-note @+1 {{the state is here}}
piper.state @w parameter : !x holders [0] optimization <"train:sgd">
piper.state @v parameter : !x holders [0]
piper.bucket @w$b [@w] value : !x grad : !x
piper.bucket @v$b [@v] value : !x grad : !x
piper.chunk @a.0$F pass = F stage = 0 (%x: !x) -> !x { return %x : !x }
piper.chunk @b.0$F pass = F stage = 0 (%x: !x) -> !x { return %x : !x }
piper.chunk @a.0$B pass = B of @a.0$F stage = 0 (%x: !x) -> !x {
  %g = pack @w$b %x : !x -> !x
  return %g : !x
}
piper.chunk @b.0$B pass = B of @b.0$F stage = 0 (%x: !x) -> !x {
  %g = pack @v$b %x : !x -> !x
  return %g : !x
}
piper.step @train phase = bucketed mesh = @mesh inputs ["x"] dims [0] microbatches = 1 homes [[0, 1]] (%x: !x) {
  %0 = run @a.0$F(%x) : (!x) -> !x
  %1 = run @b.0$F(%0) : (!x) -> !x
  %2 = run @b.0$B(%1) : (!x) -> !x
  %3 = run @a.0$B(%1) : (!x) -> !x
}
piper.cluster @train$cluster of @train phase = reduced mesh = @mesh microbatches = 1 {
  %i = input "x" mb 0 at 0 : !x
  %0 = run @a.0$F(%i) mb 0 at 0 : (!x) -> !x
  %1 = run @b.0$F(%0) mb 0 at 0 : (!x) -> !x
  %h = run @b.0$B(%1) mb 0 at 0 : (!x) -> !x
  %g = run @a.0$B(%1) mb 0 at 0 : (!x) -> !x
  %G = sum bucket @w$b %g at 0 : !x -> !x
  %H = sum bucket @v$b %h at 0 : !x -> !x
  // expected-error @+1 {{expected optimization #piper.optimization<"train:sgd"> of @w, got #piper.optimization<"train:adam">}}
  %u = update @w$b %G at 0 optimizer "train:adam" : !x -> !x
}

// -----

// So is whether it may be skipped.

!x = tensor<4xf32>
piper.mesh @mesh [pp = 2 unrolled]
// expected-note @+1 {{the state is here}}
piper.state @w parameter : !x holders [0] optimization <"train:sgd", skip_nonfinite>
piper.state @v parameter : !x holders [0]
piper.bucket @w$b [@w] value : !x grad : !x
piper.bucket @v$b [@v] value : !x grad : !x
piper.chunk @a.0$F pass = F stage = 0 (%x: !x) -> !x { return %x : !x }
piper.chunk @b.0$F pass = F stage = 0 (%x: !x) -> !x { return %x : !x }
piper.chunk @a.0$B pass = B of @a.0$F stage = 0 (%x: !x) -> !x {
  %g = pack @w$b %x : !x -> !x
  return %g : !x
}
piper.chunk @b.0$B pass = B of @b.0$F stage = 0 (%x: !x) -> !x {
  %g = pack @v$b %x : !x -> !x
  return %g : !x
}
piper.step @train phase = bucketed mesh = @mesh inputs ["x"] dims [0] microbatches = 1 homes [[0, 1]] (%x: !x) {
  %0 = run @a.0$F(%x) : (!x) -> !x
  %1 = run @b.0$F(%0) : (!x) -> !x
  %2 = run @b.0$B(%1) : (!x) -> !x
  %3 = run @a.0$B(%1) : (!x) -> !x
}
piper.cluster @train$cluster of @train phase = reduced mesh = @mesh microbatches = 1 {
  %i = input "x" mb 0 at 0 : !x
  %0 = run @a.0$F(%i) mb 0 at 0 : (!x) -> !x
  %1 = run @b.0$F(%0) mb 0 at 0 : (!x) -> !x
  %h = run @b.0$B(%1) mb 0 at 0 : (!x) -> !x
  %g = run @a.0$B(%1) mb 0 at 0 : (!x) -> !x
  %G = sum bucket @w$b %g at 0 : !x -> !x
  %H = sum bucket @v$b %h at 0 : !x -> !x
  // expected-error @+1 {{expected optimization #piper.optimization<"train:sgd", skip_nonfinite> of @w, got #piper.optimization<"train:sgd">}}
  %u = update @w$b %G at 0 optimizer "train:sgd" : !x -> !x
}

// -----

// It takes the gradient of its own bucket.

!x = tensor<4xf32>
piper.mesh @mesh [pp = 2 unrolled]
piper.state @w parameter : !x holders [0] optimization <"train:sgd">
piper.state @v parameter : !x holders [0] optimization <"train:sgd">
piper.bucket @w$b [@w] value : !x grad : !x
piper.bucket @v$b [@v] value : !x grad : !x
piper.chunk @a.0$F pass = F stage = 0 (%x: !x) -> !x { return %x : !x }
piper.chunk @b.0$F pass = F stage = 0 (%x: !x) -> !x { return %x : !x }
piper.chunk @a.0$B pass = B of @a.0$F stage = 0 (%x: !x) -> !x {
  %g = pack @w$b %x : !x -> !x
  return %g : !x
}
piper.chunk @b.0$B pass = B of @b.0$F stage = 0 (%x: !x) -> !x {
  %g = pack @v$b %x : !x -> !x
  return %g : !x
}
piper.step @train phase = bucketed mesh = @mesh inputs ["x"] dims [0] microbatches = 1 homes [[0, 1]] (%x: !x) {
  %0 = run @a.0$F(%x) : (!x) -> !x
  %1 = run @b.0$F(%0) : (!x) -> !x
  %2 = run @b.0$B(%1) : (!x) -> !x
  %3 = run @a.0$B(%1) : (!x) -> !x
}
piper.cluster @train$cluster of @train phase = reduced mesh = @mesh microbatches = 1 {
  %i = input "x" mb 0 at 0 : !x
  %0 = run @a.0$F(%i) mb 0 at 0 : (!x) -> !x
  %1 = run @b.0$F(%0) mb 0 at 0 : (!x) -> !x
  %h = run @b.0$B(%1) mb 0 at 0 : (!x) -> !x
  %g = run @a.0$B(%1) mb 0 at 0 : (!x) -> !x
  %G = sum bucket @w$b %g at 0 : !x -> !x
  // expected-note @+1 {{it is made here}}
  %H = sum bucket @v$b %h at 0 : !x -> !x
  // expected-error @+1 {{expected the gradient of @w$b, got that of @v$b}}
  %u = update @w$b %H at 0 optimizer "train:sgd" : !x -> !x
}

// -----

!x = tensor<4xf32>
piper.mesh @mesh [pp = 2 unrolled]
piper.state @w parameter : !x holders [0] optimization <"train:sgd">
piper.state @v parameter : !x holders [0]
piper.bucket @w$b [@w] value : !x grad : !x
piper.bucket @v$b [@v] value : !x grad : !x
piper.chunk @a.0$F pass = F stage = 0 (%x: !x) -> !x { return %x : !x }
piper.chunk @b.0$F pass = F stage = 0 (%x: !x) -> !x { return %x : !x }
piper.chunk @a.0$B pass = B of @a.0$F stage = 0 (%x: !x) -> !x {
  %g = pack @w$b %x : !x -> !x
  return %g : !x
}
piper.chunk @b.0$B pass = B of @b.0$F stage = 0 (%x: !x) -> !x {
  %g = pack @v$b %x : !x -> !x
  return %g : !x
}
piper.step @train phase = bucketed mesh = @mesh inputs ["x"] dims [0] microbatches = 1 homes [[0, 1]] (%x: !x) {
  %0 = run @a.0$F(%x) : (!x) -> !x
  %1 = run @b.0$F(%0) : (!x) -> !x
  %2 = run @b.0$B(%1) : (!x) -> !x
  %3 = run @a.0$B(%1) : (!x) -> !x
}
piper.cluster @train$cluster of @train phase = reduced mesh = @mesh microbatches = 1 {
  %i = input "x" mb 0 at 0 : !x
  %0 = run @a.0$F(%i) mb 0 at 0 : (!x) -> !x
  %1 = run @b.0$F(%0) mb 0 at 0 : (!x) -> !x
  %h = run @b.0$B(%1) mb 0 at 0 : (!x) -> !x
  %g = run @a.0$B(%1) mb 0 at 0 : (!x) -> !x
  %G = sum bucket @w$b %g at 0 : !x -> !x
  %H = sum bucket @v$b %h at 0 : !x -> !x
  // expected-note @+1 {{it is made here}}
  %j = input "x" mb 0 at 0 : !x
  // expected-error @+1 {{expected the gradient of @w$b, got another value}}
  %u = update @w$b %j at 0 optimizer "train:sgd" : !x -> !x
}

// -----

// All holders take one sum: else copies drift apart.

!x = tensor<4xf32>
piper.mesh @mesh [pp = 2 unrolled]
piper.state @w parameter : !x holders [0, 1] optimization <"train:sgd">
piper.bucket @w$b [@w] value : !x grad : !x
piper.stream @pp
piper.chunk @a.0$F pass = F stage = 0 (%x: !x) -> !x { return %x : !x }
piper.chunk @b.0$F pass = F stage = 1 (%x: !x) -> !x { return %x : !x }
piper.chunk @a.0$B pass = B of @a.0$F stage = 0 (%x: !x) -> !x {
  %g = pack @w$b %x : !x -> !x
  return %g : !x
}
piper.chunk @b.0$B pass = B of @b.0$F stage = 1 (%x: !x) -> !x {
  %g = pack @w$b %x : !x -> !x
  return %g : !x
}
piper.step @train phase = bucketed mesh = @mesh inputs ["x"] dims [0] microbatches = 1 homes [[0, 1]] (%x: !x) {
  %0 = run @a.0$F(%x) : (!x) -> !x
  %1 = run @b.0$F(%0) : (!x) -> !x
  %2 = run @b.0$B(%1) : (!x) -> !x
  %3 = run @a.0$B(%1) : (!x) -> !x
}
piper.cluster @train$cluster of @train phase = reduced mesh = @mesh microbatches = 1 {
  %i = input "x" mb 0 at 0 : !x
  %j = input "x" mb 0 at 1 : !x
  %0 = run @a.0$F(%i) mb 0 at 0 : (!x) -> !x
  %1 = run @b.0$F(%j) mb 0 at 1 : (!x) -> !x
  %h = run @b.0$B(%j) mb 0 at 1 : (!x) -> !x
  %g = run @a.0$B(%i) mb 0 at 0 : (!x) -> !x
  %G = sum bucket @w$b %g at 0 : !x -> !x
  %H = sum bucket @w$b %h at 1 : !x -> !x
  // expected-note @+1 {{the other update is here}}
  %u = update @w$b %G at 0 optimizer "train:sgd" : !x -> !x
  // expected-error @+1 {{expected one reduction across all holders of @w$b, got a gradient of another}}
  %v = update @w$b %H at 1 optimizer "train:sgd" : !x -> !x
}

// -----

// Every holder is updated.

!x = tensor<4xf32>
piper.mesh @mesh [pp = 2 unrolled]
// expected-note @+1 {{the state is here}}
piper.state @w parameter : !x holders [0, 1] optimization <"train:sgd">
piper.bucket @w$b [@w] value : !x grad : !x
piper.stream @pp
piper.chunk @a.0$F pass = F stage = 0 (%x: !x) -> !x { return %x : !x }
piper.chunk @b.0$F pass = F stage = 1 (%x: !x) -> !x { return %x : !x }
piper.chunk @a.0$B pass = B of @a.0$F stage = 0 (%x: !x) -> !x {
  %g = pack @w$b %x : !x -> !x
  return %g : !x
}
piper.chunk @b.0$B pass = B of @b.0$F stage = 1 (%x: !x) -> !x {
  %g = pack @w$b %x : !x -> !x
  return %g : !x
}
piper.step @train phase = bucketed mesh = @mesh inputs ["x"] dims [0] microbatches = 1 homes [[0, 1]] (%x: !x) {
  %0 = run @a.0$F(%x) : (!x) -> !x
  %1 = run @b.0$F(%0) : (!x) -> !x
  %2 = run @b.0$B(%1) : (!x) -> !x
  %3 = run @a.0$B(%1) : (!x) -> !x
}
// expected-error @+1 {{expected an update of @w$b at coordinate 1, got none}}
piper.cluster @train$cluster of @train phase = reduced mesh = @mesh microbatches = 1 {
  %i = input "x" mb 0 at 0 : !x
  %j = input "x" mb 0 at 1 : !x
  %0 = run @a.0$F(%i) mb 0 at 0 : (!x) -> !x
  %1 = run @b.0$F(%j) mb 0 at 1 : (!x) -> !x
  %h = run @b.0$B(%j) mb 0 at 1 : (!x) -> !x
  %g = run @a.0$B(%i) mb 0 at 0 : (!x) -> !x
  %G = sum bucket @w$b %g at 0 : !x -> !x
  %H = sum bucket @w$b %h at 1 : !x -> !x
  %S:2 = all_reduce %G, %H at [0, 1] over [] across "pp" on @pp : !x, !x -> !x, !x
  %u = update @w$b %S#0 at 0 optimizer "train:sgd" : !x -> !x
}

// -----

// Who does not hold a state does not update it.

!x = tensor<4xf32>
piper.mesh @mesh [pp = 2 unrolled]
piper.state @w parameter : !x holders [1] optimization <"train:sgd">
piper.bucket @w$b [@w] value : !x grad : !x
piper.chunk @a.0$F pass = F stage = 0 (%x: !x) -> !x { return %x : !x }
piper.chunk @a.0$B pass = B of @a.0$F stage = 0 (%x: !x) -> !x {
  %g = pack @w$b %x : !x -> !x
  return %g : !x
}
piper.step @train phase = bucketed mesh = @mesh inputs ["x"] dims [0] microbatches = 1 homes [[0, 1]] (%x: !x) {
  %0 = run @a.0$F(%x) : (!x) -> !x
  %1 = run @a.0$B(%0) : (!x) -> !x
}
piper.cluster @train$cluster of @train phase = reduced mesh = @mesh microbatches = 1 {
  %i = input "x" mb 0 at 0 : !x
  %y0 = run @a.0$F(%i) mb 0 at 0 : (!x) -> !x
  %g0 = run @a.0$B(%y0) mb 0 at 0 : (!x) -> !x
  %G = sum bucket @w$b %g0 at 0 : !x -> !x
  // expected-error @+1 {{expected a coordinate that holds @w, got 0}}
  %u = update @w$b %G at 0 optimizer "train:sgd" : !x -> !x
}

// -----

// Twins are summed once: a second sum would double what they hold.

!x = tensor<4xf32>
piper.mesh @mesh [pp = 2 unrolled]
piper.stream @pp
piper.state @w parameter : !x holders [0, 1] optimization <"train:sgd">
piper.bucket @w$b [@w] value : !x grad : !x
piper.chunk @a.0$F pass = F stage = 0 (%x: !x) -> !x { return %x : !x }
piper.chunk @b.0$F pass = F stage = 1 (%x: !x) -> !x { return %x : !x }
piper.chunk @a.0$B pass = B of @a.0$F stage = 0 (%x: !x) -> !x {
  %g = pack @w$b %x : !x -> !x
  return %g : !x
}
piper.chunk @b.0$B pass = B of @b.0$F stage = 1 (%x: !x) -> !x {
  %g = pack @w$b %x : !x -> !x
  return %g : !x
}
piper.step @train phase = bucketed mesh = @mesh inputs ["x"] dims [0] microbatches = 1 homes [[0, 1]] (%x: !x) {
  %0 = run @a.0$F(%x) : (!x) -> !x
  %1 = run @b.0$F(%x) : (!x) -> !x
  %2 = run @b.0$B(%x) : (!x) -> !x
  %3 = run @a.0$B(%x) : (!x) -> !x
}
piper.cluster @train$cluster of @train phase = reduced mesh = @mesh microbatches = 1 {
  %i = input "x" mb 0 at 0 : !x
  %j = input "x" mb 0 at 1 : !x
  %0 = run @a.0$F(%i) mb 0 at 0 : (!x) -> !x
  %1 = run @b.0$F(%j) mb 0 at 1 : (!x) -> !x
  %h = run @b.0$B(%j) mb 0 at 1 : (!x) -> !x
  %g = run @a.0$B(%i) mb 0 at 0 : (!x) -> !x
  %G = sum bucket @w$b %g at 0 : !x -> !x
  %H = sum bucket @w$b %h at 1 : !x -> !x
  // expected-note @+1 {{it is summed here}}
  %S:2 = all_reduce %G, %H at [0, 1] over [] across "pp" on @pp : !x, !x -> !x, !x
  // expected-error @+1 {{expected gradients of @w$b that are not yet summed across coordinates, got one that is}}
  %T:2 = all_reduce %S#0, %S#1 at [0, 1] over [] across "pp" on @pp : !x, !x -> !x, !x
  %u = update @w$b %T#0 at 0 optimizer "train:sgd" : !x -> !x
  %v = update @w$b %T#1 at 1 optimizer "train:sgd" : !x -> !x
}

// -----

//===----------------------------------------------------------------------===//
// Clusters: conversions
//===----------------------------------------------------------------------===//

// What one reduces keeps the dtype of the sum: it is not made narrower for the
// time of the reduction.

!x = tensor<4xf32>
!h = tensor<4xbf16>
piper.mesh @mesh [pp = 2 unrolled]
piper.stream @pp
piper.state @w parameter : !x holders [0, 1] optimization <"train:sgd">
piper.bucket @w$b [@w] value : !x grad : !x
piper.chunk @a.0$F pass = F stage = 0 (%x: !x) -> !x { return %x : !x }
piper.chunk @b.0$F pass = F stage = 1 (%x: !x) -> !x { return %x : !x }
piper.chunk @a.0$B pass = B of @a.0$F stage = 0 (%x: !x) -> !x {
  %g = pack @w$b %x : !x -> !x
  return %g : !x
}
piper.chunk @b.0$B pass = B of @b.0$F stage = 1 (%x: !x) -> !x {
  %g = pack @w$b %x : !x -> !x
  return %g : !x
}
piper.step @train phase = bucketed mesh = @mesh inputs ["x"] dims [0] microbatches = 1 homes [[0, 1]] (%x: !x) {
  %0 = run @a.0$F(%x) : (!x) -> !x
  %1 = run @b.0$F(%x) : (!x) -> !x
  %2 = run @b.0$B(%x) : (!x) -> !x
  %3 = run @a.0$B(%x) : (!x) -> !x
}
piper.cluster @train$cluster of @train phase = reduced mesh = @mesh microbatches = 1 {
  %i = input "x" mb 0 at 0 : !x
  %j = input "x" mb 0 at 1 : !x
  %0 = run @a.0$F(%i) mb 0 at 0 : (!x) -> !x
  %1 = run @b.0$F(%j) mb 0 at 1 : (!x) -> !x
  %h = run @b.0$B(%j) mb 0 at 1 : (!x) -> !x
  %g = run @a.0$B(%i) mb 0 at 0 : (!x) -> !x
  %G = sum bucket @w$b %g at 0 : !x -> !x
  %H = sum bucket @w$b %h at 1 : !x -> !x
  // expected-note @+1 {{it is converted here}}
  %l = convert %G at 0 : !x -> !h
  %m = convert %H at 1 : !x -> !h
  %S:2 = all_reduce %l, %m at [0, 1] over [] across "pp" on @pp : !h, !h -> !h, !h
  // expected-error @+1 {{expected a value that is not yet converted, got one that was}}
  %s = convert %S#0 at 0 : !h -> !x
  %t = convert %S#1 at 1 : !h -> !x
  %u = update @w$b %s at 0 optimizer "train:sgd" : !x -> !x
  %v = update @w$b %t at 1 optimizer "train:sgd" : !x -> !x
}
