// Where the host waits for counts, what these do not need is a piece of its own, which
// comes between their exchange and the wait.

// RUN: piper-opt %s -split-input-file --piper-outline-chunks | FileCheck %s

// Two layers in one chunk. What the first counts do not need comes before the first wait,
// even what the second ones need; what those do not need comes before the second.
!x = tensor<4x8xf32>
!c = tensor<2x2xi64>
piper.mesh @mesh [ep = 2 manual]
piper.stream @ep
// CHECK-LABEL: piper.step @train
// CHECK: %[[F:.*]]:2 = run @a.0$F(%x)
// CHECK-NEXT: %[[C:.*]] = all_to_all %[[F]]#1 {{.*}} as "a.0 counts"
// CHECK-NEXT: %[[F1:.*]]:2 = run @a.0$F1(%[[F]]#0)
// CHECK-NEXT: %[[S:.*]]:2 = host_wait %[[F]]#1, %[[C]]
// CHECK-NEXT: %[[R:.*]] = all_to_all %[[F1]]#1 dim 0 sizes %[[S]]#0, %[[S]]#1 {{.*}} as "a.0 dispatch"
// CHECK-NEXT: %[[F2:.*]]:2 = run @a.0$F2(%[[F1]]#0, %[[R]])
// CHECK-NEXT: %[[C2:.*]] = all_to_all %[[F2]]#1 {{.*}} as "a.0 counts"
// CHECK-NEXT: %[[F3:.*]]:2 = run @a.0$F3(%[[F2]]#0)
// CHECK-NEXT: %[[S2:.*]]:2 = host_wait %[[F2]]#1, %[[C2]]
// CHECK-NEXT: %[[R2:.*]] = all_to_all %[[F3]]#1 dim 0 sizes %[[S2]]#0, %[[S2]]#1 {{.*}} as "a.0 dispatch"
// CHECK-NEXT: run @a.0$F4(%[[F3]]#0, %[[R2]])
piper.step @train phase = captured mesh = @mesh inputs ["x"] dims [0] (%x: !x) {
  %h = torch "aten.tanh.default"(%x) facts <pure> tag <"a.0" F> : (!x) -> !x
  %shared = torch "aten.relu.default"(%h) facts <pure> tag <"a.0" F> : (!x) -> !x
  %rows = torch "aten.neg.default"(%h) facts <pure> tag <"a.0" F> : (!x) -> !x
  %c = torch "mine.count.default"(%h) facts <pure> tag <"a.0" F> : (!x) -> !c
  %r = all_to_all %c dim 0 over ["ep"] as "a.0 counts" on @ep {tag = #piper.tag<"a.0" F>} : !c -> !c
  %s:2 = host_wait %c, %r {tag = #piper.tag<"a.0" F>} : !c, !c -> !piper.sizes, !piper.sizes
  %in = all_to_all %rows dim 0 sizes %s#0, %s#1 over ["ep"] as "a.0 dispatch" on @ep {tag = #piper.tag<"a.0" F>} : !x -> !x
  %y = torch "aten.add.Tensor"(%shared, %in) facts <pure> tag <"a.0" F> : (!x, !x) -> !x
  %shared2 = torch "aten.relu.default"(%y) facts <pure> tag <"a.0" F> : (!x) -> !x
  %rows2 = torch "aten.neg.default"(%y) facts <pure> tag <"a.0" F> : (!x) -> !x
  %c2 = torch "mine.count.default"(%y) facts <pure> tag <"a.0" F> : (!x) -> !c
  %r2 = all_to_all %c2 dim 0 over ["ep"] as "a.0 counts" on @ep {tag = #piper.tag<"a.0" F>} : !c -> !c
  %s2:2 = host_wait %c2, %r2 {tag = #piper.tag<"a.0" F>} : !c, !c -> !piper.sizes, !piper.sizes
  %in2 = all_to_all %rows2 dim 0 sizes %s2#0, %s2#1 over ["ep"] as "a.0 dispatch" on @ep {tag = #piper.tag<"a.0" F>} : !x -> !x
  %y2 = torch "aten.add.Tensor"(%shared2, %in2) facts <pure> tag <"a.0" F> : (!x, !x) -> !x
  output "y" %y2 : !x
}

// -----

// Counts of two branches. The host waits for the second ones with the rows of both.
!x = tensor<4x8xf32>
!c = tensor<2x2xi64>
piper.mesh @mesh [ep = 2 manual]
piper.stream @ep
// CHECK-LABEL: piper.step @train
// CHECK: %[[F:.*]] = run @a.0$F(%x)
// CHECK-NEXT: %[[C:.*]] = all_to_all %[[F]] {{.*}} as "a.0 counts"
// CHECK-NEXT: %[[F1:.*]] = run @a.0$F1(%x)
// CHECK-NEXT: %[[S:.*]]:2 = host_wait %[[F]], %[[C]]
// CHECK-NEXT: %[[C2:.*]] = all_to_all %[[F1]] {{.*}} as "a.0 counts"
// CHECK-NEXT: %[[F2:.*]]:2 = run @a.0$F2(%x)
// CHECK-NEXT: all_to_all %[[F2]]#0 dim 0 sizes %[[S]]#0, %[[S]]#1
// CHECK-NEXT: %[[S2:.*]]:2 = host_wait %[[F1]], %[[C2]]
// CHECK-NEXT: all_to_all %[[F2]]#1 dim 0 sizes %[[S2]]#0, %[[S2]]#1
// CHECK-NEXT: run @a.0$F3(
piper.step @train phase = captured mesh = @mesh inputs ["x"] dims [0] (%x: !x) {
  %rows = torch "aten.neg.default"(%x) facts <pure> tag <"a.0" F> : (!x) -> !x
  %c = torch "mine.count.default"(%x) facts <pure> tag <"a.0" F> : (!x) -> !c
  %r = all_to_all %c dim 0 over ["ep"] as "a.0 counts" on @ep {tag = #piper.tag<"a.0" F>} : !c -> !c
  %s:2 = host_wait %c, %r {tag = #piper.tag<"a.0" F>} : !c, !c -> !piper.sizes, !piper.sizes
  %in = all_to_all %rows dim 0 sizes %s#0, %s#1 over ["ep"] as "a.0 dispatch" on @ep {tag = #piper.tag<"a.0" F>} : !x -> !x
  %rows2 = torch "aten.relu.default"(%x) facts <pure> tag <"a.0" F> : (!x) -> !x
  %c2 = torch "mine.count_again.default"(%x) facts <pure> tag <"a.0" F> : (!x) -> !c
  %r2 = all_to_all %c2 dim 0 over ["ep"] as "a.0 counts" on @ep {tag = #piper.tag<"a.0" F>} : !c -> !c
  %s2:2 = host_wait %c2, %r2 {tag = #piper.tag<"a.0" F>} : !c, !c -> !piper.sizes, !piper.sizes
  %in2 = all_to_all %rows2 dim 0 sizes %s2#0, %s2#1 over ["ep"] as "a.0 dispatch" on @ep {tag = #piper.tag<"a.0" F>} : !x -> !x
  %y = torch "aten.add.Tensor"(%in, %in2) facts <pure> tag <"a.0" F> : (!x, !x) -> !x
  output "y" %y : !x
}

// -----

// There is no such piece where counts need all, or all but views.
!x = tensor<4x8xf32>
!c = tensor<2x2xi64>
piper.mesh @mesh [ep = 2 manual]
piper.stream @ep
// CHECK-LABEL: piper.step @train
// CHECK: %[[F:.*]]:2 = run @a.0$F(%x)
// CHECK-NEXT: %[[C:.*]] = all_to_all %[[F]]#1 {{.*}} as "a.0 counts"
// CHECK-NEXT: %[[S:.*]]:2 = host_wait %[[F]]#1, %[[C]]
// CHECK-NEXT: %[[R:.*]] = all_to_all %[[F]]#0 dim 0 sizes
// CHECK-NEXT: run @a.0$F1(%[[R]])
piper.step @train phase = captured mesh = @mesh inputs ["x"] dims [0] (%x: !x) {
  %h = torch "aten.relu.default"(%x) facts <pure> tag <"a.0" F> : (!x) -> !x
  %rows = torch "aten.view.default"(%h, [4, 8]) facts <view> tag <"a.0" F> : (!x) -> !x
  %c = torch "mine.count.default"(%h) facts <pure> tag <"a.0" F> : (!x) -> !c
  %r = all_to_all %c dim 0 over ["ep"] as "a.0 counts" on @ep {tag = #piper.tag<"a.0" F>} : !c -> !c
  %s:2 = host_wait %c, %r {tag = #piper.tag<"a.0" F>} : !c, !c -> !piper.sizes, !piper.sizes
  %in = all_to_all %rows dim 0 sizes %s#0, %s#1 over ["ep"] as "a.0 dispatch" on @ep {tag = #piper.tag<"a.0" F>} : !x -> !x
  %y = torch "aten.neg.default"(%in) facts <pure> tag <"a.0" F> : (!x) -> !x
  output "y" %y : !x
}
