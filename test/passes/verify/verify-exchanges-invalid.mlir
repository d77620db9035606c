// Clusters whose exchanges are not those of their step.
// RUN: piper-opt %s -split-input-file -verify-diagnostics --piper-verify

// Parts are of the step's dim, although types allow the other.

!x = tensor<4x4xf32, #piper.layout<ep = varying>>
!q = tensor<?x4xf32, #piper.layout<ep = varying, bound = 8, expect = 4>>
!c = tensor<2x2xi64, #piper.layout<ep = varying>>
piper.mesh @mesh [pp = 1 unrolled, ep = 2 manual]
piper.stream @ep
piper.chunk @a.0$F pass = F stage = 0 (%x: !x, %c: !c) -> (!x, !c) { return %x, %c : !x, !c }
piper.chunk @a.0$F1 pass = F stage = 0 (%x: !q, %c: !c) -> !q { return %x : !q }
piper.chunk @a.0$F2 pass = F stage = 0 (%x: !x) -> !x { return %x : !x }
piper.step @train phase = bucketed mesh = @mesh inputs ["x", "c"] dims [0, 0] microbatches = 2 homes [[0]] (%x: !x, %c: !c) {
  %a:2 = run @a.0$F(%x, %c) : (!x, !c) -> (!x, !c)
  %r = all_to_all %a#1 dim 0 over ["ep"] as "a.0 counts" on @ep : !c -> !c
  %h:2 = host_wait %a#1, %r : !c, !c -> !piper.sizes, !piper.sizes
  %i = all_to_all %a#0 dim 0 sizes %h#0, %h#1 over ["ep"] as "a.0 dispatch" on @ep : !x -> !q
  %b = run @a.0$F1(%i, %r) : (!q, !c) -> !q
  %o = all_to_all %b dim 0 sizes %h#1, %h#0 over ["ep"] as "a.0 collect" on @ep : !q -> !x
  %d = run @a.0$F2(%o) : (!x) -> !x
}
piper.cluster @train$cluster of @train phase = ordered mesh = @mesh microbatches = 2 {
  %x0 = input "x" mb 0 at 0 : !x
  %c0 = input "c" mb 0 at 0 : !c
  %a0:2 = run @a.0$F(%x0, %c0) mb 0 at 0 : (!x, !c) -> (!x, !c)
  %r0 = all_to_all %a0#1 at [0] dim 0 over ["ep"] as "a.0 counts" mb 0 on @ep : !c -> !c
  %h0:2 = host_wait %a0#1, %r0 mb 0 at 0 : !c, !c -> !piper.sizes, !piper.sizes
  %i0 = all_to_all %a0#0 at [0] dim 0 sizes %h0#0, %h0#1 over ["ep"] as "a.0 dispatch" mb 0 on @ep : !x -> !q
  %b0 = run @a.0$F1(%i0, %r0) mb 0 at 0 : (!q, !c) -> !q
  %o0 = all_to_all %b0 at [0] dim 0 sizes %h0#1, %h0#0 over ["ep"] as "a.0 collect" mb 0 on @ep : !q -> !x
  %d0 = run @a.0$F2(%o0) mb 0 at 0 : (!x) -> !x
  %x1 = input "x" mb 1 at 0 : !x
  %c1 = input "c" mb 1 at 0 : !c
  %a1:2 = run @a.0$F(%x1, %c1) mb 1 at 0 : (!x, !c) -> (!x, !c)
  // expected-error @+1 {{expected an exchange for microbatch 1 that is in @train, got another of this kind}}
  %r1 = all_to_all %a1#1 at [0] dim 1 over ["ep"] as "a.0 counts" mb 1 on @ep : !c -> !c
  %h1:2 = host_wait %a1#1, %r1 mb 1 at 0 : !c, !c -> !piper.sizes, !piper.sizes
  %i1 = all_to_all %a1#0 at [0] dim 0 sizes %h1#0, %h1#1 over ["ep"] as "a.0 dispatch" mb 1 on @ep : !x -> !q
  %b1 = run @a.0$F1(%i1, %r1) mb 1 at 0 : (!q, !c) -> !q
  %o1 = all_to_all %b1 at [0] dim 0 sizes %h1#1, %h1#0 over ["ep"] as "a.0 collect" mb 1 on @ep : !q -> !x
  %d1 = run @a.0$F2(%o1) mb 1 at 0 : (!x) -> !x
}

// -----

// Rows are sent and received in the sizes that the step says.

