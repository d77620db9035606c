// Steps of which ranks along an auto axis cannot compute parts.
// RUN: piper-opt %s -split-input-file -verify-diagnostics --piper-shard --piper-partition

// Of an op without a rule nobody knows what it makes of a part.
!w = tensor<4x8xf32>
piper.mesh @mesh [tp = 2 auto]
piper.state @w parameter : !w
piper.strategy @strategy mesh = @mesh {
  // expected-note @+1 {{states are shared out here}}
  piper.do.shard <state = "w"> axis = "tp" dim = 1
}
piper.step @train phase = captured mesh = @mesh inputs ["x"] dims [0] (%x: !w) {
  %w = read @w : !w
  // expected-error @+1 {{aten.flip.default computes with what ranks along axis 'tp' hold parts of, but has no rule that says what becomes of its results}}
  %0 = torch "aten.flip.default"(%w, [0]) facts <pure> tag <"a.0" F> : (!w) -> !w
  output "y" %0 : !w
}

// -----

// Of a view that splits heads, there are fewer than ranks.
!w = tensor<8x8xf32>
!x = tensor<6x8xf32>
piper.mesh @mesh [tp = 4 auto]
piper.state @w parameter : !w
piper.strategy @strategy mesh = @mesh {
  // expected-note @+1 {{states are shared out here}}
  piper.do.shard <state = "w"> axis = "tp" dim = 1
}
piper.step @train phase = captured mesh = @mesh inputs ["x"] dims [0] (%x: !x) {
  %w = read @w : !w
  %y = torch "aten.mm.default"(%x, %w) facts <pure, rule = "m k, k n -> m n; sum k"> tag <"a.0" F> : (!x, !w) -> !x
  // expected-error @+1 {{aten.view.default computes with what ranks along axis 'tp' hold parts of, but dim 1 of its result of type 'tensor<6x2x4xf32>' is not divided by 4}}
  %0 = torch "aten.view.default"(%y, [6, 2, 4]) facts <view, rule = "a b -> a b c; linear, 1.0 = a, 1.1 = b"> tag <"a.0" F> : (!x) -> tensor<6x2x4xf32>
  output "y" %0 : tensor<6x2x4xf32>
}

// -----

// Queries have a head per rank, keys that are whole have not.
!q = tensor<1x4x6x8xf32>
!k = tensor<1x2x6x8xf32>
piper.mesh @mesh [tp = 4 auto]
piper.state @q parameter : !q
piper.strategy @strategy mesh = @mesh {
  // expected-note @+1 {{states are shared out here}}
  piper.do.shard <state = "q"> axis = "tp" dim = 1
}
piper.step @train phase = captured mesh = @mesh inputs ["k"] dims [0] (%k: !k) {
  %q = read @q : !q
  // expected-error @+1 {{piper.attention.default computes with what ranks along axis 'tp' hold parts of, but dim 1 of its operand of type 'tensor<1x2x6x8xf32>' is not divided by 4}}
  %0, %1 = torch "piper.attention.default"(%q, %k, %k) facts <pure, rule = "b h s d, b h t d, b h t e -> b h u e, b h u"> tag <"a.0" F> : (!q, !k, !k) -> (!q, tensor<1x4x6xf32>)
  output "y" %0 : !q
}

// -----

// Positions of a sequence are shared out evenly.
!w = tensor<8x8xf32>
!x = tensor<6x8xf32>
piper.mesh @mesh [tp = 4 auto]
piper.state @w parameter : !w
piper.strategy @strategy mesh = @mesh {
  piper.do.shard <state = "w"> axis = "tp" dim = 1
  // expected-error @+1 {{expected a dim of input 'x' that 4 ranks of axis 'tp' divide, got dim 0 of 'tensor<6x8xf32>'}}
  piper.do.sequence axis = "tp" dims = {x = 0}
}
piper.step @train phase = captured mesh = @mesh inputs ["x"] dims [0] (%x: !x) {
  %w = read @w : !w
  %y = torch "aten.mm.default"(%x, %w) facts <pure, rule = "m k, k n -> m n; sum k"> tag <"a.0" F> : (!x, !w) -> !x
  output "y" %y : !x
}

// -----

// A dim that an input has not.
!w = tensor<8x8xf32>
piper.mesh @mesh [tp = 4 auto]
piper.state @w parameter : !w
piper.strategy @strategy mesh = @mesh {
  piper.do.shard <state = "w"> axis = "tp" dim = 1
  // expected-error @+1 {{expected a dim of input 'x' that 4 ranks of axis 'tp' divide, got dim 2 of 'tensor<8x8xf32>'}}
  piper.do.sequence axis = "tp" dims = {x = 2}
}
piper.step @train phase = captured mesh = @mesh inputs ["x"] dims [0] (%x: !w) {
  %w = read @w : !w
  %y = torch "aten.mm.default"(%x, %w) facts <pure, rule = "m k, k n -> m n; sum k"> tag <"a.0" F> : (!w, !w) -> !w
  output "y" %y : !w
}

// -----

// No input that an op uses is named.
!w = tensor<8x8xf32>
piper.mesh @mesh [tp = 4 auto]
piper.state @w parameter : !w
piper.strategy @strategy mesh = @mesh {
  piper.do.shard <state = "w"> axis = "tp" dim = 1
  // expected-error @+1 {{expected inputs whose sequence dim ops keep, of which the step has ["x"], got {y = 0 : i64}}}
  piper.do.sequence axis = "tp" dims = {y = 0}
}
piper.step @train phase = captured mesh = @mesh inputs ["x"] dims [0] (%x: !w) {
  %w = read @w : !w
  %y = torch "aten.mm.default"(%x, %w) facts <pure, rule = "m k, k n -> m n; sum k"> tag <"a.0" F> : (!w, !w) -> !w
  output "y" %y : !w
}

// -----

// Padding of joined dims would lie between what they hold.
!w = tensor<8x6xf32>
!x = tensor<6x8xf32>
piper.mesh @mesh [tp = 4 auto]
piper.state @w parameter : !w
piper.strategy @strategy mesh = @mesh {
  // expected-note @+1 {{states are shared out here}}
  piper.do.shard <state = "w"> axis = "tp" dim = 1
}
piper.step @train phase = captured mesh = @mesh inputs ["x"] dims [0] (%x: !x) {
  %w = read @w : !w
  %y = torch "aten.mm.default"(%x, %w) facts <pure, rule = "m k, k n -> m n; sum k"> tag <"a.0" F> : (!x, !w) -> tensor<6x6xf32>
  // expected-error @+1 {{aten.view.default computes with what ranks along axis 'tp' hold parts of, but dim 1 of its operand of type 'tensor<6x6xf32>' is not divided by 4}}
  %0 = torch "aten.view.default"(%y, [6, 3, 2]) facts <view, rule = "a b -> a b c; linear, 1.0 = a, 1.1 = b"> tag <"a.0" F> : (tensor<6x6xf32>) -> tensor<6x3x2xf32>
  output "y" %0 : tensor<6x3x2xf32>
}
