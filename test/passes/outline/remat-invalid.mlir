// Directives that say nothing, or too much.
// RUN: piper-opt %s -split-input-file -verify-diagnostics --piper-remat

// A selector selects a chunk that has a backward pass.
!x = tensor<4xf32>

piper.mesh @mesh [pp = 2 unrolled]
piper.strategy @strategy mesh = @mesh {
  // expected-error @+1 {{selects no chunk that has a backward pass: expected a tag of embed, layer, got #piper.select<tag = "l*d">}}
  piper.do.remat <tag = "l*d"> policy = "full"
}
piper.step @train phase = captured mesh = @mesh inputs ["x"] dims [0] (%x: !x) {
  %0 = torch "aten.sin.default"(%x) facts <pure> tag <"embed.0" F> : (!x) -> !x
  %1 = torch "aten.cos.default"(%0) facts <pure> tag <"layer.0" F> : (!x) -> !x
  %2 = torch "aten.cos.default"(%1) facts <pure> tag <"layer.1" F> : (!x) -> !x
  %3 = torch "aten.cos.default"(%2) facts <pure> tag <"loaded.0" F> : (!x) -> !x
  %4 = torch "aten.neg.default"(%3) facts <pure> tag <"layer.1" B> : (!x) -> !x
  %5 = torch "aten.neg.default"(%4) facts <pure> tag <"layer.0" B> : (!x) -> !x
  %6 = torch "aten.neg.default"(%5) facts <pure> tag <"embed.0" B> : (!x) -> !x
}

// -----

// Two directives do not disagree about a chunk.
!x = tensor<4xf32>

piper.mesh @mesh [pp = 2 unrolled]
piper.strategy @strategy mesh = @mesh {
  // expected-note @+1 {{the other directive is here}}
  piper.do.remat <all> policy = "full"
  // expected-error @+1 {{sets the policy of chunk "layer.1" to "save", which another directive sets to "full"}}
  piper.do.remat <tag = "layer"> policy = "save"
}
piper.step @train phase = captured mesh = @mesh inputs ["x"] dims [0] (%x: !x) {
  %0 = torch "aten.sin.default"(%x) facts <pure> tag <"embed.0" F> : (!x) -> !x
  %1 = torch "aten.cos.default"(%0) facts <pure> tag <"layer.1" F> : (!x) -> !x
  %2 = torch "aten.neg.default"(%1) facts <pure> tag <"layer.1" B> : (!x) -> !x
  %3 = torch "aten.neg.default"(%2) facts <pure> tag <"embed.0" B> : (!x) -> !x
}

// -----

// Nor about its ops.
!x = tensor<4xf32>

piper.mesh @mesh [pp = 2 unrolled]
piper.strategy @strategy mesh = @mesh {
  // expected-note @+1 {{the other directive is here}}
  piper.do.remat <all> policy = "full" ops ["aten.sin.*"]
  // expected-error @+1 {{sets the policy of chunk "a.0" to "full", which another directive sets to "full" of ops ["aten.sin.*"]}}
  piper.do.remat <all> policy = "full"
}
piper.step @train phase = captured mesh = @mesh inputs ["x"] dims [0] (%x: !x) {
  %0 = torch "aten.sin.default"(%x) facts <pure> tag <"a.0" F> : (!x) -> !x
  %1 = torch "aten.neg.default"(%0) facts <pure> tag <"a.0" B> : (!x) -> !x
}

// -----

// Every glob of ops has an effect: min_cut computes no heavy op again, nothing
// random is computed again, and what the model marks is in any case.
!x = tensor<4xf32>

piper.mesh @mesh [pp = 2 unrolled]
piper.strategy @strategy mesh = @mesh {
  // expected-error @+1 {{names no op that it could have computed again: expected one of aten.sin.default, aten.cos.default, got "aten.mm.*"}}
  piper.do.remat <all> policy = "min_cut" ops ["aten.sin.*", "aten.mm.*"]
}
piper.step @train phase = captured mesh = @mesh inputs ["x"] dims [0] (%x: !x) {
  %0 = torch "aten.mm.default"(%x) facts <pure, heavy> tag <"a.0" F> : (!x) -> !x
  %1 = torch "aten.bernoulli.default"(%0) facts <random> tag <"a.0" F> : (!x) -> !x
  %2 = torch "aten.sin.default"(%1) facts <pure> tag <"a.0" F> : (!x) -> !x
  %3 = torch "aten.cos.default"(%2) facts <pure> tag <"a.0" F> : (!x) -> !x
  %4 = torch "aten.tan.default"(%3) facts <pure> recompute tag <"a.0" F> : (!x) -> !x
  %5 = torch "aten.neg.default"(%3) facts <pure> tag <"a.0" B> : (!x) -> !x
}

// -----

// A glob can be read.
!x = tensor<4xf32>

piper.mesh @mesh [pp = 2 unrolled]
piper.strategy @strategy mesh = @mesh {
  // expected-error @+1 {{expected a glob, got "aten.[": invalid glob pattern}}
  piper.do.remat <all> policy = "full" ops ["aten.["]
}
piper.step @train phase = captured mesh = @mesh inputs ["x"] dims [0] (%x: !x) {
  %0 = torch "aten.sin.default"(%x) facts <pure> tag <"a.0" F> : (!x) -> !x
  %1 = torch "aten.neg.default"(%0) facts <pure> tag <"a.0" B> : (!x) -> !x
}

// -----

// No glob at all would compute nothing again; `save` says so.
!x = tensor<4xf32>

piper.mesh @mesh [pp = 2 unrolled]
piper.strategy @strategy mesh = @mesh {
  // expected-error @+1 {{expected at least one glob for ops}}
  piper.do.remat <all> policy = "full" ops []
}
piper.step @train phase = captured mesh = @mesh inputs ["x"] dims [0] (%x: !x) {
  %0 = torch "aten.sin.default"(%x) facts <pure> tag <"a.0" F> : (!x) -> !x
  %1 = torch "aten.neg.default"(%0) facts <pure> tag <"a.0" B> : (!x) -> !x
}

// -----

// Where nothing is trained there is nothing to keep.
!x = tensor<4xf32>

piper.mesh @mesh [pp = 2 unrolled]
piper.strategy @strategy mesh = @mesh {
  // expected-error @+1 {{expected a step with a backward pass}}
  piper.do.remat <all> policy = "full"
}
piper.step @eval phase = captured mesh = @mesh inputs ["x"] dims [0] (%x: !x) {
  %0 = torch "aten.sin.default"(%x) facts <pure> tag <"a.0" F> : (!x) -> !x
}
