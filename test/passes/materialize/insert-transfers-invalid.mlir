// Values that cannot move to where they are used.
// RUN: piper-opt %s -split-input-file -verify-diagnostics --piper-insert-transfers

// Who receives rows of experts would have to know how many.
!q = tensor<?x8xf32, #piper.layout<bound = 8, expect = 4>>
piper.mesh @mesh [pp = 2 unrolled]
piper.chunk @a.0$F pass = F stage = 0 (%x: !q) -> !q { return %x : !q }
piper.chunk @b.0$F pass = F stage = 1 (%x: !q) -> !q { return %x : !q }
piper.cluster @train$cluster of @train phase = unrolled mesh = @mesh microbatches = 1 {
  %x = input "x" mb 0 at 0 : !q
  // expected-note @+1 {{it is made here}}
  %a = run @a.0$F(%x) mb 0 at 0 : (!q) -> !q
  // expected-error @+1 {{'piper.run' op expected operand 0, of which only the run knows the size, to arise at its coordinate 1, got one of coordinate 0; annotate what sends rows to experts and what takes them as one chunk, or place both on one stage}}
  %b = run @b.0$F(%a) mb 0 at 1 : (!q) -> !q
}