!x = tensor<4x4xf32, #piper.layout<ep = varying>>
!q = tensor<?x4xf32, #piper.layout<ep = varying, bound = 8, expect = 4>>
!c = tensor<2x2xi64, #piper.layout<ep = varying>>
piper.mesh @mesh [pp = 1 unrolled, ep = 2 manual]
piper.stream @ep
piper.chunk @a.0$F pass = F stage = 0 (%x: !x, %c: !c) -> (!x, !c) { return %x, %c : !x, !c }
piper.chunk @a.0$F1 pass = F stage = 0 (%x: !q, %c: !c) -> !q { return %x : !q }
piper.chunk @a.0$F2 pass = F stage = 0 (%x: !x) -> !x { return %x : !x }
piper.step @train phase = bucketed mesh = @mesh inputs ["x", "c"] dims [0, 0] microbatches = 2 homes [[0]] (%x: !x, %c: !c) {
  %a:2 = run @a.0$F(%x, %c) : (!x, !c) -> (!x, !c)
  %r = all_to_all %a#1 dim 0 over ["ep"] as "a.0 counts" on @ep : !c -> !c
  %h:2 = host_wait %a#1, %r : !c, !c -> !piper.sizes, !piper.sizes
  %i = all_to_all %a#0 dim 0 sizes %h#0, %h#1 over ["ep"] as "a.0 dispatch" on @ep : !x -> !q
  %b = run @a.0$F1(%i, %r) : (!q, !c) -> !q
  %o = all_to_all %b dim 0 sizes %h#1, %h#0 over ["ep"] as "a.0 collect" on @ep : !q -> !x
  %d = run @a.0$F2(%o) : (!x) -> !x
}
piper.cluster @train$cluster of @train phase = ordered mesh = @mesh microbatches = 2 {
  %x0 = input "x" mb 0 at 0 : !x
  %c0 = input "c" mb 0 at 0 : !c
  %a0:2 = run @a.0$F(%x0, %c0) mb 0 at 0 : (!x, !c) -> (!x, !c)
  %r0 = all_to_all %a0#1 at [0] dim 0 over ["ep"] as "a.0 counts" mb 0 on @ep : !c -> !c
  %h0:2 = host_wait %a0#1, %r0 mb 0 at 0 : !c, !c -> !piper.sizes, !piper.sizes
  %i0 = all_to_all %a0#0 at [0] dim 0 sizes %h0#0, %h0#1 over ["ep"] as "a.0 dispatch" mb 0 on @ep : !x -> !q
  %b0 = run @a.0$F1(%i0, %r0) mb 0 at 0 : (!q, !c) -> !q
  %o0 = all_to_all %b0 at [0] dim 0 sizes %h0#1, %h0#0 over ["ep"] as "a.0 collect" mb 0 on @ep : !q -> !x
  %d0 = run @a.0$F2(%o0) mb 0 at 0 : (!x) -> !x
  %x1 = input "x" mb 1 at 0 : !x
  %c1 = input "c" mb 1 at 0 : !c
  %a1:2 = run @a.0$F(%x1, %c1) mb 1 at 0 : (!x, !c) -> (!x, !c)
  %r1 = all_to_all %a1#1 at [0] dim 0 over ["ep"] as "a.0 counts" mb 1 on @ep : !c -> !c
  %h1:2 = host_wait %a1#1, %r1 mb 1 at 0 : !c, !c -> !piper.sizes, !piper.sizes
  // expected-error @+1 {{expected an exchange for microbatch 1 that is in @train, got another of this kind}}
  %i1 = all_to_all %a1#0 at [0] dim 0 sizes %h1#1, %h1#0 over ["ep"] as "a.0 dispatch" mb 1 on @ep : !x -> !q
  %b1 = run @a.0$F1(%i1, %r1) mb 1 at 0 : (!q, !c) -> !q
  %o1 = all_to_all %b1 at [0] dim 0 sizes %h1#1, %h1#0 over ["ep"] as "a.0 collect" mb 1 on @ep : !q -> !x
  %d1 = run @a.0$F2(%o1) mb 1 at 0 : (!x) -> !x
}

// -----

// Sizes are those of the same microbatch.

