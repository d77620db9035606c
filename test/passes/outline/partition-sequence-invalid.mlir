// Steps that a rank cannot compute with its part of the sequence.
// RUN: piper-opt %s -split-input-file -verify-diagnostics --piper-partition

// What an op without a rule sees of the sequence nobody knows.
!i = tensor<3x4xi64>
piper.mesh @mesh [cp = 2 manual]
piper.strategy @strategy mesh = @mesh {
  // expected-note @+1 {{ranks share out the sequence here}}
  piper.do.sequence axis = "cp" dims = {ids = 1}
}
piper.step @train phase = captured mesh = @mesh inputs ["ids"] dims [0] (%ids: !i) {
  // expected-error @+1 {{aten.roll.default has no rule that says whether it sees one position at a time}}
  %0 = torch "aten.roll.default"(%ids, [-1], [1]) facts <pure> tag <"a.0" F> : (!i) -> !i
  output "y" %0 : !i
}

// -----

// A product over positions would be one over those of a rank.
!x = tensor<3x4xf32>
piper.mesh @mesh [cp = 2 manual]
piper.strategy @strategy mesh = @mesh {
  // expected-note @+1 {{ranks share out the sequence here}}
  piper.do.sequence axis = "cp" dims = {x = 1}
}
piper.step @train phase = captured mesh = @mesh inputs ["x"] dims [0] (%x: !x) {
  // expected-error @+1 {{aten._softmax.default sees several positions of the sequence at once}}
  %0 = torch "aten._softmax.default"(%x, 1, false) facts <pure, rule = "a b -> a c"> tag <"a.0" F> : (!x) -> !x
  output "y" %0 : !x
}

// -----

// Next tokens by cutting the sequence: the last of a part is in another one.
!i = tensor<3x4xi64>
piper.mesh @mesh [cp = 2 manual]
piper.strategy @strategy mesh = @mesh {
  // expected-note @+1 {{ranks share out the sequence here}}
  piper.do.sequence axis = "cp" dims = {ids = 1}
}
piper.step @train phase = captured mesh = @mesh inputs ["ids"] dims [0] (%ids: !i) {
  // expected-error @+1 {{aten.slice.Tensor sees several positions of the sequence at once}}
  %0 = torch "aten.slice.Tensor"(%ids, 1, 1, 4) facts <view, strided, rule = "a b -> a c; linear"> tag <"a.0" F> : (!i) -> tensor<3x3xi64>
  output "y" %0 : tensor<3x3xi64>
}

// -----

// One position of each part.
!x = tensor<3x4x8xf32>
!y = tensor<3x8xf32>
piper.mesh @mesh [cp = 2 manual]
piper.strategy @strategy mesh = @mesh {
  // expected-note @+1 {{ranks share out the sequence here}}
  piper.do.sequence axis = "cp" dims = {x = 1}
}
piper.step @train phase = captured mesh = @mesh inputs ["x"] dims [0] (%x: !x) {
  // expected-error @+1 {{aten.select.int sees several positions of the sequence at once}}
  %0 = torch "aten.select.int"(%x, 1, -1) facts <view, strided, rule = "a b c -> a c; linear"> tag <"a.0" F> : (!x) -> !y
  output "y" %0 : !y
}

// -----

// A view that splits positions into pairs.
!x = tensor<3x4xf32>
!y = tensor<3x2x2xf32>
piper.mesh @mesh [cp = 2 manual]
piper.strategy @strategy mesh = @mesh {
  // expected-note @+1 {{ranks share out the sequence here}}
  piper.do.sequence axis = "cp" dims = {x = 1}
}
piper.step @train phase = captured mesh = @mesh inputs ["x"] dims [0] (%x: !x) {
  // expected-error @+1 {{aten.view.default cuts the sequence apart}}
  %0 = torch "aten.view.default"(%x, [3, 2, 2]) facts <view, rule = "a b -> a b c; linear, 1.0 = a, 1.1 = b"> tag <"a.0" F> : (!x) -> !y
  output "y" %0 : !y
}

// -----

// The mean over the positions of a rank is none over all.
!x = tensor<3x4xf32>
!y = tensor<3xf32>
piper.mesh @mesh [cp = 2 manual]
piper.strategy @strategy mesh = @mesh {
  // expected-note @+1 {{ranks share out the sequence here}}
  piper.do.sequence axis = "cp" dims = {x = 1}
}
piper.step @train phase = captured mesh = @mesh inputs ["x"] dims [0] (%x: !x) {
  %0 = torch "aten.sum.dim_IntList"(%x, [1]) facts <pure, rule = "a b -> a; linear, sum b"> tag <"a.0" F> : (!x) -> !y
  // Terms of a sum may be scaled, and summed on.
  %1 = torch "aten.neg.default"(%0) facts <pure, rule = "a -> a; linear"> tag <"a.0" F> : (!y) -> !y
  // expected-error @+1 {{aten.relu.default goes on with a sum over the part of the sequence that a rank has}}
  %2 = torch "aten.relu.default"(%1) facts <pure, rule = "a -> a"> tag <"a.0" F> : (!y) -> !y
  output "y" %2 : !y
}

