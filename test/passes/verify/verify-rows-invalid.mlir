// Rows that do not travel by the counts that ranks exchanged of them.
// RUN: piper-opt %s -split-input-file -verify-diagnostics --piper-verify

// What is not exchanged says nothing of rows that come.
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
piper.step @train phase = outlined mesh = @mesh inputs ["x", "i", "j"] dims [0, 0, 0] (%x: !x, %i: !i, %j: !i) {
  %a:3 = run @a.0$F(%x, %i) : (!x, !i) -> (!r, !n, !c)
  %s:2 = host_wait %a#2, %a#2 : !c, !c -> !piper.sizes, !piper.sizes
  // expected-error @+1 {{'piper.all_to_all' op expected sizes of counts and of what an all_to_all makes of these counts, got others}}
  %in = all_to_all %a#0 dim 0 sizes %s#0, %s#1 over ["ep"] as "a.0 dispatch" on @ep : !r -> !q
}

// -----

// Counts of other rows were exchanged.
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
piper.step @train phase = outlined mesh = @mesh inputs ["x", "i", "j"] dims [0, 0, 0] (%x: !x, %i: !i, %j: !i) {
  %a:3 = run @a.0$F(%x, %i) : (!x, !i) -> (!r, !n, !c)
  %z:3 = run @a.0$F(%x, %j) : (!x, !i) -> (!r, !n, !c)
  %d = all_to_all %z#2 dim 0 over ["ep"] as "a.0 counts" on @ep : !c -> !c
  %s:2 = host_wait %a#2, %d : !c, !c -> !piper.sizes, !piper.sizes
  // expected-error @+1 {{'piper.all_to_all' op expected sizes of counts and of what an all_to_all makes of these counts, got others}}
  %in = all_to_all %a#0 dim 0 sizes %s#0, %s#1 over ["ep"] as "a.0 dispatch" on @ep : !r -> !q
}

// -----

// Counts are exchanged once: another exchange would give them back.
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
piper.step @train phase = outlined mesh = @mesh inputs ["x", "i", "j"] dims [0, 0, 0] (%x: !x, %i: !i, %j: !i) {
  %a:3 = run @a.0$F(%x, %i) : (!x, !i) -> (!r, !n, !c)
  %c = all_to_all %a#2 dim 0 over ["ep"] as "a.0 counts" on @ep : !c -> !c
  // expected-error @+1 {{'piper.all_to_all' op expected counts of rows that are sent, got those that another all_to_all makes}}
  %d = all_to_all %c dim 0 over ["ep"] as "a.0 counts" on @ep : !c -> !c
  %s:2 = host_wait %c, %d : !c, !c -> !piper.sizes, !piper.sizes
  %in = all_to_all %a#0 dim 0 sizes %s#0, %s#1 over ["ep"] as "a.0 dispatch" on @ep : !r -> !q
}

// -----

// Sorted rows are no equal parts.
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
piper.step @train phase = outlined mesh = @mesh inputs ["x", "i", "j"] dims [0, 0, 0] (%x: !x, %i: !i, %j: !i) {
  %a:3 = run @a.0$F(%x, %i) : (!x, !i) -> (!r, !n, !c)
  // expected-error @+1 {{'piper.all_to_all' op expected sizes of the rows that it exchanges}}
  %in = all_to_all %a#0 dim 0 over ["ep"] as "a.0 dispatch" on @ep : !r -> !r
}

// -----

// Rows go where their counts went.
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
piper.step @train phase = outlined mesh = @mesh inputs ["x", "i", "j"] dims [0, 0, 0] (%x: !x, %i: !i, %j: !i) {
  %a:3 = run @a.0$F(%x, %i) : (!x, !i) -> (!r, !n, !c)
  // expected-note @+1 {{the counts are exchanged here}}
  %c = all_to_all %a#2 dim 0 over ["ep"] as "a.0 counts" on @ep : !c -> !c
  %s:2 = host_wait %a#2, %c : !c, !c -> !piper.sizes, !piper.sizes
  // expected-error @+1 {{'piper.all_to_all' op expected axes ["ep"], over which ranks exchange the counts of its rows, got ["dp"]}}
  %in = all_to_all %a#0 dim 0 sizes %s#0, %s#1 over ["dp"] as "a.0 dispatch" on @ep : !r -> !q
}

// -----