!x = tensor<4x4xf32, #piper.layout<ep = varying>>
!q = tensor<?x4xf32, #piper.layout<ep = varying, bound = 8, expect = 4>>
!c = tensor<2x2xi64, #piper.layout<ep = varying>>
piper.mesh @mesh [pp = 1 unrolled, ep = 2 manual]
piper.stream @ep
piper.chunk @a.0$F pass = F stage = 0 (%x: !x, %c: !c) -> (!x, !c) { return %x, %c : !x, !c }
piper.chunk @a.0$F1 pass = F stage = 0 (%x: !q, %c: !c) -> !q { return %x : !q }
piper.chunk @a.0$F2 pass = F stage = 0 (%x: !x) -> !x { return %x : !x }
piper.step @train phase = bucketed mesh = @mesh inputs ["x", "c"] dims [0, 0] microbatches = 2 homes [[0]] (%x: !x, %c: !c) {
  %a:2 = run @a.0$F(%x, %c) : (!x, !c) -> (!x, !c)
  %r = all_to_all %a#1 dim 0 over ["ep"] as "a.0 counts" on @ep : !c -> !c
  %h:2 = host_wait %a#1, %r : !c, !c -> !piper.sizes, !piper.sizes
  %i = all_to_all %a#0 dim 0 sizes %h#0, %h#1 over ["ep"] as "a.0 dispatch" on @ep : !x -> !q
  %b = run @a.0$F1(%i, %r) : (!q, !c) -> !q
  %o = all_to_all %b dim 0 sizes %h#1, %h#0 over ["ep"] as "a.0 collect" on @ep : !q -> !x
  %d = run @a.0$F2(%o) : (!x) -> !x
}
piper.cluster @train$cluster of @train phase = ordered mesh = @mesh microbatches = 2 {
  %x0 = input "x" mb 0 at 0 : !x
  %c0 = input "c" mb 0 at 0 : !c
  %a0:2 = run @a.0$F(%x0, %c0) mb 0 at 0 : (!x, !c) -> (!x, !c)
  %r0 = all_to_all %a0#1 at [0] dim 0 over ["ep"] as "a.0 counts" mb 0 on @ep : !c -> !c
  %h0:2 = host_wait %a0#1, %r0 mb 0 at 0 : !c, !c -> !piper.sizes, !piper.sizes
  %i0 = all_to_all %a0#0 at [0] dim 0 sizes %h0#0, %h0#1 over ["ep"] as "a.0 dispatch" mb 0 on @ep : !x -> !q
  %b0 = run @a.0$F1(%i0, %r0) mb 0 at 0 : (!q, !c) -> !q
  %o0 = all_to_all %b0 at [0] dim 0 sizes %h0#1, %h0#0 over ["ep"] as "a.0 collect" mb 0 on @ep : !q -> !x
  %d0 = run @a.0$F2(%o0) mb 0 at 0 : (!x) -> !x
  %x1 = input "x" mb 1 at 0 : !x
  %c1 = input "c" mb 1 at 0 : !c
  %a1:2 = run @a.0$F(%x1, %c1) mb 1 at 0 : (!x, !c) -> (!x, !c)
  %r1 = all_to_all %a1#1 at [0] dim 0 over ["ep"] as "a.0 counts" mb 1 on @ep : !c -> !c
  %h1:2 = host_wait %a1#1, %r1 mb 1 at 0 : !c, !c -> !piper.sizes, !piper.sizes
  %i1 = all_to_all %a1#0 at [0] dim 0 sizes %h1#0, %h1#1 over ["ep"] as "a.0 dispatch" mb 1 on @ep : !x -> !q
  %b1 = run @a.0$F1(%i1, %r1) mb 1 at 0 : (!q, !c) -> !q
  // expected-error @+1 {{expected an exchange for microbatch 1 that is in @train, got another of this kind}}
  %o1 = all_to_all %b1 at [0] dim 0 sizes %h0#1, %h0#0 over ["ep"] as "a.0 collect" mb 1 on @ep : !q -> !x
  %d1 = run @a.0$F2(%o1) mb 1 at 0 : (!x) -> !x
}

// -----

// The host waits for the counts that are sent and for those received, in this
// order.

