// Chunks get a stage, steps the homes of stages.
// RUN: piper-opt %s -split-input-file --piper-place | FileCheck %s

// Without sizes the heaviest stage is as light as can be: 5 + 1 and 3 + 4 of
// FLOPs that count backward chunks, too. A preamble has no stage, and the
// chunks of another step take that of their namesake.
// CHECK-LABEL: piper.mesh
// CHECK: piper.chunk @mask$P0 pass = P (
// CHECK: piper.chunk @a.0$F pass = F stage = 0
// CHECK: piper.chunk @a.1$F pass = F stage = 0
// CHECK: piper.chunk @a.2$F pass = F stage = 1
// CHECK: piper.chunk @a.3$F pass = F stage = 1
// CHECK: piper.chunk @a.3$B pass = B of @a.3$F stage = 1
// CHECK: piper.chunk @a.2$F.eval pass = F stage = 1
// CHECK: piper.step @train
// CHECK-SAME: homes {{\[\[}}0, 1]]
// CHECK: piper.step @eval
// CHECK-SAME: homes {{\[\[}}0, 1]]
!x = tensor<4xf32>
piper.mesh @mesh [pp = 2 unrolled]
piper.strategy @strategy mesh = @mesh {
  piper.do.place <all> stages = 2 axis = "pp"
}
piper.stream @compute
piper.kernel @one(%x: !x) -> !x {
  %0 = torch "aten.relu.default"(%x) facts <pure> : (!x) -> !x
  return %0 : !x
} cost <flops = 1, bytes = 1>
piper.kernel @three(%x: !x) -> !x {
  %0 = torch "aten.neg.default"(%x) facts <pure> : (!x) -> !x
  return %0 : !x
} cost <flops = 3, bytes = 1>
piper.kernel @five(%x: !x) -> !x {
  %0 = torch "aten.exp.default"(%x) facts <pure> : (!x) -> !x
  return %0 : !x
} cost <flops = 5, bytes = 1>
piper.chunk @mask$P0 pass = P (%x: !x) -> !x {
  %0 = launch @five(%x) on @compute : (!x) -> !x
  return %0 : !x
}
piper.chunk @a.0$F pass = F (%x: !x) -> !x {
  %0 = launch @five(%x) on @compute : (!x) -> !x
  return %0 : !x
}
piper.chunk @a.1$F pass = F (%x: !x) -> !x {
  %0 = launch @one(%x) on @compute : (!x) -> !x
  return %0 : !x
}
piper.chunk @a.2$F pass = F (%x: !x) -> !x {
  %0 = launch @three(%x) on @compute : (!x) -> !x
  return %0 : !x
}
piper.chunk @a.3$F pass = F (%x: !x) -> !x {
  %0 = launch @one(%x) on @compute : (!x) -> !x
  return %0 : !x
}
piper.chunk @a.3$B pass = B of @a.3$F (%x: !x) -> !x {
  %0 = launch @three(%x) on @compute : (!x) -> !x
  return %0 : !x
}
piper.chunk @a.2$F.eval pass = F (%x: !x) -> !x { return %x : !x }
piper.step @train phase = outlined mesh = @mesh inputs ["x"] dims [0] (%x: !x) {
  %k = run @mask$P0(%x) : (!x) -> !x
  %0 = run @a.0$F(%k) : (!x) -> !x
  %1 = run @a.1$F(%0) : (!x) -> !x
  %2 = run @a.2$F(%1) : (!x) -> !x
  %3 = run @a.3$F(%2) : (!x) -> !x
  %4 = run @a.3$B(%3) : (!x) -> !x
}
piper.step @eval phase = outlined mesh = @mesh inputs ["x"] dims [0] (%x: !x) {
  %2 = run @a.2$F.eval(%x) : (!x) -> !x
}

// -----

