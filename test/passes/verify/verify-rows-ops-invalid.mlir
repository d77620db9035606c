// Ops that take rows and counts which do not belong together.
// RUN: piper-opt %s -split-input-file -verify-diagnostics --piper-verify

// Experts take the counts that came with the rows, and not those that were sent,
!x = tensor<6x8xf32>
!r = tensor<12x8xf32>
!q = tensor<?x8xf32, #piper.layout<bound = 24, expect = 12>>
!k = tensor<?x8xf32>
!i = tensor<6x2xi64>
!n = tensor<12xi64>
!c = tensor<2x2xi64>
piper.mesh @mesh [dp = 2 manual, ep = 2 manual]
piper.stream @compute
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
piper.kernel @experts(%r: !k, %c: !c) -> !k {
  // expected-error @+1 {{piper.moe_group.default expected counts of rows that are received, got counts of rows that are sent}}
  %0 = torch "piper.moe_group.default"(%r, %c) facts <pure> : (!k, !c) -> !k
  return %0 : !k
}
piper.chunk @a.0$F1 pass = F (%r: !q, %c: !c) -> !q {
  %0 = launch @experts(%r, %c) on @compute : (!q, !c) -> !q
  return %0 : !q
}
piper.step @train phase = outlined mesh = @mesh inputs ["x", "i", "j"] dims [0, 0, 0] (%x: !x, %i: !i, %j: !i) {
  %a:3 = run @a.0$F(%x, %i) : (!x, !i) -> (!r, !n, !c)
  %c = all_to_all %a#2 dim 0 over ["ep"] as "a.0 counts" on @ep : !c -> !c
  %s:2 = host_wait %a#2, %c : !c, !c -> !piper.sizes, !piper.sizes
  %in = all_to_all %a#0 dim 0 sizes %s#0, %s#1 over ["ep"] as "a.0 dispatch" on @ep : !r -> !q
  %b = run @a.0$F1(%in, %a#2) : (!q, !c) -> !q
}

// -----

// nor those that came with others.
!x = tensor<6x8xf32>
!r = tensor<12x8xf32>
!q = tensor<?x8xf32, #piper.layout<bound = 24, expect = 12>>
!k = tensor<?x8xf32>
!i = tensor<6x2xi64>
!n = tensor<12xi64>
!c = tensor<2x2xi64>
piper.mesh @mesh [dp = 2 manual, ep = 2 manual]
piper.stream @compute
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
piper.kernel @experts(%r: !k, %c: !c) -> !k {
  // expected-error @+1 {{piper.moe_group.default expected counts of rows that are received, got counts of rows that are received of other counts}}
  %0 = torch "piper.moe_group.default"(%r, %c) facts <pure> : (!k, !c) -> !k
  return %0 : !k
}
piper.chunk @a.0$F1 pass = F (%r: !q, %c: !c) -> !q {
  %0 = launch @experts(%r, %c) on @compute : (!q, !c) -> !q
  return %0 : !q
}
piper.step @train phase = outlined mesh = @mesh inputs ["x", "i", "j"] dims [0, 0, 0] (%x: !x, %i: !i, %j: !i) {
  %a:3 = run @a.0$F(%x, %i) : (!x, !i) -> (!r, !n, !c)
  %z:3 = run @a.0$F(%x, %j) : (!x, !i) -> (!r, !n, !c)
  %c = all_to_all %a#2 dim 0 over ["ep"] as "a.0 counts" on @ep : !c -> !c
  %d = all_to_all %z#2 dim 0 over ["ep"] as "a.0 counts" on @ep : !c -> !c
  %s:2 = host_wait %a#2, %c : !c, !c -> !piper.sizes, !piper.sizes
  %in = all_to_all %a#0 dim 0 sizes %s#0, %s#1 over ["ep"] as "a.0 dispatch" on @ep : !r -> !q
  %b = run @a.0$F1(%in, %d) : (!q, !c) -> !q
}

// -----

// Ranks that hold several experts group their rows.
!x = tensor<6x8xf32>
!r = tensor<12x8xf32>
!q = tensor<?x8xf32, #piper.layout<bound = 24, expect = 12>>
!k = tensor<?x8xf32>
!i = tensor<6x2xi64>
!n = tensor<12xi64>
!c = tensor<2x2xi64>
piper.mesh @mesh [dp = 2 manual, ep = 2 manual]
piper.stream @compute
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
piper.kernel @experts(%r: !k, %c: !c) -> !k {
  // expected-error @+1 {{piper.moe_ungroup.default expected rows grouped by expert, got rows as they came}}
  %2 = torch "piper.moe_ungroup.default"(%r, %c) facts <pure> : (!k, !c) -> !k
  return %2 : !k
}
piper.chunk @a.0$F1 pass = F (%r: !q, %c: !c) -> !q {
  %0 = launch @experts(%r, %c) on @compute : (!q, !c) -> !q
  return %0 : !q
}
piper.step @train phase = outlined mesh = @mesh inputs ["x", "i", "j"] dims [0, 0, 0] (%x: !x, %i: !i, %j: !i) {
  %a:3 = run @a.0$F(%x, %i) : (!x, !i) -> (!r, !n, !c)
  %c = all_to_all %a#2 dim 0 over ["ep"] as "a.0 counts" on @ep : !c -> !c
  %s:2 = host_wait %a#2, %c : !c, !c -> !piper.sizes, !piper.sizes
  %in = all_to_all %a#0 dim 0 sizes %s#0, %s#1 over ["ep"] as "a.0 dispatch" on @ep : !r -> !q
  %b = run @a.0$F1(%in, %c) : (!q, !c) -> !q
}

// -----

// Rows in two orders do not go together.
!x = tensor<6x8xf32>
!r = tensor<12x8xf32>
!q = tensor<?x8xf32, #piper.layout<bound = 24, expect = 12>>
!k = tensor<?x8xf32>
!i = tensor<6x2xi64>
!n = tensor<12xi64>
!c = tensor<2x2xi64>
piper.mesh @mesh [dp = 2 manual, ep = 2 manual]
piper.stream @compute
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
piper.kernel @experts(%r: !k, %c: !c) -> !k {
  %0 = torch "piper.moe_group.default"(%r, %c) facts <pure> : (!k, !c) -> !k
  // expected-error @+1 {{aten.add.Tensor expected rows grouped by expert, got rows as they came}}
  %1 = torch "aten.add.Tensor"(%0, %r) facts <pure> : (!k, !k) -> !k
  return %1 : !k
}
piper.chunk @a.0$F1 pass = F (%r: !q, %c: !c) -> !q {
  %0 = launch @experts(%r, %c) on @compute : (!q, !c) -> !q
  return %0 : !q
}
piper.step @train phase = outlined mesh = @mesh inputs ["x", "i", "j"] dims [0, 0, 0] (%x: !x, %i: !i, %j: !i) {
  %a:3 = run @a.0$F(%x, %i) : (!x, !i) -> (!r, !n, !c)
  %c = all_to_all %a#2 dim 0 over ["ep"] as "a.0 counts" on @ep : !c -> !c
  %s:2 = host_wait %a#2, %c : !c, !c -> !piper.sizes, !piper.sizes
  %in = all_to_all %a#0 dim 0 sizes %s#0, %s#1 over ["ep"] as "a.0 dispatch" on @ep : !r -> !q
  %b = run @a.0$F1(%in, %c) : (!q, !c) -> !q
}

// -----

// Rows of one sort do not have the order of another.
!x = tensor<6x8xf32>
!r = tensor<12x8xf32>
!q = tensor<?x8xf32, #piper.layout<bound = 24, expect = 12>>
!k = tensor<?x8xf32>
!i = tensor<6x2xi64>
!n = tensor<12xi64>
!c = tensor<2x2xi64>
piper.mesh @mesh [dp = 2 manual, ep = 2 manual]
piper.stream @compute
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
piper.kernel @experts(%r: !k, %c: !c) -> !k {
  %0 = torch "piper.moe_group.default"(%r, %c) facts <pure> : (!k, !c) -> !k
  %1 = torch "aten.relu.default"(%0) facts <pure> : (!k) -> !k
  %2 = torch "piper.moe_ungroup.default"(%1, %c) facts <pure> : (!k, !c) -> !k
  return %2 : !k
}
piper.chunk @a.0$F1 pass = F (%r: !q, %c: !c) -> !q {
  %0 = launch @experts(%r, %c) on @compute : (!q, !c) -> !q
  return %0 : !q
}
piper.kernel @join(%r: !r, %order: !n) -> !x {
  // expected-error @+1 {{piper.moe_permute_backward.default expected rows as they are sorted before they are sent, got rows as they are sorted before they are sent of other counts}}
  %0 = torch "piper.moe_permute_backward.default"(%r, %order, 2) facts <pure> : (!r, !n) -> !x
  return %0 : !x
}
piper.chunk @a.0$F2 pass = F (%r: !r, %order: !n) -> !x {
  %0 = launch @join(%r, %order) on @compute : (!r, !n) -> !x
  return %0 : !x
}
piper.step @train phase = outlined mesh = @mesh inputs ["x", "i", "j"] dims [0, 0, 0] (%x: !x, %i: !i, %j: !i) {
  %a:3 = run @a.0$F(%x, %i) : (!x, !i) -> (!r, !n, !c)
  %z:3 = run @a.0$F(%x, %j) : (!x, !i) -> (!r, !n, !c)
  %c = all_to_all %a#2 dim 0 over ["ep"] as "a.0 counts" on @ep : !c -> !c
  %s:2 = host_wait %a#2, %c : !c, !c -> !piper.sizes, !piper.sizes
  %in = all_to_all %a#0 dim 0 sizes %s#0, %s#1 over ["ep"] as "a.0 dispatch" on @ep : !r -> !q
  %b = run @a.0$F1(%in, %c) : (!q, !c) -> !q
  %o = all_to_all %b dim 0 sizes %s#1, %s#0 over ["ep"] as "a.0 collect" on @ep : !q -> !r
  %y = run @a.0$F2(%o, %z#1) : (!r, !n) -> !x
  output "y" %y : !x
}

// -----

// Rows that were not sent back have the order of no sort.
!x = tensor<6x8xf32>
!r = tensor<12x8xf32>
!q = tensor<?x8xf32, #piper.layout<bound = 24, expect = 12>>
!k = tensor<?x8xf32>
!i = tensor<6x2xi64>
!n = tensor<12xi64>
!c = tensor<2x2xi64>
piper.mesh @mesh [dp = 2 manual, ep = 2 manual]
piper.stream @compute
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
piper.kernel @experts(%r: !k, %c: !c) -> !k {
  %0 = torch "piper.moe_group.default"(%r, %c) facts <pure> : (!k, !c) -> !k
  %1 = torch "aten.relu.default"(%0) facts <pure> : (!k) -> !k
  %2 = torch "piper.moe_ungroup.default"(%1, %c) facts <pure> : (!k, !c) -> !k
  return %2 : !k
}
piper.chunk @a.0$F1 pass = F (%r: !q, %c: !c) -> !q {
  %0 = launch @experts(%r, %c) on @compute : (!q, !c) -> !q
  return %0 : !q
}
piper.kernel @join(%r: !k, %order: !n) -> !x {
  // expected-error @+1 {{piper.moe_permute_backward.default expected rows as they are sorted before they are sent, got rows as they came}}
  %0 = torch "piper.moe_permute_backward.default"(%r, %order, 2) facts <pure> : (!k, !n) -> !x
  return %0 : !x
}
piper.chunk @a.0$F2 pass = F (%r: !q, %order: !n) -> !x {
  %0 = launch @join(%r, %order) on @compute : (!q, !n) -> !x
  return %0 : !x
}
piper.step @train phase = outlined mesh = @mesh inputs ["x", "i", "j"] dims [0, 0, 0] (%x: !x, %i: !i, %j: !i) {
  %a:3 = run @a.0$F(%x, %i) : (!x, !i) -> (!r, !n, !c)
  %c = all_to_all %a#2 dim 0 over ["ep"] as "a.0 counts" on @ep : !c -> !c
  %s:2 = host_wait %a#2, %c : !c, !c -> !piper.sizes, !piper.sizes
  %in = all_to_all %a#0 dim 0 sizes %s#0, %s#1 over ["ep"] as "a.0 dispatch" on @ep : !r -> !q
  %b = run @a.0$F1(%in, %c) : (!q, !c) -> !q
  %y = run @a.0$F2(%b, %a#1) : (!q, !n) -> !x
  output "y" %y : !x
}

// -----

// Rows that are never sent: experts of two ranks take those of one, by the counts of
// what it would send,
!x = tensor<6x8xf32>
!r = tensor<12x8xf32>
!i = tensor<6x2xi64>
!n = tensor<12xi64>
!c = tensor<2x2xi64>
piper.mesh @mesh [dp = 2 manual, ep = 2 manual]
piper.stream @compute
piper.stream @ep
piper.kernel @sort(%x: !x, %i: !i) -> (!r, !c) {
  %order, %c = torch "piper.moe_sort.default"(%i, 4, 2) facts <pure> : (!i) -> (!n, !c)
  %r = torch "piper.moe_permute.default"(%x, %order, 2) facts <pure> : (!x, !n) -> !r
  return %r, %c : !r, !c
}
piper.chunk @a.0$F pass = F (%x: !x, %i: !i) -> (!r, !c) {
  %0:2 = launch @sort(%x, %i) on @compute : (!x, !i) -> (!r, !c)
  return %0#0, %0#1 : !r, !c
}
piper.kernel @experts(%r: !r, %c: !c) -> !r {
  // expected-error @+1 {{piper.moe_group.default expected counts of rows that are received, got counts of rows that are sent}}
  %0 = torch "piper.moe_group.default"(%r, %c) facts <pure> : (!r, !c) -> !r
  return %0 : !r
}
piper.chunk @a.0$F1 pass = F (%r: !r, %c: !c) -> !r {
  %0 = launch @experts(%r, %c) on @compute : (!r, !c) -> !r
  return %0 : !r
}
piper.step @train phase = outlined mesh = @mesh inputs ["x", "i"] dims [0, 0] (%x: !x, %i: !i) {
  %a:2 = run @a.0$F(%x, %i) : (!x, !i) -> (!r, !c)
  %c = all_to_all %a#1 dim 0 over ["ep"] as "a.0 counts" on @ep : !c -> !c
  %b = run @a.0$F1(%a#0, %a#1) : (!r, !c) -> !r
}

// -----

// by the counts of what it would receive,
!x = tensor<6x8xf32>
!r = tensor<12x8xf32>
!i = tensor<6x2xi64>
!n = tensor<12xi64>
!c = tensor<2x2xi64>
piper.mesh @mesh [dp = 2 manual, ep = 2 manual]
piper.stream @compute
piper.stream @ep
piper.kernel @sort(%x: !x, %i: !i) -> (!r, !c) {
  %order, %c = torch "piper.moe_sort.default"(%i, 4, 2) facts <pure> : (!i) -> (!n, !c)
  %r = torch "piper.moe_permute.default"(%x, %order, 2) facts <pure> : (!x, !n) -> !r
  return %r, %c : !r, !c
}
piper.chunk @a.0$F pass = F (%x: !x, %i: !i) -> (!r, !c) {
  %0:2 = launch @sort(%x, %i) on @compute : (!x, !i) -> (!r, !c)
  return %0#0, %0#1 : !r, !c
}
piper.kernel @experts(%r: !r, %c: !c) -> !r {
  // expected-error @+1 {{piper.moe_group.default expected rows as they came, got rows as they are sorted before they are sent}}
  %0 = torch "piper.moe_group.default"(%r, %c) facts <pure> : (!r, !c) -> !r
  return %0 : !r
}
piper.chunk @a.0$F1 pass = F (%r: !r, %c: !c) -> !r {
  %0 = launch @experts(%r, %c) on @compute : (!r, !c) -> !r
  return %0 : !r
}
piper.step @train phase = outlined mesh = @mesh inputs ["x", "i"] dims [0, 0] (%x: !x, %i: !i) {
  %a:2 = run @a.0$F(%x, %i) : (!x, !i) -> (!r, !c)
  %c = all_to_all %a#1 dim 0 over ["ep"] as "a.0 counts" on @ep : !c -> !c
  %b = run @a.0$F1(%a#0, %c) : (!r, !c) -> !r
}

// -----

// or where ranks exchange nothing at all.
!x = tensor<6x8xf32>
!r = tensor<12x8xf32>
!i = tensor<6x2xi64>
!n = tensor<12xi64>
!c = tensor<2x2xi64>
piper.mesh @mesh [dp = 2 manual, ep = 2 manual]
piper.stream @compute
piper.stream @ep
piper.kernel @sort(%x: !x, %i: !i) -> (!r, !c) {
  %order, %c = torch "piper.moe_sort.default"(%i, 4, 2) facts <pure> : (!i) -> (!n, !c)
  %r = torch "piper.moe_permute.default"(%x, %order, 2) facts <pure> : (!x, !n) -> !r
  return %r, %c : !r, !c
}
piper.chunk @a.0$F pass = F (%x: !x, %i: !i) -> (!r, !c) {
  %0:2 = launch @sort(%x, %i) on @compute : (!x, !i) -> (!r, !c)
  return %0#0, %0#1 : !r, !c
}
piper.kernel @experts(%r: !r, %c: !c) -> !r {
  // expected-error @+1 {{piper.moe_group.default expected counts of rows that are received, got counts of rows that are sent}}
  %0 = torch "piper.moe_group.default"(%r, %c) facts <pure> : (!r, !c) -> !r
  return %0 : !r
}
piper.chunk @a.0$F1 pass = F (%r: !r, %c: !c) -> !r {
  %0 = launch @experts(%r, %c) on @compute : (!r, !c) -> !r
  return %0 : !r
}
piper.step @train phase = outlined mesh = @mesh inputs ["x", "i"] dims [0, 0] (%x: !x, %i: !i) {
  %a:2 = run @a.0$F(%x, %i) : (!x, !i) -> (!r, !c)
  %b = run @a.0$F1(%a#0, %a#1) : (!r, !c) -> !r
}