!x = tensor<4x4xf32, #piper.layout<ep = varying>>
!q = tensor<?x4xf32, #piper.layout<ep = varying, bound = 8, expect = 4>>
!c = tensor<2x2xi64, #piper.layout<ep = varying>>
piper.mesh @mesh [pp = 1 unrolled, ep = 2 manual]
piper.stream @ep
piper.chunk @a.0$F pass = F stage = 0 (%x: !x, %c: !c) -> (!x, !c) { return %x, %c : !x, !c }
piper.chunk @a.0$F1 pass = F stage = 0 (%x: !q, %c: !c) -> !q { return %x : !q }
piper.chunk @a.0$F2 pass = F stage = 0 (%x: !x) -> !x { return %x : !x }
piper.step @train phase = bucketed mesh = @mesh inputs ["x", "c"] dims [0, 0] microbatches = 2 homes [[0]] (%x: !x, %c: !c) {
  %a:2 = run @a.0$F(%x, %c) : (!x, !c) -> (!x, !c)
  %r = all_to_all %a#1 dim 0 over ["ep"] as "a.0 counts" on @ep : !c -> !c
  %h:2 = host_wait %a#1, %r : !c, !c -> !piper.sizes, !piper.sizes
  %i = all_to_all %a#0 dim 0 sizes %h#0, %h#1 over ["ep"] as "a.0 dispatch" on @ep : !x -> !q
  %b = run @a.0$F1(%i, %r) : (!q, !c) -> !q
  %o = all_to_all %b dim 0 sizes %h#1, %h#0 over ["ep"] as "a.0 collect" on @ep : !q -> !x
  %d = run @a.0$F2(%o) : (!x) -> !x
}
piper.cluster @train$cluster of @train phase = ordered mesh = @mesh microbatches = 2 {
  %x0 = input "x" mb 0 at 0 : !x
  %c0 = input "c" mb 0 at 0 : !c
  %a0:2 = run @a.0$F(%x0, %c0) mb 0 at 0 : (!x, !c) -> (!x, !c)
  %r0 = all_to_all %a0#1 at [0] dim 0 over ["ep"] as "a.0 counts" mb 0 on @ep : !c -> !c
  %h0:2 = host_wait %a0#1, %r0 mb 0 at 0 : !c, !c -> !piper.sizes, !piper.sizes
  %i0 = all_to_all %a0#0 at [0] dim 0 sizes %h0#0, %h0#1 over ["ep"] as "a.0 dispatch" mb 0 on @ep : !x -> !q
  %b0 = run @a.0$F1(%i0, %r0) mb 0 at 0 : (!q, !c) -> !q
  %o0 = all_to_all %b0 at [0] dim 0 sizes %h0#1, %h0#0 over ["ep"] as "a.0 collect" mb 0 on @ep : !q -> !x
  %d0 = run @a.0$F2(%o0) mb 0 at 0 : (!x) -> !x
  %x1 = input "x" mb 1 at 0 : !x
  %c1 = input "c" mb 1 at 0 : !c
  %a1:2 = run @a.0$F(%x1, %c1) mb 1 at 0 : (!x, !c) -> (!x, !c)
  %r1 = all_to_all %a1#1 at [0] dim 0 over ["ep"] as "a.0 counts" mb 1 on @ep : !c -> !c
  // expected-error @+1 {{expected an exchange for microbatch 1 that is in @train, got another of this kind}}
  %h1:2 = host_wait %r1, %a1#1 mb 1 at 0 : !c, !c -> !piper.sizes, !piper.sizes
  %i1 = all_to_all %a1#0 at [0] dim 0 sizes %h1#0, %h1#1 over ["ep"] as "a.0 dispatch" mb 1 on @ep : !x -> !q
  %b1 = run @a.0$F1(%i1, %r1) mb 1 at 0 : (!q, !c) -> !q
  %o1 = all_to_all %b1 at [0] dim 0 sizes %h1#1, %h1#0 over ["ep"] as "a.0 collect" mb 1 on @ep : !q -> !x
  %d1 = run @a.0$F2(%o1) mb 1 at 0 : (!x) -> !x
}

// -----

// An exchange is checked although nobody uses its result.

!x = tensor<4x4xf32, #piper.layout<ep = varying>>
!q = tensor<?x4xf32, #piper.layout<ep = varying, bound = 8, expect = 4>>
!c = tensor<2x2xi64, #piper.layout<ep = varying>>
piper.mesh @mesh [pp = 1 unrolled, ep = 2 manual]
piper.stream @ep
piper.chunk @a.0$F pass = F stage = 0 (%x: !x, %c: !c) -> (!x, !c) { return %x, %c : !x, !c }
piper.chunk @a.0$F1 pass = F stage = 0 (%x: !q, %c: !c) -> !q { return %x : !q }
piper.chunk @a.0$F2 pass = F stage = 0 (%x: !x) -> !x { return %x : !x }
piper.step @train phase = bucketed mesh = @mesh inputs ["x", "c"] dims [0, 0] microbatches = 2 homes [[0]] (%x: !x, %c: !c) {
  %a:2 = run @a.0$F(%x, %c) : (!x, !c) -> (!x, !c)
  %r = all_to_all %a#1 dim 0 over ["ep"] as "a.0 counts" on @ep : !c -> !c
  %h:2 = host_wait %a#1, %r : !c, !c -> !piper.sizes, !piper.sizes
  %i = all_to_all %a#0 dim 0 sizes %h#0, %h#1 over ["ep"] as "a.0 dispatch" on @ep : !x -> !q
  %b = run @a.0$F1(%i, %r) : (!q, !c) -> !q
  %o = all_to_all %b dim 0 sizes %h#1, %h#0 over ["ep"] as "a.0 collect" on @ep : !q -> !x
  %d = run @a.0$F2(%o) : (!x) -> !x
}
piper.cluster @train$cluster of @train phase = ordered mesh = @mesh microbatches = 2 {
  %x0 = input "x" mb 0 at 0 : !x
  %c0 = input "c" mb 0 at 0 : !c
  %a0:2 = run @a.0$F(%x0, %c0) mb 0 at 0 : (!x, !c) -> (!x, !c)
  %r0 = all_to_all %a0#1 at [0] dim 0 over ["ep"] as "a.0 counts" mb 0 on @ep : !c -> !c
  %h0:2 = host_wait %a0#1, %r0 mb 0 at 0 : !c, !c -> !piper.sizes, !piper.sizes
  %i0 = all_to_all %a0#0 at [0] dim 0 sizes %h0#0, %h0#1 over ["ep"] as "a.0 dispatch" mb 0 on @ep : !x -> !q
  %b0 = run @a.0$F1(%i0, %r0) mb 0 at 0 : (!q, !c) -> !q
  %o0 = all_to_all %b0 at [0] dim 0 sizes %h0#1, %h0#0 over ["ep"] as "a.0 collect" mb 0 on @ep : !q -> !x
  %d0 = run @a.0$F2(%o0) mb 0 at 0 : (!x) -> !x
  %x1 = input "x" mb 1 at 0 : !x
  %c1 = input "c" mb 1 at 0 : !c
  %a1:2 = run @a.0$F(%x1, %c1) mb 1 at 0 : (!x, !c) -> (!x, !c)
  %r1 = all_to_all %a1#1 at [0] dim 0 over ["ep"] as "a.0 counts" mb 1 on @ep : !c -> !c
  %h1:2 = host_wait %a1#1, %r1 mb 1 at 0 : !c, !c -> !piper.sizes, !piper.sizes
  %i1 = all_to_all %a1#0 at [0] dim 0 sizes %h1#0, %h1#1 over ["ep"] as "a.0 dispatch" mb 1 on @ep : !x -> !q
  %b1 = run @a.0$F1(%i1, %r1) mb 1 at 0 : (!q, !c) -> !q
  %o1 = all_to_all %b1 at [0] dim 0 sizes %h1#1, %h1#0 over ["ep"] as "a.0 collect" mb 1 on @ep : !q -> !x
  // expected-error @+1 {{expected an exchange for microbatch 1 that is in @train, got another of this kind}}
  %e = all_to_all %a1#0 at [0] dim 0 sizes %h1#0, %h1#1 over ["ep"] as "a.0 other" mb 1 on @ep : !x -> !q
  %d1 = run @a.0$F2(%o1) mb 1 at 0 : (!x) -> !x
}

