// Clusters whose values or runs are out of place.
// RUN: piper-opt %s -split-input-file -verify-diagnostics --piper-verify

//===----------------------------------------------------------------------===//
// Clusters: placement
//===----------------------------------------------------------------------===//

// Values cross coordinates by transfers only.

!x = tensor<4xf32>
piper.mesh @mesh [pp = 2 unrolled]
piper.chunk @a.0$F pass = F stage = 0 (%x: !x) -> !x { return %x : !x }
piper.chunk @a.1$F pass = F stage = 1 (%x: !x) -> !x { return %x : !x }
piper.step @train phase = bucketed mesh = @mesh inputs ["x"] dims [0] microbatches = 1 homes [[0, 1]] (%x: !x) {
  %0 = run @a.0$F(%x) : (!x) -> !x
  %1 = run @a.1$F(%0) : (!x) -> !x
}
piper.cluster @train$cluster of @train phase = connected mesh = @mesh microbatches = 1 {
  %i = input "x" mb 0 at 0 : !x
  // expected-note @+1 {{it is made here}}
  %0 = run @a.0$F(%i) mb 0 at 0 : (!x) -> !x
  // expected-error @+1 {{expected operand 0 to arise at coordinate 1, got one of coordinate 0}}
  %1 = run @a.1$F(%0) mb 0 at 1 : (!x) -> !x
}

// -----

// A transfer takes what its source made.

!x = tensor<4xf32>
piper.mesh @mesh [pp = 2 unrolled]
piper.chunk @a.0$F pass = F stage = 0 (%x: !x) -> !x { return %x : !x }
piper.chunk @a.1$F pass = F stage = 1 (%x: !x) -> !x { return %x : !x }
piper.step @train phase = bucketed mesh = @mesh inputs ["x"] dims [0] microbatches = 1 homes [[0, 1]] (%x: !x) {
  %0 = run @a.0$F(%x) : (!x) -> !x
  %1 = run @a.1$F(%0) : (!x) -> !x
}
piper.stream @pp
piper.cluster @train$cluster of @train phase = connected mesh = @mesh microbatches = 1 {
  %i = input "x" mb 0 at 0 : !x
  // expected-note @+1 {{it is made here}}
  %0 = run @a.0$F(%i) mb 0 at 0 : (!x) -> !x
  // expected-error @+1 {{expected operand 0 to arise at coordinate 1, got one of coordinate 0}}
  %1 = transfer %0 from 1 to 0 mb 0 on @pp : !x
}

// -----

// A collective takes each operand where it arises.

!x = tensor<4xf32>
piper.mesh @mesh [pp = 2 unrolled]
piper.chunk @a.0$F pass = F stage = 0 (%x: !x) -> !x { return %x : !x }
piper.chunk @a.1$F pass = F stage = 1 (%x: !x) -> !x { return %x : !x }
piper.step @train phase = bucketed mesh = @mesh inputs ["x"] dims [0] microbatches = 1 homes [[0, 1]] (%x: !x) {
  %0 = run @a.0$F(%x) : (!x) -> !x
  %1 = run @a.1$F(%0) : (!x) -> !x
}
piper.stream @pp
piper.cluster @train$cluster of @train phase = connected mesh = @mesh microbatches = 1 {
  %i = input "x" mb 0 at 0 : !x
  // expected-note @+1 {{it is made here}}
  %j = input "x" mb 0 at 1 : !x
  // expected-error @+1 {{expected operand 0 to arise at coordinate 0, got one of coordinate 1}}
  %0, %1 = all_reduce %j, %i at [0, 1] over [] across "pp" on @pp : !x, !x -> !x, !x
}

// -----

// Until transfers are inserted, values may be used anywhere; the coordinates have
// to exist already.

!x = tensor<4xf32>
piper.mesh @mesh [pp = 2 unrolled]
piper.chunk @a.0$F pass = F stage = 0 (%x: !x) -> !x { return %x : !x }
piper.chunk @a.1$F pass = F stage = 1 (%x: !x) -> !x { return %x : !x }
piper.step @train phase = bucketed mesh = @mesh inputs ["x"] dims [0] microbatches = 1 homes [[0, 1]] (%x: !x) {
  %0 = run @a.0$F(%x) : (!x) -> !x
  %1 = run @a.1$F(%0) : (!x) -> !x
}
piper.cluster @train$cluster of @train phase = unrolled mesh = @mesh microbatches = 1 {
  // expected-error @+1 {{expected coordinates below 2, got 2}}
  %i = input "x" mb 0 at 2 : !x
}

// -----

// Every op says where it runs.

!x = tensor<4xf32>
piper.mesh @mesh [pp = 2 unrolled]
piper.chunk @a.0$F pass = F stage = 0 (%x: !x) -> !x { return %x : !x }
piper.chunk @a.1$F pass = F stage = 1 (%x: !x) -> !x { return %x : !x }
piper.step @train phase = bucketed mesh = @mesh inputs ["x"] dims [0] microbatches = 1 homes [[0, 1]] (%x: !x) {
  %0 = run @a.0$F(%x) : (!x) -> !x
  %1 = run @a.1$F(%0) : (!x) -> !x
}
piper.cluster @train$cluster of @train phase = unrolled mesh = @mesh microbatches = 1 {
  // expected-error @+1 {{expected a coordinate}}
  %i = input "x" mb 0 : !x
}