// -----

// A term cut off to an integer is no term of the sum, cut off.
!x = tensor<3x4xf32>
!y = tensor<3xf32>
piper.mesh @mesh [cp = 2 manual]
piper.strategy @strategy mesh = @mesh {
  // expected-note @+1 {{ranks share out the sequence here}}
  piper.do.sequence axis = "cp" dims = {x = 1}
}
piper.step @train phase = captured mesh = @mesh inputs ["x"] dims [0] (%x: !x) {
  %0 = torch "aten.sum.dim_IntList"(%x, [1]) facts <pure, rule = "a b -> a; linear, sum b"> tag <"a.0" F> : (!x) -> !y
  // expected-error @+1 {{aten._to_copy.default goes on with a sum over the part of the sequence that a rank has}}
  %1 = torch "aten._to_copy.default"(%0, dtype = i64) facts <pure, rule = "a -> a"> tag <"a.0" F> : (!y) -> tensor<3xi64>
  output "y" %1 : tensor<3xi64>
}

// -----

// Nor does it tell whether the sum is 0 that one of its terms is not.
!x = tensor<3x4xf32>
!y = tensor<3xf32>
piper.mesh @mesh [cp = 2 manual]
piper.strategy @strategy mesh = @mesh {
  // expected-note @+1 {{ranks share out the sequence here}}
  piper.do.sequence axis = "cp" dims = {x = 1}
}
piper.step @train phase = captured mesh = @mesh inputs ["x"] dims [0] (%x: !x) {
  %0 = torch "aten.sum.dim_IntList"(%x, [1]) facts <pure, rule = "a b -> a; linear, sum b"> tag <"a.0" F> : (!x) -> !y
  // expected-error @+1 {{aten._to_copy.default goes on with a sum over the part of the sequence that a rank has}}
  %1 = torch "aten._to_copy.default"(%0, dtype = i1) facts <pure, rule = "a -> a"> tag <"a.0" F> : (!y) -> tensor<3xi1>
  output "y" %1 : tensor<3xi1>
}

// -----

// Integers are not rounded: in fewer bits they are others.
!x = tensor<3x4xi64>
!y = tensor<3xi64>
piper.mesh @mesh [cp = 2 manual]
piper.strategy @strategy mesh = @mesh {
  // expected-note @+1 {{ranks share out the sequence here}}
  piper.do.sequence axis = "cp" dims = {x = 1}
}
piper.step @train phase = captured mesh = @mesh inputs ["x"] dims [0] (%x: !x) {
  %0 = torch "aten.sum.dim_IntList"(%x, [1]) facts <pure, rule = "a b -> a; linear, sum b"> tag <"a.0" F> : (!x) -> !y
  // expected-error @+1 {{aten._to_copy.default goes on with a sum over the part of the sequence that a rank has}}
  %1 = torch "aten._to_copy.default"(%0, dtype = i32) facts <pure, rule = "a -> a"> tag <"a.0" F> : (!y) -> tensor<3xi32>
  output "y" %1 : tensor<3xi32>
}

// -----

// Positions have to come with the batch.
!x = tensor<3x4xf32>
!p = tensor<4xi64>
piper.mesh @mesh [cp = 2 manual]
piper.strategy @strategy mesh = @mesh {
  // expected-note @+1 {{ranks share out the sequence here}}
  piper.do.sequence axis = "cp" dims = {x = 1}
}
piper.step @train phase = captured mesh = @mesh inputs ["x"] dims [0] (%x: !x) {
  // Of another length, such as that of the features of a rotary embedding, they are no positions.
  %0 = torch "aten.arange.default"(2) facts <pure> tag <"a.0" F> : () -> tensor<2xi64>
  // expected-error @+1 {{aten.arange.default numbers positions from 0 on every rank, expected them as an input of the batch, such as position_ids}}
  %1 = torch "aten.arange.default"(4) facts <pure> tag <"a.0" F> : () -> !p
  output "y" %x : !x
}

// -----

// The start of a table of all positions, on every rank.
!x = tensor<3x4xf32>
!t = tensor<8xf32>
!y = tensor<4xf32>
piper.mesh @mesh [cp = 2 manual]
piper.state @table buffer : !t
piper.strategy @strategy mesh = @mesh {
  // expected-note @+1 {{ranks share out the sequence here}}
  piper.do.sequence axis = "cp" dims = {x = 1}
}
piper.step @train phase = captured mesh = @mesh inputs ["x"] dims [0] (%x: !x) {
  %t = read @table : !t
  %0 = torch "aten.slice.Tensor"(%t, 0, 0, 4) facts <view, rule = "a -> b; linear"> tag <"a.0" F> : (!t) -> !y
  // expected-error @+1 {{aten.add.Tensor takes an operand of type 'tensor<4xf32>' of which dim 0 is not that of an input's sequence, expected values by positions that are an input, such as position_ids}}
  %1 = torch "aten.add.Tensor"(%x, %0) facts <pure, rule = "a b, b -> a b; linear"> tag <"a.0" F> : (!x, !y) -> !x
  output "y" %1 : !x
}