// -----

// Once per microbatch, although nobody uses the second.

!x = tensor<4x4xf32, #piper.layout<ep = varying>>
!q = tensor<?x4xf32, #piper.layout<ep = varying, bound = 8, expect = 4>>
!c = tensor<2x2xi64, #piper.layout<ep = varying>>
piper.mesh @mesh [pp = 1 unrolled, ep = 2 manual]
piper.stream @ep
piper.chunk @a.0$F pass = F stage = 0 (%x: !x, %c: !c) -> (!x, !c) { return %x, %c : !x, !c }
piper.chunk @a.0$F1 pass = F stage = 0 (%x: !q, %c: !c) -> !q { return %x : !q }
piper.chunk @a.0$F2 pass = F stage = 0 (%x: !x) -> !x { return %x : !x }
piper.step @train phase = bucketed mesh = @mesh inputs ["x", "c"] dims [0, 0] microbatches = 2 homes [[0]] (%x: !x, %c: !c) {
  %a:2 = run @a.0$F(%x, %c) : (!x, !c) -> (!x, !c)
  %r = all_to_all %a#1 dim 0 over ["ep"] as "a.0 counts" on @ep : !c -> !c
  %h:2 = host_wait %a#1, %r : !c, !c -> !piper.sizes, !piper.sizes
  %i = all_to_all %a#0 dim 0 sizes %h#0, %h#1 over ["ep"] as "a.0 dispatch" on @ep : !x -> !q
  %b = run @a.0$F1(%i, %r) : (!q, !c) -> !q
  %o = all_to_all %b dim 0 sizes %h#1, %h#0 over ["ep"] as "a.0 collect" on @ep : !q -> !x
  %d = run @a.0$F2(%o) : (!x) -> !x
}
piper.cluster @train$cluster of @train phase = ordered mesh = @mesh microbatches = 2 {
  %x0 = input "x" mb 0 at 0 : !x
  %c0 = input "c" mb 0 at 0 : !c
  %a0:2 = run @a.0$F(%x0, %c0) mb 0 at 0 : (!x, !c) -> (!x, !c)
  %r0 = all_to_all %a0#1 at [0] dim 0 over ["ep"] as "a.0 counts" mb 0 on @ep : !c -> !c
  %h0:2 = host_wait %a0#1, %r0 mb 0 at 0 : !c, !c -> !piper.sizes, !piper.sizes
  %i0 = all_to_all %a0#0 at [0] dim 0 sizes %h0#0, %h0#1 over ["ep"] as "a.0 dispatch" mb 0 on @ep : !x -> !q
  %b0 = run @a.0$F1(%i0, %r0) mb 0 at 0 : (!q, !c) -> !q
  %o0 = all_to_all %b0 at [0] dim 0 sizes %h0#1, %h0#0 over ["ep"] as "a.0 collect" mb 0 on @ep : !q -> !x
  %d0 = run @a.0$F2(%o0) mb 0 at 0 : (!x) -> !x
  %x1 = input "x" mb 1 at 0 : !x
  %c1 = input "c" mb 1 at 0 : !c
  %a1:2 = run @a.0$F(%x1, %c1) mb 1 at 0 : (!x, !c) -> (!x, !c)
  %r1 = all_to_all %a1#1 at [0] dim 0 over ["ep"] as "a.0 counts" mb 1 on @ep : !c -> !c
  %h1:2 = host_wait %a1#1, %r1 mb 1 at 0 : !c, !c -> !piper.sizes, !piper.sizes
  // expected-note @+1 {{the first time is here}}
  %i1 = all_to_all %a1#0 at [0] dim 0 sizes %h1#0, %h1#1 over ["ep"] as "a.0 dispatch" mb 1 on @ep : !x -> !q
  %b1 = run @a.0$F1(%i1, %r1) mb 1 at 0 : (!q, !c) -> !q
  %o1 = all_to_all %b1 at [0] dim 0 sizes %h1#1, %h1#0 over ["ep"] as "a.0 collect" mb 1 on @ep : !q -> !x
  // expected-error @+1 {{expected once for microbatch 1, as in @train}}
  %e = all_to_all %a1#0 at [0] dim 0 sizes %h1#0, %h1#1 over ["ep"] as "a.0 dispatch" mb 1 on @ep : !x -> !q
  %d1 = run @a.0$F2(%o1) mb 1 at 0 : (!x) -> !x
}

