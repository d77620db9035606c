// Rows that travel by the counts that ranks exchanged of them.
// RUN: piper-opt %s -split-input-file --piper-verify | FileCheck %s

// There and back. Counts and rows are copied between, the backward pass sorts
// again, and ranks along another axis sum rows up.
// CHECK: piper.step @train
!x = tensor<6x8xf32>
!r = tensor<12x8xf32>
!q = tensor<?x8xf32, #piper.layout<bound = 24, expect = 12>>
!k = tensor<?x8xf32>
!i = tensor<6x2xi64>
!n = tensor<12xi64>
!c = tensor<2x2xi64>
piper.mesh @mesh [dp = 2 manual, ep = 2 manual]
piper.stream @compute
piper.stream @dp
piper.stream @ep
piper.kernel @sort(%x: !x, %i: !i) -> (!r, !n, !c) {
  %order, %c = torch "piper.moe_sort.default"(%i, 4, 2) facts <pure> : (!i) -> (!n, !c)
  %r = torch "piper.moe_permute.default"(%x, %order, 2) facts <pure> : (!x, !n) -> !r
  return %r, %order, %c : !r, !n, !c
}
piper.chunk @a.0$F pass = F (%x: !x, %i: !i) -> (!r, !n, !c) {
  %0:3 = launch @sort(%x, %i) on @compute : (!x, !i) -> (!r, !n, !c)
  return %0#0, %0#1, %0#2 : !r, !n, !c
}
piper.kernel @copy(%c: !c, %r: !k) -> (!c, !k) {
  %0 = torch "aten.clone.default"(%c) facts <pure> : (!c) -> !c
  %1 = torch "aten.clone.default"(%r) facts <pure> : (!k) -> !k
  return %0, %1 : !c, !k
}
piper.kernel @experts(%r: !k, %c: !c) -> !k {
  %0 = torch "piper.moe_group.default"(%r, %c) facts <pure> : (!k, !c) -> !k
  %1 = torch "aten.relu.default"(%0) facts <pure> : (!k) -> !k
  %2 = torch "piper.moe_ungroup.default"(%1, %c) facts <pure> : (!k, !c) -> !k
  return %2 : !k
}
piper.chunk @a.0$F1 pass = F (%r: !q, %c: !c) -> !q {
  %0:2 = launch @copy(%c, %r) on @compute : (!c, !q) -> (!c, !q)
  %1 = launch @experts(%0#1, %0#0) on @compute : (!q, !c) -> !q
  return %1 : !q
}
piper.kernel @join(%r: !r, %i: !i) -> !x {
  %order, %c = torch "piper.moe_sort.default"(%i, 4, 2) facts <pure> : (!i) -> (!n, !c)
  %0 = torch "piper.moe_permute_backward.default"(%r, %order, 2) facts <pure> : (!r, !n) -> !x
  return %0 : !x
}
piper.chunk @a.0$F2 pass = F (%r: !r, %i: !i) -> !x {
  %0 = launch @join(%r, %i) on @compute : (!r, !i) -> !x
  return %0 : !x
}
piper.step @train phase = outlined mesh = @mesh inputs ["x", "i"] dims [0, 0] (%x: !x, %i: !i) {
  %a:3 = run @a.0$F(%x, %i) : (!x, !i) -> (!r, !n, !c)
  %again:3 = run @a.0$F(%x, %i) : (!x, !i) -> (!r, !n, !c)
  %c = all_to_all %a#2 dim 0 over ["ep"] as "a.0 counts" on @ep : !c -> !c
  %d = all_to_all %again#2 dim 0 over ["ep"] as "a.0 counts" on @ep : !c -> !c
  %s:2 = host_wait %a#2, %c : !c, !c -> !piper.sizes, !piper.sizes
  %in = all_to_all %again#0 dim 0 sizes %s#0, %s#1 over ["ep"] as "a.0 dispatch" on @ep : !r -> !q
  %sum = all_reduce %in over ["dp"] as "a.0 sum" on @dp : !q -> !q
  %b = run @a.0$F1(%sum, %d) : (!q, !c) -> !q
  %o = all_to_all %b dim 0 sizes %s#1, %s#0 over ["ep"] as "a.0 collect" on @ep : !q -> !r
  %y = run @a.0$F2(%o, %i) : (!r, !i) -> !x
  output "y" %y : !x
}

// -----

// Of one expert per rank rows come as they are grouped.
// CHECK: piper.step @train
!x = tensor<6x8xf32>
!r = tensor<12x8xf32>
!q = tensor<?x8xf32, #piper.layout<bound = 24, expect = 12>>
!k = tensor<?x8xf32>
!w = tensor<1x8x8xf32>
!i = tensor<6x2xi64>
!n = tensor<12xi64>
!c = tensor<2x1xi64>
piper.mesh @mesh [ep = 2 manual]
piper.stream @compute
piper.stream @ep
piper.kernel @sort(%x: !x, %i: !i) -> (!r, !c) {
  %order, %c = torch "piper.moe_sort.default"(%i, 2, 2) facts <pure> : (!i) -> (!n, !c)
  %r = torch "piper.moe_permute.default"(%x, %order, 2) facts <pure> : (!x, !n) -> !r
  return %r, %c : !r, !c
}
piper.chunk @a.0$F pass = F (%x: !x, %i: !i) -> (!r, !c) {
  %0:2 = launch @sort(%x, %i) on @compute : (!x, !i) -> (!r, !c)
  return %0#0, %0#1 : !r, !c
}
piper.kernel @experts(%r: !k, %w: !w, %c: !c) -> !k {
  %0 = torch "piper.moe_linear.default"(%r, %w, %c) facts <pure> : (!k, !w, !c) -> !k
  return %0 : !k
}
piper.chunk @a.0$F1 pass = F (%r: !q, %w: !w, %c: !c) -> !q {
  %0 = launch @experts(%r, %w, %c) on @compute : (!q, !w, !c) -> !q
  return %0 : !q
}
piper.step @train phase = outlined mesh = @mesh inputs ["x", "w", "i"] dims [0, 0, 0] (%x: !x, %w: !w, %i: !i) {
  %a:2 = run @a.0$F(%x, %i) : (!x, !i) -> (!r, !c)
  %c = all_to_all %a#1 dim 0 over ["ep"] as "a.0 counts" on @ep : !c -> !c
  %s:2 = host_wait %a#1, %c : !c, !c -> !piper.sizes, !piper.sizes
  %in = all_to_all %a#0 dim 0 sizes %s#0, %s#1 over ["ep"] as "a.0 dispatch" on @ep : !r -> !q
  %b = run @a.0$F1(%in, %w, %c) : (!q, !w, !c) -> !q
  %o = all_to_all %b dim 0 sizes %s#1, %s#0 over ["ep"] as "a.0 collect" on @ep : !q -> !r
}

// -----

// A layer that ranks do not share out sends nothing, beside one that they do.
// CHECK: piper.step @train
!x = tensor<6x8xf32>
!r = tensor<12x8xf32>
!q = tensor<?x8xf32, #piper.layout<bound = 24, expect = 12>>
!k = tensor<?x8xf32>
!i = tensor<6x2xi64>
!n = tensor<12xi64>
!c = tensor<2x2xi64>
!d = tensor<1x4xi64>
piper.mesh @mesh [ep = 2 manual]
piper.stream @compute
piper.stream @ep
piper.kernel @whole(%x: !x, %i: !i) -> !x {
  %order, %c = torch "piper.moe_sort.default"(%i, 4, 1) facts <pure> : (!i) -> (!n, !d)
  %0 = torch "piper.moe_permute.default"(%x, %order, 2) facts <pure> : (!x, !n) -> !r
  %1 = torch "piper.moe_group.default"(%0, %c) facts <pure> : (!r, !d) -> !r
  %2 = torch "piper.moe_ungroup.default"(%1, %c) facts <pure> : (!r, !d) -> !r
  %3 = torch "piper.moe_permute_backward.default"(%2, %order, 2) facts <pure> : (!r, !n) -> !x
  return %3 : !x
}
piper.kernel @sort(%x: !x, %i: !i) -> (!r, !c) {
  %order, %c = torch "piper.moe_sort.default"(%i, 4, 2) facts <pure> : (!i) -> (!n, !c)
  %r = torch "piper.moe_permute.default"(%x, %order, 2) facts <pure> : (!x, !n) -> !r
  return %r, %c : !r, !c
}
piper.chunk @a.0$F pass = F (%x: !x, %i: !i) -> (!r, !c) {
  %0 = launch @whole(%x, %i) on @compute : (!x, !i) -> !x
  %1:2 = launch @sort(%0, %i) on @compute : (!x, !i) -> (!r, !c)
  return %1#0, %1#1 : !r, !c
}
piper.kernel @experts(%r: !k, %c: !c) -> !k {
  %0 = torch "piper.moe_group.default"(%r, %c) facts <pure> : (!k, !c) -> !k
  %1 = torch "piper.moe_ungroup.default"(%0, %c) facts <pure> : (!k, !c) -> !k
  return %1 : !k
}
piper.chunk @a.0$F1 pass = F (%r: !q, %c: !c) -> !q {
  %0 = launch @experts(%r, %c) on @compute : (!q, !c) -> !q
  return %0 : !q
}
piper.step @train phase = outlined mesh = @mesh inputs ["x", "i"] dims [0, 0] (%x: !x, %i: !i) {
  %a:2 = run @a.0$F(%x, %i) : (!x, !i) -> (!r, !c)
  %c = all_to_all %a#1 dim 0 over ["ep"] as "a.0 counts" on @ep : !c -> !c
  %s:2 = host_wait %a#1, %c : !c, !c -> !piper.sizes, !piper.sizes
  %in = all_to_all %a#0 dim 0 sizes %s#0, %s#1 over ["ep"] as "a.0 dispatch" on @ep : !r -> !q
  %b = run @a.0$F1(%in, %c) : (!q, !c) -> !q
  %o = all_to_all %b dim 0 sizes %s#1, %s#0 over ["ep"] as "a.0 collect" on @ep : !q -> !r
}

// -----

// What is exchanged in equal parts, and then again, counts no rows.
// CHECK: piper.step @train
!x = tensor<4x6xf32>
piper.mesh @mesh [a = 2 manual, b = 2 manual]
piper.stream @compute
piper.stream @a
piper.stream @b
piper.step @train phase = outlined mesh = @mesh inputs ["x"] dims [0] (%x: !x) {
  %y = all_to_all %x dim 0 over ["a"] as "a.0 there" on @a : !x -> !x
  %z = all_to_all %y dim 0 over ["b"] as "a.0 on" on @b : !x -> !x
  %o = all_to_all %z dim 0 over ["b"] as "a.0 back" on @b : !x -> !x
}