// -----

!x = tensor<4xf32>
piper.mesh @mesh [pp = 2 unrolled]
piper.chunk @a.0$F pass = F stage = 0 (%x: !x) -> !x { return %x : !x }
piper.chunk @a.1$F pass = F stage = 1 (%x: !x) -> !x { return %x : !x }
piper.step @train phase = bucketed mesh = @mesh inputs ["x"] dims [0] microbatches = 1 homes [[0, 1]] (%x: !x) {
  %0 = run @a.0$F(%x) : (!x) -> !x
  %1 = run @a.1$F(%0) : (!x) -> !x
}
piper.stream @pp
piper.cluster @train$cluster of @train phase = unrolled mesh = @mesh microbatches = 1 {
  %i = input "x" mb 0 at 0 : !x
  // expected-error @+1 {{expected a coordinate per operand}}
  %0 = all_reduce %i over [] on @pp : !x -> !x
}

// -----

//===----------------------------------------------------------------------===//
// Clusters: runs
//===----------------------------------------------------------------------===//

// The cluster is that of a step.

!x = tensor<4xf32>
piper.mesh @mesh [pp = 2 unrolled]
// expected-error @+1 {{expected a step, got @train}}
piper.cluster @train$cluster of @train phase = unrolled mesh = @mesh microbatches = 1 {
}

// -----

!x = tensor<4xf32>
piper.mesh @mesh [pp = 2 unrolled]
piper.step @train phase = bucketed mesh = @mesh inputs ["x"] dims [0] microbatches = 1 (%x: !x) {}
// expected-error @+1 {{expected the 1 microbatches of @train, got 2}}
piper.cluster @train$cluster of @train phase = unrolled mesh = @mesh microbatches = 2 {}

// -----

// A run happens once.

!x = tensor<4xf32>
piper.mesh @mesh [pp = 2 unrolled]
piper.chunk @a.0$F pass = F stage = 0 (%x: !x) -> !x { return %x : !x }
piper.chunk @a.1$F pass = F stage = 1 (%x: !x) -> !x { return %x : !x }
piper.step @train phase = bucketed mesh = @mesh inputs ["x"] dims [0] microbatches = 1 homes [[0, 1]] (%x: !x) {
  %0 = run @a.0$F(%x) : (!x) -> !x
  %1 = run @a.1$F(%0) : (!x) -> !x
}
piper.cluster @train$cluster of @train phase = unrolled mesh = @mesh microbatches = 1 {
  %i = input "x" mb 0 at 0 : !x
  // expected-note @+1 {{the other run is here}}
  %0 = run @a.0$F(%i) mb 0 at 0 : (!x) -> !x
  // expected-error @+1 {{expected one run of @a.0$F for microbatch 0, got a second}}
  %1 = run @a.0$F(%i) mb 0 at 0 : (!x) -> !x
}

// -----

// None is lost.

!x = tensor<4xf32>
piper.mesh @mesh [pp = 2 unrolled]
piper.chunk @a.0$F pass = F stage = 0 (%x: !x) -> !x { return %x : !x }
// expected-note @+1 {{the chunk is here}}
piper.chunk @a.1$F pass = F stage = 1 (%x: !x) -> !x { return %x : !x }
piper.step @train phase = bucketed mesh = @mesh inputs ["x"] dims [0] microbatches = 1 homes [[0, 1]] (%x: !x) {
  %0 = run @a.0$F(%x) : (!x) -> !x
  %1 = run @a.1$F(%0) : (!x) -> !x
}
// expected-error @+1 {{expected a run of @a.1$F for microbatch 0, got none}}
piper.cluster @train$cluster of @train phase = unrolled mesh = @mesh microbatches = 1 {
  %i = input "x" mb 0 at 0 : !x
  %0 = run @a.0$F(%i) mb 0 at 0 : (!x) -> !x
}

// -----

// It happens at home.

!x = tensor<4xf32>
piper.mesh @mesh [pp = 2 unrolled]
piper.chunk @a.0$F pass = F stage = 0 (%x: !x) -> !x { return %x : !x }
piper.chunk @a.1$F pass = F stage = 1 (%x: !x) -> !x { return %x : !x }
piper.step @train phase = bucketed mesh = @mesh inputs ["x"] dims [0] microbatches = 1 homes [[0, 1]] (%x: !x) {
  %0 = run @a.0$F(%x) : (!x) -> !x
  %1 = run @a.1$F(%0) : (!x) -> !x
}
piper.cluster @train$cluster of @train phase = unrolled mesh = @mesh microbatches = 1 {
  %i = input "x" mb 0 at 1 : !x
  // expected-error @+1 {{expected to run at coordinate 0, the home of its stage, got 1}}
  %0 = run @a.0$F(%i) mb 0 at 1 : (!x) -> !x
}

// -----

// A microbatch is one of the step's, and so is a chunk.