// -----

// The host waits once.

!x = tensor<4x4xf32, #piper.layout<ep = varying>>
!q = tensor<?x4xf32, #piper.layout<ep = varying, bound = 8, expect = 4>>
!c = tensor<2x2xi64, #piper.layout<ep = varying>>
piper.mesh @mesh [pp = 1 unrolled, ep = 2 manual]
piper.stream @ep
piper.chunk @a.0$F pass = F stage = 0 (%x: !x, %c: !c) -> (!x, !c) { return %x, %c : !x, !c }
piper.chunk @a.0$F1 pass = F stage = 0 (%x: !q, %c: !c) -> !q { return %x : !q }
piper.chunk @a.0$F2 pass = F stage = 0 (%x: !x) -> !x { return %x : !x }
piper.step @train phase = bucketed mesh = @mesh inputs ["x", "c"] dims [0, 0] microbatches = 2 homes [[0]] (%x: !x, %c: !c) {
  %a:2 = run @a.0$F(%x, %c) : (!x, !c) -> (!x, !c)
  %r = all_to_all %a#1 dim 0 over ["ep"] as "a.0 counts" on @ep : !c -> !c
  %h:2 = host_wait %a#1, %r : !c, !c -> !piper.sizes, !piper.sizes
  %i = all_to_all %a#0 dim 0 sizes %h#0, %h#1 over ["ep"] as "a.0 dispatch" on @ep : !x -> !q
  %b = run @a.0$F1(%i, %r) : (!q, !c) -> !q
  %o = all_to_all %b dim 0 sizes %h#1, %h#0 over ["ep"] as "a.0 collect" on @ep : !q -> !x
  %d = run @a.0$F2(%o) : (!x) -> !x
}
piper.cluster @train$cluster of @train phase = ordered mesh = @mesh microbatches = 2 {
  %x0 = input "x" mb 0 at 0 : !x
  %c0 = input "c" mb 0 at 0 : !c
  %a0:2 = run @a.0$F(%x0, %c0) mb 0 at 0 : (!x, !c) -> (!x, !c)
  %r0 = all_to_all %a0#1 at [0] dim 0 over ["ep"] as "a.0 counts" mb 0 on @ep : !c -> !c
  %h0:2 = host_wait %a0#1, %r0 mb 0 at 0 : !c, !c -> !piper.sizes, !piper.sizes
  %i0 = all_to_all %a0#0 at [0] dim 0 sizes %h0#0, %h0#1 over ["ep"] as "a.0 dispatch" mb 0 on @ep : !x -> !q
  %b0 = run @a.0$F1(%i0, %r0) mb 0 at 0 : (!q, !c) -> !q
  %o0 = all_to_all %b0 at [0] dim 0 sizes %h0#1, %h0#0 over ["ep"] as "a.0 collect" mb 0 on @ep : !q -> !x
  %d0 = run @a.0$F2(%o0) mb 0 at 0 : (!x) -> !x
  %x1 = input "x" mb 1 at 0 : !x
  %c1 = input "c" mb 1 at 0 : !c
  %a1:2 = run @a.0$F(%x1, %c1) mb 1 at 0 : (!x, !c) -> (!x, !c)
  %r1 = all_to_all %a1#1 at [0] dim 0 over ["ep"] as "a.0 counts" mb 1 on @ep : !c -> !c
  // expected-note @+1 {{the first time is here}}
  %h1:2 = host_wait %a1#1, %r1 mb 1 at 0 : !c, !c -> !piper.sizes, !piper.sizes
  %i1 = all_to_all %a1#0 at [0] dim 0 sizes %h1#0, %h1#1 over ["ep"] as "a.0 dispatch" mb 1 on @ep : !x -> !q
  %b1 = run @a.0$F1(%i1, %r1) mb 1 at 0 : (!q, !c) -> !q
  %o1 = all_to_all %b1 at [0] dim 0 sizes %h1#1, %h1#0 over ["ep"] as "a.0 collect" mb 1 on @ep : !q -> !x
  // expected-error @+1 {{expected once for microbatch 1, as in @train}}
  %e:2 = host_wait %a1#1, %r1 mb 1 at 0 : !c, !c -> !piper.sizes, !piper.sizes
  %d1 = run @a.0$F2(%o1) mb 1 at 0 : (!x) -> !x
}

