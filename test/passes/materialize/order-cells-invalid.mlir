// Tables that do not fit the step, or do not end.
// RUN: piper-opt %s -split-input-file -verify-diagnostics --piper-order-cells

// Each coordinate waits for the other: 0 for a gradient of microbatch 0, 1 for
// the activation of microbatch 1. Each note lies on the value that is missing.

!x = tensor<4xf32>

piper.mesh @mesh [pp = 2 unrolled]
piper.stream @pp
// expected-error @+1 {{deadlocks: cells wait for each other in a cycle}}
piper.schedule @order axis = "pp" stages = 2 microbatches = 2 ["0F0 0B0 0F1 0B1", "1F0 1F1 1B0 1B1"]
piper.chunk @a.0$F pass = F stage = 0 (%x: !x) -> !x { return %x : !x }
piper.chunk @a.1$F pass = F stage = 1 (%x: !x) -> !x { return %x : !x }
piper.chunk @a.1$B pass = B of @a.1$F stage = 1 (%x: !x) -> !x { return %x : !x }
piper.chunk @a.0$B pass = B of @a.0$F stage = 0 (%x: !x) -> !x { return %x : !x }
piper.cluster @train$cluster of @train phase = reduced mesh = @mesh order = @order microbatches = 2 {
  %x0 = input "x" mb 0 at 0 : !x
  %x1 = input "x" mb 1 at 0 : !x
  %y0 = run @a.0$F(%x0) mb 0 at 0 : (!x) -> !x
  %y1 = run @a.0$F(%x1) mb 1 at 0 : (!x) -> !x
  %r0 = transfer %y0 from 0 to 1 mb 0 on @pp : !x
  // expected-note @+1 {{coordinate 1 stops before 1F1, number 1 of its row: @a.1$F for microbatch 1 needs this value of @a.0$F for microbatch 1, which coordinate 0 runs in 0F1, number 2 of its row, behind 0B0}}
  %r1 = transfer %y1 from 0 to 1 mb 1 on @pp : !x
  %z0 = run @a.1$F(%r0) mb 0 at 1 : (!x) -> !x
  %z1 = run @a.1$F(%r1) mb 1 at 1 : (!x) -> !x
  %d0 = run @a.1$B(%z0) mb 0 at 1 : (!x) -> !x
  %d1 = run @a.1$B(%z1) mb 1 at 1 : (!x) -> !x
  // expected-note @+1 {{coordinate 0 stops before 0B0, number 1 of its row: @a.0$B for microbatch 0 needs this value of @a.1$B for microbatch 0, which coordinate 1 runs in 1B0, number 2 of its row, behind 1F1}}
  %q0 = transfer %d0 from 1 to 0 mb 0 on @pp : !x
  %q1 = transfer %d1 from 1 to 0 mb 1 on @pp : !x
  %e0 = run @a.0$B(%q0) mb 0 at 0 : (!x) -> !x
  %e1 = run @a.0$B(%q1) mb 1 at 0 : (!x) -> !x
}

// -----

// A run without a cell would never be issued.

!x = tensor<4xf32>

piper.mesh @mesh [pp = 2 unrolled]
piper.stream @pp
// expected-error @+1 {{expected a cell 0B1}}
piper.schedule @order axis = "pp" stages = 2 microbatches = 2 ["0F0 0F1 0B0", "1F0 1B0 1F1 1B1"]
piper.chunk @a.0$F pass = F stage = 0 (%x: !x) -> !x { return %x : !x }
piper.chunk @a.1$F pass = F stage = 1 (%x: !x) -> !x { return %x : !x }
piper.chunk @a.1$B pass = B of @a.1$F stage = 1 (%x: !x) -> !x { return %x : !x }
piper.chunk @a.0$B pass = B of @a.0$F stage = 0 (%x: !x) -> !x { return %x : !x }
piper.cluster @train$cluster of @train phase = reduced mesh = @mesh order = @order microbatches = 2 {
  %x0 = input "x" mb 0 at 0 : !x
  %x1 = input "x" mb 1 at 0 : !x
  %y0 = run @a.0$F(%x0) mb 0 at 0 : (!x) -> !x
  %y1 = run @a.0$F(%x1) mb 1 at 0 : (!x) -> !x
  %r0 = transfer %y0 from 0 to 1 mb 0 on @pp : !x
  %r1 = transfer %y1 from 0 to 1 mb 1 on @pp : !x
  %z0 = run @a.1$F(%r0) mb 0 at 1 : (!x) -> !x
  %z1 = run @a.1$F(%r1) mb 1 at 1 : (!x) -> !x
  %d0 = run @a.1$B(%z0) mb 0 at 1 : (!x) -> !x
  %d1 = run @a.1$B(%z1) mb 1 at 1 : (!x) -> !x
  %q0 = transfer %d0 from 1 to 0 mb 0 on @pp : !x
  %q1 = transfer %d1 from 1 to 0 mb 1 on @pp : !x
  %e0 = run @a.0$B(%q0) mb 0 at 0 : (!x) -> !x
  %e1 = run @a.0$B(%q1) mb 1 at 0 : (!x) -> !x
}

