// Rows of experts that do not go with the part of the sequence that a rank has.
// RUN: piper-opt %s -split-input-file -verify-diagnostics --piper-shard --piper-partition

// Who is chosen is the same on all ranks, and so no choice of a rank's own tokens.
!i = tensor<2x4x3xi64>
!t = tensor<8x3xi64>
!x = tensor<2x4x8xf32>
!r = tensor<8x8xf32>
!n = tensor<24x8xf32>
!o = tensor<24xi64>
!c = tensor<1x4xi64>
!w = tensor<4x8x8xf32>
piper.mesh @mesh [cp = 2 manual, ep = 2 manual]
piper.state @w parameter : !w
piper.strategy @strategy mesh = @mesh {
  // expected-note @+1 {{ranks share out the sequence here}}
  piper.do.sequence axis = "cp" dims = {x = 1, index = 1}
  piper.do.shard <state = "w"> axis = "ep" dim = 0
}
piper.step @train phase = captured mesh = @mesh inputs ["x", "index"] dims [0, 0] (%x: !x, %index: !i) {
  %k = torch "aten.zeros.default"([8, 3]) facts <pure> tag <"a.0" F> : () -> !t
  %r = torch "aten.view.default"(%x, [8, 8]) facts <view, rule = "a b c -> a c; linear, 1.1 = c"> tag <"a.0" F> : (!x) -> !r
  %order, %counts = torch "piper.moe_sort.default"(%k, 4, 1) facts <pure, rule = "t k -> n, r e; 2 = r"> tag <"a.0" F> : (!t) -> (!o, !c)
  // expected-error @+1 {{piper.moe_permute.default expected tokens that are parts along dim 0, rows and counts of these tokens, and weights that are whole, got shard(0) by runs of 4, replicated}}
  %rows = torch "piper.moe_permute.default"(%r, %order, 3) facts <pure, rule = "t d, n -> n d"> tag <"a.0" F> : (!r, !o) -> !n
}

// -----

// Tokens that are joined with their batch in another order are others.
!i = tensor<2x4x3xi64>
!t = tensor<8x3xi64>
!x = tensor<2x4x8xf32>
!r = tensor<8x8xf32>
!n = tensor<24x8xf32>
!o = tensor<24xi64>
!c = tensor<1x4xi64>
!w = tensor<4x8x8xf32>
piper.mesh @mesh [cp = 2 manual, ep = 2 manual]
piper.state @w parameter : !w
piper.strategy @strategy mesh = @mesh {
  // expected-note @+1 {{ranks share out the sequence here}}
  piper.do.sequence axis = "cp" dims = {x = 1, index = 1}
  piper.do.shard <state = "w"> axis = "ep" dim = 0
}
piper.step @train phase = captured mesh = @mesh inputs ["x", "index"] dims [0, 0] (%x: !x, %index: !i) {
  %t = torch "aten.view.default"(%index, [8, 3]) facts <view, rule = "a b c -> a c; linear, 1.1 = c"> tag <"a.0" F> : (!i) -> !t
  %r = torch "aten.view.default"(%x, [8, 8]) facts <view, rule = "a b c -> a c; linear, 1.1 = c"> tag <"a.0" F> : (!x) -> !r
  %order, %counts = torch "piper.moe_sort.default"(%t, 4, 1) facts <pure, rule = "t k -> n, r e; 2 = r"> tag <"a.0" F> : (!t) -> (!o, !c)
  %s = torch "aten.transpose.int"(%x, 0, 1) facts <view, strided, rule = "a b c -> b a c; linear"> tag <"a.0" F> : (!x) -> tensor<4x2x8xf32>
  %cut = torch "aten.view.default"(%s, [4, 16]) facts <view, rule = "a b c -> a c; linear"> tag <"a.0" F> : (tensor<4x2x8xf32>) -> tensor<4x16xf32>
  // expected-error @+1 {{piper.moe_permute.default expected tokens that are parts along dim 0, rows and counts of these tokens, and weights that are whole, got shard(0), shard(0) in an order of rows}}
  %rows = torch "piper.moe_permute.default"(%cut, %order, 3) facts <pure, rule = "t d, n -> n d"> tag <"a.0" F> : (tensor<4x16xf32>, !o) -> tensor<24x16xf32>
}

// -----

// Row i is not that of position i, even if there are as many.
!i = tensor<2x4x3xi64>
!t = tensor<8x3xi64>
!x = tensor<2x4x8xf32>
!r = tensor<8x8xf32>
!n = tensor<24x8xf32>
!o = tensor<24xi64>
!c = tensor<1x4xi64>
!w = tensor<4x8x8xf32>
piper.mesh @mesh [cp = 2 manual, ep = 2 manual]
piper.state @w parameter : !w
piper.strategy @strategy mesh = @mesh {
  // expected-note @+1 {{ranks share out the sequence here}}
  piper.do.sequence axis = "cp" dims = {x = 1, index = 1}
  piper.do.shard <state = "w"> axis = "ep" dim = 0
}
piper.step @train phase = captured mesh = @mesh inputs ["x", "index"] dims [0, 0] (%x: !x, %index: !i) {
  %r = torch "aten.view.default"(%x, [8, 8]) facts <view, rule = "a b c -> a c; linear, 1.1 = c"> tag <"a.0" F> : (!x) -> !r
  %t = torch "aten.view.default"(%index, [8, 3]) facts <view, rule = "a b c -> a c; linear, 1.1 = c"> tag <"a.0" F> : (!i) -> !t
  %best = torch "aten.slice.Tensor"(%t, 1, 0, 1) facts <view, strided, rule = "a b -> a c; linear"> tag <"a.0" F> : (!t) -> tensor<8x1xi64>
  %order, %counts = torch "piper.moe_sort.default"(%best, 4, 1) facts <pure, rule = "t k -> n, r e; 2 = r"> tag <"a.0" F> : (tensor<8x1xi64>) -> (tensor<8xi64>, !c)
  %rows = torch "piper.moe_permute.default"(%r, %order, 1) facts <pure, rule = "t d, n -> n d"> tag <"a.0" F> : (!r, tensor<8xi64>) -> !r
  // expected-error @+1 {{aten.add.Tensor takes rows of experts, which are in an order of their own, beside positions}}
  %y = torch "aten.add.Tensor"(%rows, %r) facts <pure, rule = "a b, a b -> a b; linear"> tag <"a.0" F> : (!r, !r) -> !r
}