// -----

// An exchange is of a microbatch.

!x = tensor<4x4xf32, #piper.layout<ep = varying>>
!q = tensor<?x4xf32, #piper.layout<ep = varying, bound = 8, expect = 4>>
!c = tensor<2x2xi64, #piper.layout<ep = varying>>
piper.mesh @mesh [pp = 1 unrolled, ep = 2 manual]
piper.stream @ep
piper.chunk @a.0$F pass = F stage = 0 (%x: !x, %c: !c) -> (!x, !c) { return %x, %c : !x, !c }
piper.chunk @a.0$F1 pass = F stage = 0 (%x: !q, %c: !c) -> !q { return %x : !q }
piper.chunk @a.0$F2 pass = F stage = 0 (%x: !x) -> !x { return %x : !x }
piper.step @train phase = bucketed mesh = @mesh inputs ["x", "c"] dims [0, 0] microbatches = 2 homes [[0]] (%x: !x, %c: !c) {
  %a:2 = run @a.0$F(%x, %c) : (!x, !c) -> (!x, !c)
  %r = all_to_all %a#1 dim 0 over ["ep"] as "a.0 counts" on @ep : !c -> !c
  %h:2 = host_wait %a#1, %r : !c, !c -> !piper.sizes, !piper.sizes
  %i = all_to_all %a#0 dim 0 sizes %h#0, %h#1 over ["ep"] as "a.0 dispatch" on @ep : !x -> !q
  %b = run @a.0$F1(%i, %r) : (!q, !c) -> !q
  %o = all_to_all %b dim 0 sizes %h#1, %h#0 over ["ep"] as "a.0 collect" on @ep : !q -> !x
  %d = run @a.0$F2(%o) : (!x) -> !x
}
piper.cluster @train$cluster of @train phase = ordered mesh = @mesh microbatches = 2 {
  %x0 = input "x" mb 0 at 0 : !x
  %c0 = input "c" mb 0 at 0 : !c
  %a0:2 = run @a.0$F(%x0, %c0) mb 0 at 0 : (!x, !c) -> (!x, !c)
  %r0 = all_to_all %a0#1 at [0] dim 0 over ["ep"] as "a.0 counts" mb 0 on @ep : !c -> !c
  %h0:2 = host_wait %a0#1, %r0 mb 0 at 0 : !c, !c -> !piper.sizes, !piper.sizes
  %i0 = all_to_all %a0#0 at [0] dim 0 sizes %h0#0, %h0#1 over ["ep"] as "a.0 dispatch" mb 0 on @ep : !x -> !q
  %b0 = run @a.0$F1(%i0, %r0) mb 0 at 0 : (!q, !c) -> !q
  %o0 = all_to_all %b0 at [0] dim 0 sizes %h0#1, %h0#0 over ["ep"] as "a.0 collect" mb 0 on @ep : !q -> !x
  %d0 = run @a.0$F2(%o0) mb 0 at 0 : (!x) -> !x
  %x1 = input "x" mb 1 at 0 : !x
  %c1 = input "c" mb 1 at 0 : !c
  %a1:2 = run @a.0$F(%x1, %c1) mb 1 at 0 : (!x, !c) -> (!x, !c)
  // expected-error @+1 {{expected a microbatch below 2, got 2 : i64}}
  %r1 = all_to_all %a1#1 at [0] dim 0 over ["ep"] as "a.0 counts" mb 2 on @ep : !c -> !c
  %h1:2 = host_wait %a1#1, %r1 mb 1 at 0 : !c, !c -> !piper.sizes, !piper.sizes
  %i1 = all_to_all %a1#0 at [0] dim 0 sizes %h1#0, %h1#1 over ["ep"] as "a.0 dispatch" mb 1 on @ep : !x -> !q
  %b1 = run @a.0$F1(%i1, %r1) mb 1 at 0 : (!q, !c) -> !q
  %o1 = all_to_all %b1 at [0] dim 0 sizes %h1#1, %h1#0 over ["ep"] as "a.0 collect" mb 1 on @ep : !q -> !x
  %d1 = run @a.0$F2(%o1) mb 1 at 0 : (!x) -> !x
}

