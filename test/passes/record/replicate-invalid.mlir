// Replications that mean nothing.
// RUN: piper-opt %s -split-input-file -verify-diagnostics --piper-replicate

// Data axes have one program for all ranks.
!x = tensor<4xf32>
piper.mesh @mesh [pp = 2 unrolled, dp = 2 manual]
piper.state @a.weight parameter : !x
piper.state @a.bias parameter : !x
piper.state @frozen parameter frozen : !x
piper.strategy @strategy mesh = @mesh {
  // expected-error @+1 {{expected a manual axis of the mesh, got "pp"}}
  piper.do.replicate <all> axes = ["pp"] zero = 0 bucket = 1 reduce = "last"
}

// -----

!x = tensor<4xf32>
piper.mesh @mesh [pp = 2 unrolled, dp = 2 manual]
piper.state @a.weight parameter : !x
piper.state @a.bias parameter : !x
piper.state @frozen parameter frozen : !x
piper.strategy @strategy mesh = @mesh {
  // expected-error @+1 {{expected a manual axis of the mesh, got "tp"}}
  piper.do.replicate <all> axes = ["tp"] zero = 0 bucket = 1 reduce = "last"
}

// -----

// A selector that selects nothing lists what there is.
!x = tensor<4xf32>
piper.mesh @mesh [pp = 2 unrolled, dp = 2 manual]
piper.state @a.weight parameter : !x
piper.state @a.bias parameter : !x
piper.state @frozen parameter frozen : !x
piper.strategy @strategy mesh = @mesh {
  // expected-error @+1 {{selects no state with #piper.select<state = "head.*">; the module has a.weight a.bias}}
  piper.do.replicate <state = "head.*"> axes = ["dp"] zero = 0 bucket = 1 reduce = "last"
}

// -----

// Two directives of one kind must agree.
!x = tensor<4xf32>
piper.mesh @mesh [pp = 2 unrolled, dp = 2 manual]
piper.state @a.weight parameter : !x
piper.state @a.bias parameter : !x
piper.state @frozen parameter frozen : !x
piper.strategy @strategy mesh = @mesh {
  // expected-note @+1 {{the other directive is here}}
  piper.do.replicate <all> axes = ["dp"] zero = 0 bucket = 1 reduce = "last"
  // expected-error @+1 {{sets replication to #piper.replication<["dp"], zero = 0, bucket = 2>, which another directive sets to #piper.replication<["dp"], zero = 0, bucket = 1>}}
  piper.do.replicate <state = "a.*"> axes = ["dp"] zero = 0 bucket = 2 reduce = "last"
}

// -----

// Ranks without a purpose are a mistake.
// expected-error @+1 {{expected a directive that uses axis 'dp' of 2 ranks}}
piper.mesh @mesh [pp = 2 unrolled, dp = 2 manual]