// -----

// How many rows an expert gets is a term of how many it gets of all.
!i = tensor<2x4x3xi64>
!t = tensor<8x3xi64>
!x = tensor<2x4x8xf32>
!r = tensor<8x8xf32>
!n = tensor<24x8xf32>
!o = tensor<24xi64>
!c = tensor<1x4xi64>
!w = tensor<4x8x8xf32>
piper.mesh @mesh [cp = 2 manual, ep = 2 manual]
piper.state @w parameter : !w
piper.strategy @strategy mesh = @mesh {
  // expected-note @+1 {{ranks share out the sequence here}}
  piper.do.sequence axis = "cp" dims = {x = 1, index = 1}
  piper.do.shard <state = "w"> axis = "ep" dim = 0
}
piper.step @train phase = captured mesh = @mesh inputs ["x", "index"] dims [0, 0] (%x: !x, %index: !i) {
  %t = torch "aten.view.default"(%index, [8, 3]) facts <view, rule = "a b c -> a c; linear, 1.1 = c"> tag <"a.0" F> : (!i) -> !t
  %r = torch "aten.view.default"(%x, [8, 8]) facts <view, rule = "a b c -> a c; linear, 1.1 = c"> tag <"a.0" F> : (!x) -> !r
  %order, %counts = torch "piper.moe_sort.default"(%t, 4, 1) facts <pure, rule = "t k -> n, r e; 2 = r"> tag <"a.0" F> : (!t) -> (!o, !c)
  // expected-error @+1 {{aten.relu.default goes on with a sum over the part of the sequence that a rank has}}
  %y = torch "aten.relu.default"(%counts) facts <pure, rule = "a b -> a b"> tag <"a.0" F> : (!c) -> !c
}

// -----

// Several rows at once.
!i = tensor<2x4x3xi64>
!t = tensor<8x3xi64>
!x = tensor<2x4x8xf32>
!r = tensor<8x8xf32>
!n = tensor<24x8xf32>
!o = tensor<24xi64>
!c = tensor<1x4xi64>
!w = tensor<4x8x8xf32>
piper.mesh @mesh [cp = 2 manual, ep = 2 manual]
piper.state @w parameter : !w
piper.strategy @strategy mesh = @mesh {
  // expected-note @+1 {{ranks share out the sequence here}}
  piper.do.sequence axis = "cp" dims = {x = 1, index = 1}
  piper.do.shard <state = "w"> axis = "ep" dim = 0
}
piper.step @train phase = captured mesh = @mesh inputs ["x", "index"] dims [0, 0] (%x: !x, %index: !i) {
  %t = torch "aten.view.default"(%index, [8, 3]) facts <view, rule = "a b c -> a c; linear, 1.1 = c"> tag <"a.0" F> : (!i) -> !t
  %r = torch "aten.view.default"(%x, [8, 8]) facts <view, rule = "a b c -> a c; linear, 1.1 = c"> tag <"a.0" F> : (!x) -> !r
  %order, %counts = torch "piper.moe_sort.default"(%t, 4, 1) facts <pure, rule = "t k -> n, r e; 2 = r"> tag <"a.0" F> : (!t) -> (!o, !c)
  %rows = torch "piper.moe_permute.default"(%r, %order, 3) facts <pure, rule = "t d, n -> n d"> tag <"a.0" F> : (!r, !o) -> !n
  // expected-error @+1 {{aten._softmax.default sees several positions of the sequence at once}}
  %y = torch "aten._softmax.default"(%rows, 0, false) facts <pure, rule = "a b -> c b"> tag <"a.0" F> : (!n) -> !n
}

// -----

// Choices of pairs of positions are no choices of tokens.
!j = tensor<4xi64>
!p = tensor<4x4xi64>
!o = tensor<16xi64>
!c = tensor<1x4xi64>
piper.mesh @mesh [cp = 2 manual]
piper.strategy @strategy mesh = @mesh {
  // expected-note @+1 {{ranks share out the sequence here}}
  piper.do.sequence axis = "cp" dims = {j = 0}
}
piper.step @train phase = captured mesh = @mesh inputs ["j"] dims [1] (%j: !j) {
  %p = torch "aten.outer.default"(%j, %j) facts <pure, rule = "a, b -> a b"> tag <"a.0" F> : (!j, !j) -> !p
  // expected-error @+1 {{piper.moe_sort.default expected tokens that are parts along dim 0, rows and counts of these tokens, and weights that are whole, got varying}}
  %order, %counts = torch "piper.moe_sort.default"(%p, 4, 1) facts <pure, rule = "t k -> n, r e; 2 = r"> tag <"a.0" F> : (!p) -> (!o, !c)
}