// -----

// Which keys a mask hides depends on the positions of queries and keys.
!q = tensor<3x2x4x8xf32>
!m = tensor<3x1x4x4xi1>
piper.mesh @mesh [cp = 2 manual]
piper.strategy @strategy mesh = @mesh {
  // expected-note @+1 {{the sequence is shared out here}}
  piper.do.sequence axis = "cp" dims = {q = 2, mask = 2}
}
piper.step @train phase = captured mesh = @mesh inputs ["q", "mask"] dims [0, 0] (%q: !q, %m: !m) {
  // expected-error @+1 {{piper.attention.default expected no mask and no offset where ranks share out the sequence}}
  %0, %1 = torch "piper.attention.default"(%q, %q, %q, %m, false, 0.5, 0) facts <pure, rule = "b h s d, b h t d, b h t e, b 1 s t -> b h u e, b h u"> tag <"a.0" F> : (!q, !q, !q, !m) -> (!q, tensor<3x2x4xf32>)
  output "y" %0 : !q
}

// -----

// So do offsets.
!q = tensor<3x2x4x8xf32>
piper.mesh @mesh [cp = 2 manual]
piper.strategy @strategy mesh = @mesh {
  // expected-note @+1 {{the sequence is shared out here}}
  piper.do.sequence axis = "cp" dims = {q = 2}
}
piper.step @train phase = captured mesh = @mesh inputs ["q"] dims [0] (%q: !q) {
  // expected-error @+1 {{piper.attention.default expected no mask and no offset where ranks share out the sequence}}
  %0, %1 = torch "piper.attention.default"(%q, %q, %q, none, true, 0.5, 1) facts <pure, rule = "b h s d, b h t d, b h t e -> b h u e, b h u"> tag <"a.0" F> : (!q, !q, !q) -> (!q, tensor<3x2x4xf32>)
  output "y" %0 : !q
}

// -----

// Attention over rows, where positions are at another dim.
!q = tensor<3x2x4x8xf32>
piper.mesh @mesh [cp = 2 manual]
piper.strategy @strategy mesh = @mesh {
  // expected-note @+1 {{ranks share out the sequence here}}
  piper.do.sequence axis = "cp" dims = {q = 0}
}
piper.step @train phase = captured mesh = @mesh inputs ["q"] dims [2] (%q: !q) {
  // expected-error @+1 {{piper.attention.default expected queries, keys and values with positions along dim 2}}
  %0, %1 = torch "piper.attention.default"(%q, %q, %q, none, false, 0.5, 0) facts <pure, rule = "b h s d, b h t d, b h t e -> b h u e, b h u"> tag <"a.0" F> : (!q, !q, !q) -> (!q, tensor<3x2x4xf32>)
  output "y" %0 : !q
}

// -----

// Attention to keys of which all ranks have the same.
!q = tensor<3x2x4x8xf32>
piper.mesh @mesh [cp = 2 manual]
piper.strategy @strategy mesh = @mesh {
  // expected-note @+1 {{ranks share out the sequence here}}
  piper.do.sequence axis = "cp" dims = {q = 2}
}
piper.step @train phase = captured mesh = @mesh inputs ["q", "k"] dims [0, 0] (%q: !q, %k: !q) {
  // expected-error @+1 {{piper.attention.default expected queries, keys and values with positions along dim 2}}
  %0, %1 = torch "piper.attention.default"(%q, %k, %k, none, false, 0.5, 0) facts <pure, rule = "b h s d, b h t d, b h t e -> b h u e, b h u"> tag <"a.0" F> : (!q, !q, !q) -> (!q, tensor<3x2x4xf32>)
  output "y" %0 : !q
}

// -----

// No input has the name.
!x = tensor<3x4xf32>
piper.mesh @mesh [cp = 2 manual]
piper.strategy @strategy mesh = @mesh {
  // expected-error @+1 {{expected names of inputs, of which the step has ["x"], got {ids = 1 : i64}}}
  piper.do.sequence axis = "cp" dims = {ids = 1}
}
piper.step @train phase = captured mesh = @mesh inputs ["x"] dims [0] (%x: !x) {
  output "y" %x : !x
}

// -----

// The input has no such dim.
!x = tensor<3x4xf32>
piper.mesh @mesh [cp = 2 manual]
piper.strategy @strategy mesh = @mesh {
  // expected-error @+1 {{expected a dim of input "x" below 2, got 2}}
  piper.do.sequence axis = "cp" dims = {x = 2}
}
piper.step @train phase = captured mesh = @mesh inputs ["x"] dims [0] (%x: !x) {
  output "y" %x : !x
}

// -----

// Stages have no parts of sequences.
!x = tensor<3x4xf32>
piper.mesh @mesh [pp = 2 unrolled]
piper.strategy @strategy mesh = @mesh {
  // expected-error @+1 {{expected a manual or auto axis of the mesh, got 'pp'}}
  piper.do.sequence axis = "pp" dims = {x = 1}
}
piper.step @train phase = captured mesh = @mesh inputs ["x"] dims [0] (%x: !x) {
  output "y" %x : !x
}
