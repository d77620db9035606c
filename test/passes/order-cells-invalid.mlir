// Tables that do not fit the step, or do not end.
// RUN: piper-opt %s -split-input-file -verify-diagnostics --piper-order-cells

// Each coordinate waits for the other: 0 for a gradient of microbatch 0, 1 for
// the activation of microbatch 1. Each note lies on the value that is missing.

!x = tensor<4xf32>

piper.mesh @mesh [pp = 2 unrolled]
piper.stream @pp
// expected-error @+1 {{deadlocks: every coordinate waits for another}}
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
  // expected-note @+1 {{coordinate 1 stops before cell 1F1 (number 1 of its row), which needs this value}}
  %r1 = transfer %y1 from 0 to 1 mb 1 on @pp : !x
  %z0 = run @a.1$F(%r0) mb 0 at 1 : (!x) -> !x
  %z1 = run @a.1$F(%r1) mb 1 at 1 : (!x) -> !x
  %d0 = run @a.1$B(%z0) mb 0 at 1 : (!x) -> !x
  %d1 = run @a.1$B(%z1) mb 1 at 1 : (!x) -> !x
  // expected-note @+1 {{coordinate 0 stops before cell 0B0 (number 1 of its row), which needs this value}}
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
