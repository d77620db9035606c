// Values move to the coordinates that use them.
// RUN: piper-opt %s -split-input-file --piper-insert-transfers | FileCheck %s

// One transfer per value and destination: a skip connection is sent to each of
// its users once, for forward and backward alike. It comes right behind what
// makes the value and carries its microbatch.

!x = tensor<4xf32>

// CHECK: piper.stream @pp
piper.mesh @mesh [pp = 3 unrolled]
piper.chunk @a.0$F pass = F stage = 0 (%x: !x) -> !x { return %x : !x }
piper.chunk @a.1$F pass = F stage = 1 (%x: !x) -> !x { return %x : !x }
piper.chunk @a.2$F pass = F stage = 2 (%x: !x, %y: !x) -> !x { return %x : !x }
piper.chunk @a.2$B pass = B of @a.2$F stage = 2 (%x: !x, %y: !x) -> !x { return %x : !x }
piper.chunk @a.1$B pass = B of @a.1$F stage = 1 (%x: !x, %y: !x) -> !x { return %x : !x }
// CHECK: piper.cluster @train$cluster of @train phase = connected
// CHECK-NEXT: %[[I:.*]] = input "x" mb 5 at 0
// CHECK-NEXT: %[[Y0:.*]] = run @a.0$F(%[[I]]) mb 5 at 0
// CHECK-DAG: %[[Y0_1:.*]] = transfer %[[Y0]] from 0 to 1 mb 5 as "{{.*}}#0" on @pp : !f32_4
// CHECK-DAG: %[[Y0_2:.*]] = transfer %[[Y0]] from 0 to 2 mb 5 as "{{.*}}#0" on @pp : !f32_4
// CHECK: %[[Y1:.*]] = run @a.1$F(%[[Y0_1]]) mb 5 at 1
// CHECK-NEXT: %[[Y1_2:.*]] = transfer %[[Y1]] from 1 to 2 mb 5
// CHECK-NEXT: %[[Y2:.*]] = run @a.2$F(%[[Y1_2]], %[[Y0_2]]) mb 5 at 2
// CHECK-NEXT: %[[D2:.*]] = run @a.2$B(%[[Y2]], %[[Y0_2]]) mb 5 at 2
// CHECK-NEXT: %[[D2_1:.*]] = transfer %[[D2]] from 2 to 1 mb 5
// CHECK-NEXT: run @a.1$B(%[[D2_1]], %[[Y0_1]]) mb 5 at 1
// CHECK-NEXT: }
piper.cluster @train$cluster of @train phase = unrolled mesh = @mesh microbatches = 6 {
  %i = input "x" mb 5 at 0 : !x
  %y0 = run @a.0$F(%i) mb 5 at 0 : (!x) -> !x
  %y1 = run @a.1$F(%y0) mb 5 at 1 : (!x) -> !x
  %y2 = run @a.2$F(%y1, %y0) mb 5 at 2 : (!x, !x) -> !x
  %d2 = run @a.2$B(%y2, %y0) mb 5 at 2 : (!x, !x) -> !x
  %d1 = run @a.1$B(%d2, %y0) mb 5 at 1 : (!x, !x) -> !x
}

// -----

// A transfer is due to the placement: its location says so.

!x = tensor<4xf32>

piper.mesh @mesh [pp = 2 unrolled]
piper.strategy @strategy mesh = @mesh {
  piper.do.place <all> stages = 2 axis = "pp"
}
piper.chunk @a.0$F pass = F stage = 0 (%x: !x) -> !x { return %x : !x }
// CHECK: transfer {{.*}} loc(#[[$TRANSFER:.+]])
// CHECK: #[[$PLACE:.+]] = loc("place"(
// CHECK: #[[$TRANSFER]] = loc(fused[#{{.*}}, #[[$PLACE]]])
piper.cluster @train$cluster of @train phase = unrolled mesh = @mesh microbatches = 1 {
  %i = input "x" mb 0 at 0 : !x
  %y = run @a.0$F(%i) mb 0 at 0 : (!x) -> !x
  output "y" %y at 1 : !x
}

// -----

// Nothing moves where there is one coordinate.

!x = tensor<4xf32>

// CHECK: piper.cluster @train$cluster of @train phase = connected
// CHECK-NEXT: input
// CHECK-NEXT: output
// CHECK-NEXT: }
piper.mesh @mesh [dp = 2 manual]
piper.cluster @train$cluster of @train phase = unrolled mesh = @mesh microbatches = 1 {
  %i = input "x" mb 0 at 0 : !x
  output "y" %i at 0 : !x
}
