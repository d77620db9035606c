// One program per coordinate, with events and frees.
// RUN: piper-opt %s -split-input-file --piper-lower-programs | FileCheck %s

// A transfer is a send at one end and a receive at the other, on a communicator
// of its direction. The send waits for a record right behind what it sends; the
// buffer of the receive is taken at a record, too. Compute waits for the event
// of a receive once, at its first use. A value is freed behind its last use; what
// was sent, where compute next waits for a message of that peer, or at the end.

!x = tensor<4xf32>

// CHECK: piper.comm @send$0.1 axes [] coordinates [0, 1] for @pp
// CHECK: piper.comm @send$1.0 axes [] coordinates [1, 0] for @pp
piper.mesh @mesh [pp = 2 unrolled]
piper.stream @pp
piper.chunk @a.0$F pass = F stage = 0 (%x: !x) -> !x { return %x : !x }
piper.chunk @a.1$F pass = F stage = 1 (%x: !x) -> !x { return %x : !x }
piper.chunk @a.1$B pass = B of @a.1$F stage = 1 (%x: !x, %y: !x) -> !x { return %x : !x }
piper.chunk @a.0$B pass = B of @a.0$F stage = 0 (%x: !x) -> !x { return %x : !x }
// CHECK: piper.cluster @train$cluster of @train phase = lowered
piper.cluster @train$cluster of @train phase = ordered mesh = @mesh microbatches = 1 {
  %x0 = input "x" mb 0 at 0 : !x
  %y0 = run @a.0$F(%x0) mb 0 at 0 : (!x) -> !x
  %r0 = transfer %y0 from 0 to 1 mb 0 on @pp : !x
  %z0 = run @a.1$F(%r0) mb 0 at 1 : (!x) -> !x
  %d0 = run @a.1$B(%z0, %r0) mb 0 at 1 : (!x, !x) -> !x
  %q0 = transfer %d0 from 1 to 0 mb 0 on @pp : !x
  %g0 = run @a.0$B(%q0) mb 0 at 0 : (!x) -> !x
}
// CHECK-LABEL: piper.program @train$pp0 of @train$cluster at 0
// CHECK-NEXT: %[[X:.*]] = input "x" mb 0 :
// CHECK-NEXT: %[[Y:.*]] = run @a.0$F(%[[X]]) mb 0 :
// CHECK-NEXT: free %[[X]] :
// CHECK-NEXT: %[[E0:.*]] = record
// CHECK-NEXT: %[[E1:.*]] = send %[[Y]] to 1 mb 0 on @send$0.1 after %[[E0]] : !f32_4
// CHECK-NEXT: %[[E2:.*]] = record
// CHECK-NEXT: %[[Q:.*]], %[[E3:.*]] = recv from 1 mb 0 on @send$1.0 after %[[E2]] : !f32_4
// CHECK-NEXT: %[[G:.*]] = run @a.0$B(%[[Q]]) mb 0 after %[[E3]] :
// CHECK-NEXT: free %[[Y]], %[[Q]], %[[G]] after %[[E1]] :
// CHECK-NEXT: }
// CHECK-LABEL: piper.program @train$pp1 of @train$cluster at 1
// CHECK-NEXT: %[[F0:.*]] = record
// CHECK-NEXT: %[[R:.*]], %[[F1:.*]] = recv from 0 mb 0 on @send$0.1 after %[[F0]] : !f32_4
// CHECK-NEXT: %[[Z:.*]] = run @a.1$F(%[[R]]) mb 0 after %[[F1]] :
// CHECK-NEXT: %[[D:.*]] = run @a.1$B(%[[Z]], %[[R]]) mb 0 : (
// CHECK-NEXT: free %[[R]], %[[Z]] :
// CHECK-NEXT: %[[F2:.*]] = record
// CHECK-NEXT: %[[F3:.*]] = send %[[D]] to 0 mb 0 on @send$1.0 after %[[F2]]
// CHECK-NEXT: free %[[D]] after %[[F3]] :
// CHECK-NEXT: }

// -----

