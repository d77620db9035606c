// Schedules of another step or mesh.
// RUN: piper-opt %s -split-input-file -verify-diagnostics --piper-order

!x = tensor<4xf32>
piper.mesh @mesh [pp = 2 unrolled]
piper.strategy @strategy mesh = @mesh {
  // expected-error @+1 {{expected a schedule, got @table}}
  piper.do.order @table
}
piper.schedule @order axis = "pp" stages = 2 microbatches = 2 ["0F0 0F1", "1F0 1F1"]
piper.chunk @a.0$F pass = F stage = 0 (%x: !x) -> !x { return %x : !x }
piper.chunk @a.1$F pass = F stage = 1 (%x: !x) -> !x { return %x : !x }
piper.step @train phase = outlined mesh = @mesh inputs ["x"] dims [0] microbatches = 2 (%x: !x) {}

// -----

!x = tensor<4xf32>
piper.mesh @mesh [pp = 2 unrolled]
piper.strategy @strategy mesh = @mesh {
  // expected-error @+1 {{expected a schedule of 2 microbatches, got 3}}
  piper.do.order @order
}
piper.schedule @order axis = "pp" stages = 2 microbatches = 3 ["0F0 0F1", "1F0 1F1"]
piper.chunk @a.0$F pass = F stage = 0 (%x: !x) -> !x { return %x : !x }
piper.chunk @a.1$F pass = F stage = 1 (%x: !x) -> !x { return %x : !x }
piper.step @train phase = outlined mesh = @mesh inputs ["x"] dims [0] microbatches = 2 (%x: !x) {}

// -----

!x = tensor<4xf32>
piper.mesh @mesh [pp = 2 unrolled]
piper.strategy @strategy mesh = @mesh {
  // expected-error @+1 {{expected a schedule of 2 stages, got 4}}
  piper.do.order @order
}
piper.schedule @order axis = "pp" stages = 4 microbatches = 2 ["0F0 0F1", "1F0 1F1"]
piper.chunk @a.0$F pass = F stage = 0 (%x: !x) -> !x { return %x : !x }
piper.chunk @a.1$F pass = F stage = 1 (%x: !x) -> !x { return %x : !x }
piper.step @train phase = outlined mesh = @mesh inputs ["x"] dims [0] microbatches = 2 (%x: !x) {}

// -----

!x = tensor<4xf32>
piper.mesh @mesh [pp = 2 unrolled]
piper.strategy @strategy mesh = @mesh {
  // expected-error @+1 {{expected a row for each of 2 coordinates, got 1}}
  piper.do.order @order
}
piper.schedule @order axis = "pp" stages = 2 microbatches = 2 ["0F0 0F1"]
piper.chunk @a.0$F pass = F stage = 0 (%x: !x) -> !x { return %x : !x }
piper.chunk @a.1$F pass = F stage = 1 (%x: !x) -> !x { return %x : !x }
piper.step @train phase = outlined mesh = @mesh inputs ["x"] dims [0] microbatches = 2 (%x: !x) {}

// -----

// A step has one order.
!x = tensor<4xf32>
piper.mesh @mesh [pp = 2 unrolled]
piper.strategy @strategy mesh = @mesh {
  // expected-note @+1 {{the other directive is here}}
  piper.do.order @order
  // expected-error @+1 {{sets order to @other, which another directive sets to @order}}
  piper.do.order @other
}
piper.schedule @order axis = "pp" stages = 2 microbatches = 2 ["0F0 0F1", "1F0 1F1"]
piper.schedule @other axis = "pp" stages = 2 microbatches = 2 ["0F0 0F1", "1F0 1F1"]
piper.chunk @a.0$F pass = F stage = 0 (%x: !x) -> !x { return %x : !x }
piper.chunk @a.1$F pass = F stage = 1 (%x: !x) -> !x { return %x : !x }
piper.step @train phase = outlined mesh = @mesh inputs ["x"] dims [0] microbatches = 2 (%x: !x) {}

// -----

// Several coordinates do not order themselves.
!x = tensor<4xf32>
piper.mesh @mesh [pp = 2 unrolled]
// expected-error @+1 {{expected an order directive: several coordinates need a schedule}}
piper.step @train phase = outlined mesh = @mesh inputs ["x"] dims [0] (%x: !x) {}

// -----

// Half a backward is none, and one with its halves is two.
!x = tensor<4xf32>
piper.mesh @mesh [pp = 1 unrolled]
piper.strategy @strategy mesh = @mesh {
  // expected-error @+1 {{expected a schedule with either 0B0 or both 0I0 and 0W0}}
  piper.do.order @order
}
piper.schedule @order axis = "pp" stages = 1 microbatches = 1 ["0F0 0I0"]
piper.chunk @a.0$F pass = F stage = 0 (%x: !x) -> !x { return %x : !x }
piper.step @train phase = outlined mesh = @mesh inputs ["x"] dims [0] microbatches = 1 (%x: !x) {}

// -----

!x = tensor<4xf32>
piper.mesh @mesh [pp = 1 unrolled]
piper.strategy @strategy mesh = @mesh {
  // expected-error @+1 {{expected a schedule with either 0B0 or both 0I0 and 0W0}}
  piper.do.order @order
}
piper.schedule @order axis = "pp" stages = 1 microbatches = 1 ["0F0 0B0 0I0 0W0"]
piper.chunk @a.0$F pass = F stage = 0 (%x: !x) -> !x { return %x : !x }
piper.step @train phase = outlined mesh = @mesh inputs ["x"] dims [0] microbatches = 1 (%x: !x) {}
