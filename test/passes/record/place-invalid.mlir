// Placements that lose a chunk or leave the mesh.
// RUN: piper-opt %s -split-input-file -verify-diagnostics --piper-place

// No chunk may be left without a place.
!x = tensor<4xf32>
piper.mesh @mesh [pp = 2 unrolled, dp = 2 manual]
piper.strategy @strategy mesh = @mesh {
  // expected-error @+1 {{expected to place all chunks, got #piper.select<tag = "a">}}
  piper.do.place <tag = "a"> stages = 2 axis = "pp"
}
piper.chunk @a.0$F pass = F (%x: !x) -> !x { return %x : !x }
piper.chunk @a.1$F pass = F (%x: !x) -> !x { return %x : !x }
piper.step @train phase = outlined mesh = @mesh inputs ["x"] dims [0] (%x: !x) {
  %0 = run @a.0$F(%x) : (!x) -> !x
  %1 = run @a.1$F(%0) : (!x) -> !x
}

// -----

// Stages lie on an axis that has a program per coordinate.
!x = tensor<4xf32>
piper.mesh @mesh [pp = 2 unrolled, dp = 2 manual]
piper.strategy @strategy mesh = @mesh {
  // expected-error @+1 {{expected an unrolled axis of the mesh, got 'dp'}}
  piper.do.place <all> stages = 2 axis = "dp"
}
piper.chunk @a.0$F pass = F (%x: !x) -> !x { return %x : !x }
piper.chunk @a.1$F pass = F (%x: !x) -> !x { return %x : !x }
piper.step @train phase = outlined mesh = @mesh inputs ["x"] dims [0] (%x: !x) {
  %0 = run @a.0$F(%x) : (!x) -> !x
  %1 = run @a.1$F(%0) : (!x) -> !x
}

// -----

!x = tensor<4xf32>
piper.mesh @mesh [pp = 2 unrolled, dp = 2 manual]
piper.strategy @strategy mesh = @mesh {
  // expected-error @+1 {{expected an unrolled axis of the mesh, got 'tp'}}
  piper.do.place <all> stages = 2 axis = "tp"
}
piper.chunk @a.0$F pass = F (%x: !x) -> !x { return %x : !x }
piper.chunk @a.1$F pass = F (%x: !x) -> !x { return %x : !x }
piper.step @train phase = outlined mesh = @mesh inputs ["x"] dims [0] (%x: !x) {
  %0 = run @a.0$F(%x) : (!x) -> !x
  %1 = run @a.1$F(%0) : (!x) -> !x
}

// -----

// A stage has a chunk.
!x = tensor<4xf32>
piper.mesh @mesh [pp = 2 unrolled, dp = 2 manual]
piper.strategy @strategy mesh = @mesh {
  // expected-error @+1 {{expected at least one chunk per stage, got 2 chunks and 3 stages}}
  piper.do.place <all> stages = 3 axis = "pp"
}
piper.chunk @a.0$F pass = F (%x: !x) -> !x { return %x : !x }
piper.chunk @a.1$F pass = F (%x: !x) -> !x { return %x : !x }
piper.step @train phase = outlined mesh = @mesh inputs ["x"] dims [0] (%x: !x) {
  %0 = run @a.0$F(%x) : (!x) -> !x
  %1 = run @a.1$F(%0) : (!x) -> !x
}

// -----

!x = tensor<4xf32>
piper.mesh @mesh [pp = 2 unrolled, dp = 2 manual]
piper.strategy @strategy mesh = @mesh {
  // expected-error @+1 {{expected at least one chunk per stage, got sizes [2, 0]}}
  piper.do.place <all> stages = 2 axis = "pp" sizes [2, 0]
}
piper.chunk @a.0$F pass = F (%x: !x) -> !x { return %x : !x }
piper.chunk @a.1$F pass = F (%x: !x) -> !x { return %x : !x }
piper.step @train phase = outlined mesh = @mesh inputs ["x"] dims [0] (%x: !x) {
  %0 = run @a.0$F(%x) : (!x) -> !x
  %1 = run @a.1$F(%0) : (!x) -> !x
}

// -----

// No chunk is lost.
!x = tensor<4xf32>
piper.mesh @mesh [pp = 2 unrolled, dp = 2 manual]
piper.strategy @strategy mesh = @mesh {
  // expected-error @+1 {{expected sizes that add up to 2 chunks, got 3}}
  piper.do.place <all> stages = 2 axis = "pp" sizes [1, 2]
}
piper.chunk @a.0$F pass = F (%x: !x) -> !x { return %x : !x }
piper.chunk @a.1$F pass = F (%x: !x) -> !x { return %x : !x }
piper.step @train phase = outlined mesh = @mesh inputs ["x"] dims [0] (%x: !x) {
  %0 = run @a.0$F(%x) : (!x) -> !x
  %1 = run @a.1$F(%0) : (!x) -> !x
}

// -----

// Coordinates lie on the axis.
!x = tensor<4xf32>
piper.mesh @mesh [pp = 2 unrolled, dp = 2 manual]
piper.strategy @strategy mesh = @mesh {
  // expected-error @+1 {{expected coordinates below 2 on axis 'pp', got 2}}
  piper.do.place <all> stages = 2 axis = "pp" coordinates [0, 2]
}
piper.chunk @a.0$F pass = F (%x: !x) -> !x { return %x : !x }
piper.chunk @a.1$F pass = F (%x: !x) -> !x { return %x : !x }
piper.step @train phase = outlined mesh = @mesh inputs ["x"] dims [0] (%x: !x) {
  %0 = run @a.0$F(%x) : (!x) -> !x
  %1 = run @a.1$F(%0) : (!x) -> !x
}

// -----

// Without coordinates, stage i lies on coordinate i.
!x = tensor<4xf32>
piper.mesh @mesh [pp = 1 unrolled, dp = 2 manual]
piper.strategy @strategy mesh = @mesh {
  // expected-error @+1 {{expected coordinates below 1 on axis 'pp', got 1}}
  piper.do.place <all> stages = 2 axis = "pp"
}
piper.chunk @a.0$F pass = F (%x: !x) -> !x { return %x : !x }
piper.chunk @a.1$F pass = F (%x: !x) -> !x { return %x : !x }
piper.step @train phase = outlined mesh = @mesh inputs ["x"] dims [0] (%x: !x) {
  %0 = run @a.0$F(%x) : (!x) -> !x
  %1 = run @a.1$F(%0) : (!x) -> !x
}

// -----

// Two directives of one kind must agree.
!x = tensor<4xf32>
piper.mesh @mesh [pp = 2 unrolled, dp = 2 manual]
piper.strategy @strategy mesh = @mesh {
  // expected-note @+1 {{the other directive is here}}
  piper.do.place <all> stages = 2 axis = "pp"
  // expected-error @+1 {{sets homes to [array<i64: 1, 0>], which another directive sets to [array<i64: 0, 1>]}}
  piper.do.place <all> stages = 2 axis = "pp" coordinates [1, 0]
}
piper.chunk @a.0$F pass = F (%x: !x) -> !x { return %x : !x }
piper.chunk @a.1$F pass = F (%x: !x) -> !x { return %x : !x }
piper.step @train phase = outlined mesh = @mesh inputs ["x"] dims [0] (%x: !x) {
  %0 = run @a.0$F(%x) : (!x) -> !x
  %1 = run @a.1$F(%0) : (!x) -> !x
}

// -----

// Several coordinates need to be told apart.
// expected-error @+1 {{expected a place directive for axis 'pp'}}
piper.mesh @mesh [pp = 2 unrolled]