// -----

// A run takes what is exchanged for it.

!x = tensor<4x4xf32, #piper.layout<ep = varying>>
!q = tensor<?x4xf32, #piper.layout<ep = varying, bound = 8, expect = 4>>
!c = tensor<2x2xi64, #piper.layout<ep = varying>>
piper.mesh @mesh [pp = 1 unrolled, ep = 2 manual]
piper.stream @ep
piper.chunk @a.0$F pass = F stage = 0 (%x: !x, %c: !c) -> (!x, !c) { return %x, %c : !x, !c }
piper.chunk @a.0$F1 pass = F stage = 0 (%x: !q, %c: !c) -> !q { return %x : !q }
piper.chunk @a.0$F2 pass = F stage = 0 (%x: !x) -> !x { return %x : !x }
piper.step @train phase = bucketed mesh = @mesh inputs ["x", "c"] dims [0, 0] microbatches = 2 homes [[0]] (%x: !x, %c: !c) {
  %a:2 = run @a.0$F(%x, %c) : (!x, !c) -> (!x, !c)
  %r = all_to_all %a#1 dim 0 over ["ep"] as "a.0 counts" on @ep : !c -> !c
  %h:2 = host_wait %a#1, %r : !c, !c -> !piper.sizes, !piper.sizes
  %i = all_to_all %a#0 dim 0 sizes %h#0, %h#1 over ["ep"] as "a.0 dispatch" on @ep : !x -> !q
  // expected-note @+1 {{@train has it here}}
  %b = run @a.0$F1(%i, %r) : (!q, !c) -> !q
  %o = all_to_all %b dim 0 sizes %h#1, %h#0 over ["ep"] as "a.0 collect" on @ep : !q -> !x
  %d = run @a.0$F2(%o) : (!x) -> !x
}
piper.cluster @train$cluster of @train phase = ordered mesh = @mesh microbatches = 2 {
  %x0 = input "x" mb 0 at 0 : !x
  %c0 = input "c" mb 0 at 0 : !c
  %a0:2 = run @a.0$F(%x0, %c0) mb 0 at 0 : (!x, !c) -> (!x, !c)
  %r0 = all_to_all %a0#1 at [0] dim 0 over ["ep"] as "a.0 counts" mb 0 on @ep : !c -> !c
  %h0:2 = host_wait %a0#1, %r0 mb 0 at 0 : !c, !c -> !piper.sizes, !piper.sizes
  %i0 = all_to_all %a0#0 at [0] dim 0 sizes %h0#0, %h0#1 over ["ep"] as "a.0 dispatch" mb 0 on @ep : !x -> !q
  %b0 = run @a.0$F1(%i0, %r0) mb 0 at 0 : (!q, !c) -> !q
  %o0 = all_to_all %b0 at [0] dim 0 sizes %h0#1, %h0#0 over ["ep"] as "a.0 collect" mb 0 on @ep : !q -> !x
  %d0 = run @a.0$F2(%o0) mb 0 at 0 : (!x) -> !x
  %x1 = input "x" mb 1 at 0 : !x
  %c1 = input "c" mb 1 at 0 : !c
  %a1:2 = run @a.0$F(%x1, %c1) mb 1 at 0 : (!x, !c) -> (!x, !c)
  %r1 = all_to_all %a1#1 at [0] dim 0 over ["ep"] as "a.0 counts" mb 1 on @ep : !c -> !c
  %h1:2 = host_wait %a1#1, %r1 mb 1 at 0 : !c, !c -> !piper.sizes, !piper.sizes
  %i1 = all_to_all %a1#0 at [0] dim 0 sizes %h1#0, %h1#1 over ["ep"] as "a.0 dispatch" mb 1 on @ep : !x -> !q
  // expected-error @+1 {{expected operand 1 to be result 0 of 'piper.all_to_all'}}
  %b1 = run @a.0$F1(%i1, %a1#1) mb 1 at 0 : (!q, !c) -> !q
  %o1 = all_to_all %b1 at [0] dim 0 sizes %h1#1, %h1#0 over ["ep"] as "a.0 collect" mb 1 on @ep : !q -> !x
  %d1 = run @a.0$F2(%o1) mb 1 at 0 : (!x) -> !x
}