// -----

// A cell lies in the row of its home.

!x = tensor<4xf32>

piper.mesh @mesh [pp = 2 unrolled]
piper.stream @pp
// expected-error @+1 {{expected cell 0B1 in row 0, where its stage is placed, got row 1}}
piper.schedule @order axis = "pp" stages = 2 microbatches = 2 ["0F0 0F1 0B0", "1F0 1B0 0B1 1F1 1B1"]
piper.chunk @a.0$F pass = F stage = 0 (%x: !x) -> !x { return %x : !x }
piper.chunk @a.1$F pass = F stage = 1 (%x: !x) -> !x { return %x : !x }
piper.chunk @a.1$B pass = B of @a.1$F stage = 1 (%x: !x) -> !x { return %x : !x }
piper.chunk @a.0$B pass = B of @a.0$F stage = 0 (%x: !x) -> !x { return %x : !x }
piper.cluster @train$cluster of @train phase = reduced mesh = @mesh order = @order microbatches = 2 {
  %x0 = input "x" mb 0 at 0 : !x
  %x1 = input "x" mb 1 at 0 : !x
  %y0 = run @a.0$F(%x0) mb 0 at 0 : (!x) -> !x
  %y1 = run @a.0$F(%x1) mb 1 at 0 : (!x) -> !x
  %r0 = transfer %y0 from 0 to 1 mb 0 on @pp : !x
  %r1 = transfer %y1 from 0 to 1 mb 1 on @pp : !x
  %z0 = run @a.1$F(%r0) mb 0 at 1 : (!x) -> !x
  %z1 = run @a.1$F(%r1) mb 1 at 1 : (!x) -> !x
  %d0 = run @a.1$B(%z0) mb 0 at 1 : (!x) -> !x
  %d1 = run @a.1$B(%z1) mb 1 at 1 : (!x) -> !x
  %q0 = transfer %d0 from 1 to 0 mb 0 on @pp : !x
  %q1 = transfer %d1 from 1 to 0 mb 1 on @pp : !x
  %e0 = run @a.0$B(%q0) mb 0 at 0 : (!x) -> !x
  %e1 = run @a.0$B(%q1) mb 1 at 0 : (!x) -> !x
}

// -----

// A cell of a pass that the step does not have.

!x = tensor<4xf32>

piper.mesh @mesh [pp = 2 unrolled]
piper.stream @pp
// expected-error @+1 {{has a cell 0W0 in row 0 that the step does not have}}
piper.schedule @order axis = "pp" stages = 2 microbatches = 2 ["0F0 0F1 0B0 0B1 0W0", "1F0 1B0 1F1 1B1"]
piper.chunk @a.0$F pass = F stage = 0 (%x: !x) -> !x { return %x : !x }
piper.chunk @a.1$F pass = F stage = 1 (%x: !x) -> !x { return %x : !x }
piper.chunk @a.1$B pass = B of @a.1$F stage = 1 (%x: !x) -> !x { return %x : !x }
piper.chunk @a.0$B pass = B of @a.0$F stage = 0 (%x: !x) -> !x { return %x : !x }
piper.cluster @train$cluster of @train phase = reduced mesh = @mesh order = @order microbatches = 2 {
  %x0 = input "x" mb 0 at 0 : !x
  %x1 = input "x" mb 1 at 0 : !x
  %y0 = run @a.0$F(%x0) mb 0 at 0 : (!x) -> !x
  %y1 = run @a.0$F(%x1) mb 1 at 0 : (!x) -> !x
  %r0 = transfer %y0 from 0 to 1 mb 0 on @pp : !x
  %r1 = transfer %y1 from 0 to 1 mb 1 on @pp : !x
  %z0 = run @a.1$F(%r0) mb 0 at 1 : (!x) -> !x
  %z1 = run @a.1$F(%r1) mb 1 at 1 : (!x) -> !x
  %d0 = run @a.1$B(%z0) mb 0 at 1 : (!x) -> !x
  %d1 = run @a.1$B(%z1) mb 1 at 1 : (!x) -> !x
  %q0 = transfer %d0 from 1 to 0 mb 0 on @pp : !x
  %q1 = transfer %d1 from 1 to 0 mb 1 on @pp : !x
  %e0 = run @a.0$B(%q0) mb 0 at 0 : (!x) -> !x
  %e1 = run @a.0$B(%q1) mb 1 at 0 : (!x) -> !x
}