// Every stage gets a chunk, however heavy the first is.
// CHECK-LABEL: piper.mesh
// CHECK: piper.chunk @a.0$F pass = F stage = 0
// CHECK: piper.chunk @a.1$F pass = F stage = 1
// CHECK: piper.chunk @a.2$F pass = F stage = 2
!x = tensor<4xf32>
piper.mesh @mesh [pp = 3 unrolled]
piper.strategy @strategy mesh = @mesh {
  piper.do.place <all> stages = 3 axis = "pp"
}
piper.stream @compute
piper.kernel @heavy(%x: !x) -> !x {
  %0 = torch "aten.relu.default"(%x) facts <pure> : (!x) -> !x
  return %0 : !x
} cost <flops = 100, bytes = 1>
piper.chunk @a.0$F pass = F (%x: !x) -> !x {
  %0 = launch @heavy(%x) on @compute : (!x) -> !x
  return %0 : !x
}
piper.chunk @a.1$F pass = F (%x: !x) -> !x { return %x : !x }
piper.chunk @a.2$F pass = F (%x: !x) -> !x { return %x : !x }
piper.step @train phase = outlined mesh = @mesh inputs ["x"] dims [0] (%x: !x) {
  %0 = run @a.0$F(%x) : (!x) -> !x
  %1 = run @a.1$F(%0) : (!x) -> !x
  %2 = run @a.2$F(%1) : (!x) -> !x
}

// -----

// Sizes and coordinates are taken as they are: here the two ends of a V.
// CHECK-LABEL: piper.mesh
// CHECK: piper.chunk @a.0$F pass = F stage = 0
// CHECK: piper.chunk @a.1$F pass = F stage = 0
// CHECK: piper.chunk @a.2$F pass = F stage = 1
// CHECK: homes {{\[\[}}1, 0]]
!x = tensor<4xf32>
piper.mesh @mesh [pp = 2 unrolled]
piper.strategy @strategy mesh = @mesh {
  piper.do.place <all> stages = 2 axis = "pp" sizes [2, 1] coordinates [1, 0]
}
piper.chunk @a.0$F pass = F (%x: !x) -> !x { return %x : !x }
piper.chunk @a.1$F pass = F (%x: !x) -> !x { return %x : !x }
piper.chunk @a.2$F pass = F (%x: !x) -> !x { return %x : !x }
piper.step @train phase = outlined mesh = @mesh inputs ["x"] dims [0] (%x: !x) {
  %0 = run @a.0$F(%x) : (!x) -> !x
  %1 = run @a.1$F(%0) : (!x) -> !x
  %2 = run @a.2$F(%1) : (!x) -> !x
}

// -----

// A home per microbatch: DualPipe runs half of them the other way.
// CHECK-LABEL: piper.mesh
// CHECK: homes {{\[\[}}0, 1], [1, 0]]
!x = tensor<4xf32>
piper.mesh @mesh [pp = 2 unrolled]
piper.strategy @strategy mesh = @mesh {
  piper.do.place <all> stages = 2 axis = "pp" homes [[0, 1], [1, 0]]
}
piper.chunk @a.0$F pass = F (%x: !x) -> !x { return %x : !x }
piper.chunk @a.1$F pass = F (%x: !x) -> !x { return %x : !x }
piper.step @train phase = outlined mesh = @mesh inputs ["x"] dims [0] microbatches = 2 (%x: !x) {
  %0 = run @a.0$F(%x) : (!x) -> !x
  %1 = run @a.1$F(%0) : (!x) -> !x
}

// -----

// Without a directive there is one stage, on the only coordinate.
// CHECK-LABEL: piper.mesh
// CHECK: piper.chunk @a.0$F pass = F stage = 0
// CHECK: piper.chunk @a.1$F pass = F stage = 0
// CHECK: homes {{\[\[}}0]]
!x = tensor<4xf32>
piper.mesh @mesh [dp = 2 manual]
piper.chunk @a.0$F pass = F (%x: !x) -> !x { return %x : !x }
piper.chunk @a.1$F pass = F (%x: !x) -> !x { return %x : !x }
piper.step @train phase = outlined mesh = @mesh inputs ["x"] dims [0] (%x: !x) {
  %0 = run @a.0$F(%x) : (!x) -> !x
  %1 = run @a.1$F(%0) : (!x) -> !x
}
