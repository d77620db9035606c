// Updates of nothing, and two that disagree.
// RUN: piper-opt %s -split-input-file -verify-diagnostics --piper-update

// A selector that selects nothing lists what there is: frozen states are not trained.
!x = tensor<4xf32>
piper.mesh @mesh [pp = 2 unrolled, dp = 2 manual]
piper.state @a.weight parameter : !x
piper.state @a.bias parameter : !x
piper.state @frozen parameter frozen : !x
piper.strategy @strategy mesh = @mesh {
  // expected-error @+1 {{selects no state with #piper.select<state = "frozen">; the module has a.weight a.bias}}
  piper.do.update <state = "frozen"> optimizer = "train:sgd"
}

// -----

// A state has one optimizer.
!x = tensor<4xf32>
piper.mesh @mesh [pp = 2 unrolled, dp = 2 manual]
piper.state @a.weight parameter : !x
piper.state @a.bias parameter : !x
piper.state @frozen parameter frozen : !x
piper.strategy @strategy mesh = @mesh {
  // expected-note @+1 {{the other directive is here}}
  piper.do.update <all> optimizer = "train:sgd"
  // expected-error @+1 {{sets optimization to #piper.optimization<"train:adamw">, which another directive sets to #piper.optimization<"train:sgd">}}
  piper.do.update <state = "*.bias"> optimizer = "train:adamw"
}