// A value that goes to two places has one record. A reduction runs on a
// communicator named by its axes and coordinates; where it joins coordinates,
// each program has its part of the same call. What a reduction makes may feed
// another without compute; gradients in buckets and states are never freed.

#R = #piper.layout<dp = replicated>
#P = #piper.layout<dp = partial>
!p = tensor<4xf32, #P>
!r = tensor<4xf32, #R>

// CHECK: piper.comm @send$0.1 axes [] coordinates [0, 1] for @pp
// CHECK: piper.comm @send$0.2 axes [] coordinates [0, 2] for @pp
// CHECK: piper.comm @reduce.dp$0 axes ["dp"] coordinates [0] for @dp
// CHECK: piper.comm @reduce.pp$0.2 axes [] coordinates [0, 2] for @pp
piper.mesh @mesh [pp = 3 unrolled, dp = 2 manual]
piper.stream @pp
piper.stream @dp
piper.state @w parameter : tensor<4xf32> holders [0] optimization <"train:sgd">
piper.bucket @w$b [@w] value : !r grad : !p
piper.chunk @a.0$F pass = F stage = 0 (%x: !p) -> !p { return %x : !p }
piper.cluster @train$cluster of @train phase = ordered mesh = @mesh microbatches = 1 {
  %x = input "x" mb 0 at 0 : !p
  %w = input "x" mb 0 at 2 : !r
  %y = run @a.0$F(%x) mb 0 at 0 : (!p) -> !p
  %y1 = transfer %y from 0 to 1 mb 0 on @pp : !p
  %y2 = transfer %y from 0 to 2 mb 0 on @pp : !p
  %a = accumulate @w$b %y at 0 : !p -> !p
  %b = all_reduce %a at [0] over ["dp"] on @dp : !p -> !r
  %c, %d = all_reduce %b, %w at [0, 2] over [] across "pp" on @pp : !r, !r -> !r, !r
  %u = update @w$b %c at 0 optimizer "train:sgd" : !r -> !r
}
// CHECK-LABEL: piper.program @train$pp0
// CHECK: %[[Y:.*]] = run @a.0$F
// CHECK-NEXT: free
// CHECK-NEXT: %[[E0:.*]] = record
// CHECK-NEXT: %[[S1:.*]] = send %[[Y]] to 1 mb 0 on @send$0.1 after %[[E0]]
// CHECK-NEXT: %[[S2:.*]] = send %[[Y]] to 2 mb 0 on @send$0.2 after %[[E0]]
// CHECK-NEXT: %[[A:.*]] = accumulate @w$b %[[Y]]
// CHECK-NEXT: %[[E1:.*]] = record
// CHECK-NEXT: %[[B:.*]], %[[EB:.*]] = all_reduce %[[A]] over ["dp"] on @reduce.dp$0 after %[[E1]]
// CHECK-NEXT: %[[C:.*]], %[[EC:.*]] = all_reduce %[[B]] over [] across "pp" on @reduce.pp$0.2 after %[[EB]]
// CHECK-NEXT: update @w$b %[[C]] optimizer "train:sgd" after %[[EC]]
// CHECK-NEXT: free %[[Y]] after %[[S2]], %[[S1]] :
// CHECK-NEXT: }
// CHECK-LABEL: piper.program @train$pp1
// CHECK: recv from 0 mb 0 on @send$0.1
// CHECK-NOT: all_reduce
// CHECK-LABEL: piper.program @train$pp2
// CHECK: recv from 0 mb 0 on @send$0.2
// CHECK: all_reduce %{{.*}} over [] across "pp" on @reduce.pp$0.2

// -----

// Without an unrolled axis there is one program.

!x = tensor<4xf32>

// CHECK: piper.program @train$0 of @train$cluster at 0
// CHECK-NOT: piper.program
piper.mesh @mesh [dp = 2 manual]
piper.cluster @train$cluster of @train phase = ordered mesh = @mesh microbatches = 1 {
  %x = input "x" mb 0 at 0 : !x
  output "x" %x at 0 : !x
}