// -----

// The cycle is a shortest one: coordinate 2 waits, too, but nobody in the cycle
// waits for it.

!x = tensor<4xf32>

piper.mesh @mesh [pp = 3 unrolled]
piper.stream @pp
// expected-error @+1 {{deadlocks: cells wait for each other in a cycle}}
piper.schedule @order axis = "pp" stages = 3 microbatches = 1 ["0B0 0F0", "1F0 1B0", "2F0 2B0"]
piper.chunk @a.0$F pass = F stage = 0 (%x: !x) -> !x { return %x : !x }
piper.chunk @a.1$F pass = F stage = 1 (%x: !x) -> !x { return %x : !x }
piper.chunk @a.2$F pass = F stage = 2 (%x: !x) -> !x { return %x : !x }
piper.chunk @a.2$B pass = B of @a.2$F stage = 2 (%x: !x) -> !x { return %x : !x }
piper.chunk @a.1$B pass = B of @a.1$F stage = 1 (%x: !x) -> !x { return %x : !x }
piper.chunk @a.0$B pass = B of @a.0$F stage = 0 (%x: !x, %y: !x) -> !x { return %x : !x }
piper.cluster @train$cluster of @train phase = reduced mesh = @mesh order = @order microbatches = 1 {
  %x = input "x" mb 0 at 0 : !x
  // expected-note @+1 {{coordinate 0 stops before 0B0, number 0 of its row: @a.0$B for microbatch 0 needs this value of @a.0$F for microbatch 0, which coordinate 0 runs in 0F0, number 1 of its row, behind 0B0}}
  %y = run @a.0$F(%x) mb 0 at 0 : (!x) -> !x
  %r = transfer %y from 0 to 1 mb 0 on @pp : !x
  %z = run @a.1$F(%r) mb 0 at 1 : (!x) -> !x
  %s = transfer %z from 1 to 2 mb 0 on @pp : !x
  %u = run @a.2$F(%s) mb 0 at 2 : (!x) -> !x
  %v = run @a.2$B(%u) mb 0 at 2 : (!x) -> !x
  %p = transfer %v from 2 to 1 mb 0 on @pp : !x
  %w = run @a.1$B(%p) mb 0 at 1 : (!x) -> !x
  %q = transfer %w from 1 to 0 mb 0 on @pp : !x
  %d = run @a.0$B(%q, %y) mb 0 at 0 : (!x, !x) -> !x
}

// -----

// Cells are issued whole: two that need each other are a cycle of one row, also
// without a schedule.

!x = tensor<4xf32>

piper.mesh @mesh [pp = 1 unrolled]
piper.chunk @a.0$F pass = F stage = 0 (%x: !x) -> !x { return %x : !x }
piper.chunk @a.1$F pass = F stage = 1 (%x: !x) -> !x { return %x : !x }
piper.chunk @a.2$F pass = F stage = 0 (%x: !x) -> !x { return %x : !x }
// expected-error @+1 {{deadlocks: cells wait for each other in a cycle}}
piper.cluster @train$cluster of @train phase = reduced mesh = @mesh microbatches = 1 {
  %x = input "x" mb 0 at 0 : !x
  %y = run @a.0$F(%x) mb 0 at 0 : (!x) -> !x
  // expected-note @+1 {{coordinate 0 stops before 0F0, number 0 of its row: @a.2$F for microbatch 0 needs this value of @a.1$F for microbatch 0, which coordinate 0 runs in 1F0, number 1 of its row, behind 0F0}}
  %z = run @a.1$F(%y) mb 0 at 0 : (!x) -> !x
  %u = run @a.2$F(%z) mb 0 at 0 : (!x) -> !x
}

// -----

// What no cell makes is not missing: it is issued, and moved, where it is needed.

!x = tensor<4xf32>

piper.mesh @mesh [pp = 2 unrolled]
piper.stream @pp
piper.schedule @order axis = "pp" stages = 2 microbatches = 1 ["0F0", "1F0"]
piper.chunk @a.0$F pass = F stage = 0 (%x: !x) -> !x { return %x : !x }
piper.chunk @a.1$F pass = F stage = 1 (%x: !x) -> !x { return %x : !x }
piper.cluster @train$cluster of @train phase = reduced mesh = @mesh order = @order microbatches = 1 {
  %x = input "x" mb 0 at 0 : !x
  %i = input "y" mb 0 at 0 : !x
  %r = transfer %i from 0 to 1 mb 0 on @pp : !x
  %y = run @a.0$F(%x) mb 0 at 0 : (!x) -> !x
  %z = run @a.1$F(%r) mb 0 at 1 : (!x) -> !x
}