!x = tensor<4xf32>
piper.mesh @mesh [pp = 2 unrolled]
piper.chunk @a.0$F pass = F stage = 0 (%x: !x) -> !x { return %x : !x }
piper.chunk @a.1$F pass = F stage = 1 (%x: !x) -> !x { return %x : !x }
piper.step @train phase = bucketed mesh = @mesh inputs ["x"] dims [0] microbatches = 1 homes [[0, 1]] (%x: !x) {
  %0 = run @a.0$F(%x) : (!x) -> !x
  %1 = run @a.1$F(%0) : (!x) -> !x
}
piper.cluster @train$cluster of @train phase = unrolled mesh = @mesh microbatches = 1 {
  %i = input "x" mb 0 at 0 : !x
  // expected-error @+1 {{expected a microbatch below 1, got 1 : i64}}
  %0 = run @a.0$F(%i) mb 1 at 0 : (!x) -> !x
}

// -----

!x = tensor<4xf32>
piper.mesh @mesh [pp = 2 unrolled]
piper.chunk @a.0$F pass = F stage = 0 (%x: !x) -> !x { return %x : !x }
piper.chunk @a.1$F pass = F stage = 1 (%x: !x) -> !x { return %x : !x }
piper.chunk @a.2$F pass = F stage = 0 (%x: !x) -> !x { return %x : !x }
piper.step @train phase = bucketed mesh = @mesh inputs ["x"] dims [0] microbatches = 1 homes [[0, 1]] (%x: !x) {
  %0 = run @a.0$F(%x) : (!x) -> !x
  %1 = run @a.1$F(%0) : (!x) -> !x
}
piper.cluster @train$cluster of @train phase = unrolled mesh = @mesh microbatches = 1 {
  %i = input "x" mb 0 at 0 : !x
  // expected-error @+1 {{expected a chunk that @train runs, got @a.2$F}}
  %0 = run @a.2$F(%i) mb 0 at 0 : (!x) -> !x
}

// -----

// Every stage has a home.

!x = tensor<4xf32>
piper.mesh @mesh [pp = 2 unrolled]
piper.chunk @a.2$F pass = F stage = 2 (%x: !x) -> !x { return %x : !x }
// expected-error @+1 {{expected a home for stage 2 of @a.2$F, got homes of 2 stages}}
piper.step @train phase = bucketed mesh = @mesh inputs ["x"] dims [0] microbatches = 1 homes [[0, 1]] (%x: !x) {
  %0 = run @a.2$F(%x) : (!x) -> !x
}
piper.cluster @train$cluster of @train phase = unrolled mesh = @mesh microbatches = 1 {
}

// -----

// In an ordered cluster forward comes before backward, also where no value passes
// from one to the other.

!x = tensor<4xf32>
piper.mesh @mesh [pp = 2 unrolled]
piper.chunk @a.0$F pass = F stage = 0 (%x: !x) -> !x { return %x : !x }
piper.chunk @a.0$B pass = B of @a.0$F stage = 0 (%x: !x) -> !x { return %x : !x }
piper.step @train phase = bucketed mesh = @mesh inputs ["x"] dims [0] microbatches = 1 homes [[0, 1]] (%x: !x) {
  %0 = run @a.0$F(%x) : (!x) -> !x
  %1 = run @a.0$B(%x) : (!x) -> !x
}
piper.cluster @train$cluster of @train phase = ordered mesh = @mesh microbatches = 1 {
  %i = input "x" mb 0 at 0 : !x
  // expected-error @+1 {{expected to come behind the run of @a.0$F for microbatch 0}}
  %1 = run @a.0$B(%i) mb 0 at 0 : (!x) -> !x
  %0 = run @a.0$F(%i) mb 0 at 0 : (!x) -> !x
}

// -----

// Input gradients come before weight gradients.

!x = tensor<4xf32>
piper.mesh @mesh [pp = 2 unrolled]
piper.chunk @a.0$F pass = F stage = 0 (%x: !x) -> !x { return %x : !x }
piper.chunk @a.0$I pass = I of @a.0$F stage = 0 (%x: !x) -> !x { return %x : !x }
piper.chunk @a.0$W pass = W of @a.0$F stage = 0 (%x: !x) -> !x { return %x : !x }
piper.step @train phase = bucketed mesh = @mesh inputs ["x"] dims [0] microbatches = 1 homes [[0, 1]] (%x: !x) {
  %0 = run @a.0$F(%x) : (!x) -> !x
  %1 = run @a.0$I(%x) : (!x) -> !x
  %2 = run @a.0$W(%x) : (!x) -> !x
}
piper.cluster @train$cluster of @train phase = ordered mesh = @mesh microbatches = 1 {
  %i = input "x" mb 0 at 0 : !x
  %0 = run @a.0$F(%i) mb 0 at 0 : (!x) -> !x
  // expected-error @+1 {{expected to come behind the run of @a.0$I for microbatch 0}}
  %2 = run @a.0$W(%i) mb 0 at 0 : (!x) -> !x
  %1 = run @a.0$I(%i) mb 0 at 0 : (!x) -> !x
}
