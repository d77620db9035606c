// Steps that cannot be computed with parts of states.
// RUN: piper-opt %s -split-input-file -verify-diagnostics --piper-shard --piper-partition

// Of an op without a rule nobody knows what it makes of a part.
!w = tensor<4x8x8xf32>
piper.mesh @mesh [ep = 2 manual]
piper.state @experts.w parameter : !w
piper.strategy @strategy mesh = @mesh {
  // expected-note @+1 {{states are shared out here}}
  piper.do.shard <state = "experts.*"> axis = "ep" dim = 0
}
piper.step @train phase = captured mesh = @mesh inputs ["x"] dims [0] (%x: !w) {
  %w = read @experts.w : !w
  // expected-error @+1 {{aten.flip.default computes with what ranks along axis 'ep' hold parts of, but has no rule that says what becomes of its results}}
  %0 = torch "aten.flip.default"(%w, [0]) facts <pure> tag <"a.0" F> : (!w) -> !w
  output "y" %0 : !w
}

// -----

// A sum over experts would be a sum over those of one rank.
!w = tensor<4x8x8xf32>
piper.mesh @mesh [ep = 2 manual]
piper.state @experts.w parameter : !w
piper.strategy @strategy mesh = @mesh {
  // expected-note @+1 {{states are shared out here}}
  piper.do.shard <state = "experts.*"> axis = "ep" dim = 0
}
piper.step @train phase = captured mesh = @mesh inputs ["x"] dims [0] (%x: !w) {
  %w = read @experts.w : !w
  // expected-error @+1 {{aten.sum.dim_IntList computes with what ranks along axis 'ep' hold parts of, but needs the whole of dim 0 of operand of type 'tensor<2x8x8xf32>'}}
  %0 = torch "aten.sum.dim_IntList"(%w, [0]) facts <pure, rule = "e o i -> o i"> tag <"a.0" F> : (!w) -> tensor<8x8xf32>
  output "y" %0 : tensor<8x8xf32>
}

// -----

// A weight that ranks share out is multiplied by rows of its own expert: a product
// with all rows would mix parts with whole values.
!w = tensor<8x8xf32>
!x = tensor<6x8xf32>
piper.mesh @mesh [ep = 2 manual]
piper.state @experts.w parameter : !w
piper.strategy @strategy mesh = @mesh {
  // expected-note @+1 {{states are shared out here}}
  piper.do.shard <state = "experts.*"> axis = "ep" dim = 0
}
piper.step @train phase = captured mesh = @mesh inputs ["x"] dims [0] (%x: !x) {
  %w = read @experts.w : !w
  %t = torch "aten.t.default"(%w) facts <view, rule = "a b -> b a"> tag <"a.0" F> : (!w) -> !w
  // expected-error @+1 {{aten.mm.default computes with what ranks along axis 'ep' hold parts of, but mixes it with values that are whole}}
  %0 = torch "aten.mm.default"(%x, %t) facts <pure, rule = "m k, k n -> m n"> tag <"a.0" F> : (!x, !w) -> !x
  output "y" %0 : !x
}

// -----

// Of rows that arrive the number is known at run time only.
!w = tensor<4x8x8xf32>
!x = tensor<6x8xf32>
!n = tensor<1x4xi64>
piper.mesh @mesh [ep = 2 manual]
piper.state @experts.w parameter : !w
piper.strategy @strategy mesh = @mesh {
  // expected-note @+1 {{states are shared out here}}
  piper.do.shard <state = "experts.*"> axis = "ep" dim = 0
}
piper.step @train phase = captured mesh = @mesh inputs ["x", "i"] dims [0, 0] (%x: !x, %i: tensor<6x1xi64>) {
  %w = read @experts.w : !w
  %order, %counts = torch "piper.moe_sort.default"(%i, 4, 1) facts <pure, rule = "t k -> n, r e; 2 = r"> tag <"a.0" F> : (tensor<6x1xi64>) -> (tensor<6xi64>, !n)
  %received = torch "piper.moe_exchange_counts.default"(%counts) facts <pure, rule = "r e -> r e"> tag <"a.0" F> : (!n) -> !n
  %rows = torch "piper.moe_dispatch.default"(%x, %counts, %received) facts <pure, rule = "n d, r e, r e -> m d"> tag <"a.0" F> : (!x, !n, !n) -> !x
  // expected-error @+1 {{computes with what ranks along axis 'ep' hold parts of, but states a size that is known at run time as argument 1}}
  %0 = torch "aten.narrow.default"(%rows, 6) facts <view, rule = "m d -> m d; 1 = m"> tag <"a.0" F> : (!x) -> !x
  %1 = torch "piper.moe_linear.default"(%0, %w, %received) facts <pure, rule = "m i, e o i, r e -> m o"> tag <"a.0" F> : (!x, !w, !n) -> !x
  output "y" %1 : !x
}