// Counts are by rank along dim 0.
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
piper.step @train phase = outlined mesh = @mesh inputs ["x", "i", "j"] dims [0, 0, 0] (%x: !x, %i: !i, %j: !i) {
  %a:3 = run @a.0$F(%x, %i) : (!x, !i) -> (!r, !n, !c)
  // expected-error @+1 {{'piper.all_to_all' op expected dim 0, which counts rows by rank, got dim 1}}
  %c = all_to_all %a#2 dim 1 over ["ep"] as "a.0 counts" on @ep : !c -> !c
  %s:2 = host_wait %a#2, %c : !c, !c -> !piper.sizes, !piper.sizes
  %in = all_to_all %a#0 dim 0 sizes %s#0, %s#1 over ["ep"] as "a.0 dispatch" on @ep : !r -> !q
}

// -----

// Rows and counts are of one sort.
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
piper.step @train phase = outlined mesh = @mesh inputs ["x", "i", "j"] dims [0, 0, 0] (%x: !x, %i: !i, %j: !i) {
  %a:3 = run @a.0$F(%x, %i) : (!x, !i) -> (!r, !n, !c)
  %z:3 = run @a.0$F(%x, %j) : (!x, !i) -> (!r, !n, !c)
  %c = all_to_all %a#2 dim 0 over ["ep"] as "a.0 counts" on @ep : !c -> !c
  %s:2 = host_wait %a#2, %c : !c, !c -> !piper.sizes, !piper.sizes
  // expected-error @+1 {{'piper.all_to_all' op expected rows as they are sorted before they are sent, got rows as they are sorted before they are sent of other counts}}
  %in = all_to_all %z#0 dim 0 sizes %s#0, %s#1 over ["ep"] as "a.0 dispatch" on @ep : !r -> !q
}

// -----

// What came once is not sent on in the same sizes.
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
piper.step @train phase = outlined mesh = @mesh inputs ["x", "i", "j"] dims [0, 0, 0] (%x: !x, %i: !i, %j: !i) {
  %a:3 = run @a.0$F(%x, %i) : (!x, !i) -> (!r, !n, !c)
  %c = all_to_all %a#2 dim 0 over ["ep"] as "a.0 counts" on @ep : !c -> !c
  %s:2 = host_wait %a#2, %c : !c, !c -> !piper.sizes, !piper.sizes
  %in = all_to_all %a#0 dim 0 sizes %s#0, %s#1 over ["ep"] as "a.0 dispatch" on @ep : !r -> !q
  // expected-error @+1 {{'piper.all_to_all' op expected rows as they are sorted before they are sent, got rows as they came}}
  %in1 = all_to_all %in dim 0 sizes %s#0, %s#1 over ["ep"] as "a.0 dispatch" on @ep : !q -> !q
}

// -----

// Rows go back in the order in which they came: in sizes swapped, and not grouped.
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
  %b = run @a.0$F1(%in, %c) : (!q, !c) -> !q
  // expected-error @+1 {{'piper.all_to_all' op expected rows as they came, got rows grouped by expert}}
  %o = all_to_all %b dim 0 sizes %s#1, %s#0 over ["ep"] as "a.0 collect" on @ep : !q -> !r
}

// -----

// Only an all_to_all gives each rank its rows back.
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
  %b = run @a.0$F1(%in, %c) : (!q, !c) -> !q
  // expected-error @+1 {{'piper.all_gather' op expected values that are the same rows on all ranks of ["ep"], got rows grouped by expert, which an all_to_all sends back}}
  %o = all_gather %b dim 0 over ["ep"] as "a.0 collect" on @ep : !q -> !r
}

// -----

// The way back in the sizes of the way there.
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
piper.step @train phase = outlined mesh = @mesh inputs ["x", "i", "j"] dims [0, 0, 0] (%x: !x, %i: !i, %j: !i) {
  %a:3 = run @a.0$F(%x, %i) : (!x, !i) -> (!r, !n, !c)
  %c = all_to_all %a#2 dim 0 over ["ep"] as "a.0 counts" on @ep : !c -> !c
  %s:2 = host_wait %a#2, %c : !c, !c -> !piper.sizes, !piper.sizes
  %in = all_to_all %a#0 dim 0 sizes %s#0, %s#1 over ["ep"] as "a.0 dispatch" on @ep : !r -> !q
  %b = run @a.0$F1(%in, %c) : (!q, !c) -> !q
  // expected-error @+1 {{'piper.all_to_all' op expected rows as they are sorted before they are sent, got rows as they came}}
  %o = all_to_all %b dim 0 sizes %s#0, %s#1 over ["ep"] as "a.0 collect" on @ep : !q -> !r
}