// -----

// Rows of all experts along an axis arrive together.
!w = tensor<4x8x8xf32>
piper.mesh @mesh [ep = 2 manual]
piper.state @experts.up parameter : !w
piper.state @experts.down parameter : !w
piper.strategy @strategy mesh = @mesh {
  // expected-note @+1 {{the other directive is here}}
  piper.do.shard <state = "experts.up"> axis = "ep" dim = 0 capacity = 1.5
  // expected-error @+1 {{expected the capacity that another directive sets for axis 'ep', got 2.000000e+00}}
  piper.do.shard <state = "experts.down"> axis = "ep" dim = 0 capacity = 2.0
}

// -----

// What a directive does not select is whole: no weights of some experts beside those
// of all.
!w = tensor<4x8x8xf32>
piper.mesh @mesh [ep = 2 manual]
piper.state @experts.up parameter : !w
// expected-error @+1 {{is used together with states that ranks along axis 'ep' share out, expected a shard directive to select @experts.down, too}}
piper.state @experts.down parameter : !w
piper.strategy @strategy mesh = @mesh {
  // expected-note @+1 {{the others are shared out here}}
  piper.do.shard <state = "experts.up"> axis = "ep" dim = 0
}
piper.step @train phase = captured mesh = @mesh inputs ["x"] dims [0] (%x: !w) {
  %up = read @experts.up : !w
  %down = read @experts.down : !w
  %0 = torch "aten.mul.Tensor"(%up, %down) facts <pure, rule = "a b c, a b c -> a b c"> tag <"a.0" F> : (!w, !w) -> !w
  output "y" %0 : !w
}

// -----

// Rows stay where they are unless they are dispatched, and experts do not.
!w = tensor<4x8x8xf32>
!x = tensor<6x8xf32>
!n = tensor<1x4xi64>
piper.mesh @mesh [ep = 2 manual]
piper.state @experts.w parameter : !w
piper.strategy @strategy mesh = @mesh {
  // expected-note @+1 {{states are shared out here}}
  piper.do.shard <state = "experts.*"> axis = "ep" dim = 0
}
piper.step @train phase = captured mesh = @mesh inputs ["x", "i"] dims [0, 0] (%x: !x, %i: tensor<6x1xi64>) {
  %w = read @experts.w : !w
  %order, %counts = torch "piper.moe_sort.default"(%i, 4, 1) facts <pure, rule = "t k -> n, r e; 2 = r"> tag <"a.0" F> : (tensor<6x1xi64>) -> (tensor<6xi64>, !n)
  // expected-error @+1 {{piper.moe_linear.default computes with what ranks along axis 'ep' hold parts of, but takes rows that were not sent to the ranks of their experts, expected those of moe_dispatch}}
  %1 = torch "piper.moe_linear.default"(%x, %w, %counts) facts <pure, rule = "m i, e o i, r e -> m o"> tag <"a.0" F> : (!x, !w, !n) -> !x
  output "y" %1 : !x
}

// -----

// How many rows came is not how many were sent.
!w = tensor<4x8x8xf32>
!x = tensor<6x8xf32>
!n = tensor<1x4xi64>
piper.mesh @mesh [ep = 2 manual]
piper.state @experts.w parameter : !w
piper.strategy @strategy mesh = @mesh {
  // expected-note @+1 {{states are shared out here}}
  piper.do.shard <state = "experts.*"> axis = "ep" dim = 0
}
piper.step @train phase = captured mesh = @mesh inputs ["x", "i"] dims [0, 0] (%x: !x, %i: tensor<6x1xi64>) {
  %w = read @experts.w : !w
  %order, %counts = torch "piper.moe_sort.default"(%i, 4, 1) facts <pure, rule = "t k -> n, r e; 2 = r"> tag <"a.0" F> : (tensor<6x1xi64>) -> (tensor<6xi64>, !n)
  %received = torch "piper.moe_exchange_counts.default"(%counts) facts <pure, rule = "r e -> r e"> tag <"a.0" F> : (!n) -> !n
  %rows = torch "piper.moe_dispatch.default"(%x, %counts, %received) facts <pure, rule = "n d, r e, r e -> m d"> tag <"a.0" F> : (!x, !n, !n) -> !x
  // expected-error @+1 {{piper.moe_linear.default computes with what ranks along axis 'ep' hold parts of, but takes counts of rows that are sent, expected those of moe_exchange_counts, which are received}}
  %1 = torch "piper.moe_linear.default"(%rows, %w, %counts) facts <pure, rule = "m i, e o i, r e -> m o"> tag <"a.0" F> : (!x, !w, !n) -> !x
  output "y" %1 : !x
}
