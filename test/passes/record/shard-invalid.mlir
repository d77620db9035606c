// States that ranks cannot share out.
// RUN: piper-opt %s -split-input-file -verify-diagnostics --piper-shard

// The axis is one of the mesh.
piper.mesh @mesh [pp = 2 unrolled, ep = 2 manual]
piper.state @layer.experts.up parameter : tensor<4x8x8xf32>
piper.strategy @strategy mesh = @mesh {
  // expected-error @+1 {{expected a manual or auto axis of the mesh, got 'tp'}}
  piper.do.shard <state = "*.experts.*"> axis = "tp" dim = 0
}

// -----

// Coordinates of an unrolled axis have a program and states of their own.
piper.mesh @mesh [pp = 2 unrolled, ep = 2 manual]
piper.state @layer.experts.up parameter : tensor<4x8x8xf32>
piper.strategy @strategy mesh = @mesh {
  // expected-error @+1 {{expected a manual or auto axis of the mesh, got 'pp'}}
  piper.do.shard <state = "*.experts.*"> axis = "pp" dim = 0
}

// -----

// A selector that selects nothing lists what there is, buffers too.
piper.mesh @mesh [ep = 2 manual]
piper.state @layer.router parameter : tensor<4x8xf32>
piper.state @layer.bias buffer : tensor<4xf32>
piper.strategy @strategy mesh = @mesh {
  // expected-error @+1 {{selects no state with #piper.select<state = "*.experts.*">; the module has layer.router layer.bias}}
  piper.do.shard <state = "*.experts.*"> axis = "ep" dim = 0
}

// -----

// All ranks hold equally many experts.
piper.mesh @mesh [ep = 4 manual]
// expected-note @+1 {{the state is here}}
piper.state @layer.experts.up parameter : tensor<6x8x8xf32>
piper.strategy @strategy mesh = @mesh {
  // expected-error @+1 {{expected a dim 0 that 4 ranks of axis 'ep' divide, got @layer.experts.up of type 'tensor<6x8x8xf32>'}}
  piper.do.shard <state = "*.experts.*"> axis = "ep" dim = 0
}

// -----

// The state has the dim.
piper.mesh @mesh [ep = 2 manual]
// expected-note @+1 {{the state is here}}
piper.state @layer.experts.scale parameter : tensor<f32>
piper.strategy @strategy mesh = @mesh {
  // expected-error @+1 {{expected a dim 0, got @layer.experts.scale of type 'tensor<f32>'}}
  piper.do.shard <state = "*.experts.*"> axis = "ep" dim = 0
}

// -----

// Two directives agree on a state that both select.
piper.mesh @mesh [edp = 2 manual, ep = 2 manual]
piper.state @layer.experts.up parameter : tensor<4x8x8xf32>
piper.strategy @strategy mesh = @mesh {
  // expected-note @+1 {{the other directive is here}}
  piper.do.shard <state = "*.experts.*"> axis = "ep" dim = 0
  // expected-error @+1 {{sets layout to #piper.layout<edp = shard(0), ep = replicated>, which another directive sets to #piper.layout<edp = replicated, ep = shard(0)>}}
  piper.do.shard <state = "*.up"> axis = "edp" dim = 0
}

// -----

// There is room for something.
piper.mesh @mesh [ep = 2 manual]
piper.state @layer.experts.up parameter : tensor<4x8x8xf32>
piper.strategy @strategy mesh = @mesh {
  // expected-error @+1 {{expected a positive capacity, got 0.000000e+00 : f64}}
  piper.do.shard <state = "*.experts.*"> axis = "ep" dim = 0 capacity = 0.0
}

// -----

// Of tied states one name counts.
piper.mesh @mesh [tp = 2 auto]
// expected-note @+1 {{"head.weight" is another name of 'embed.weight', as they are tied: use that one}}
piper.state @embed.weight parameter : tensor<8x4xf32> aliases ["head.weight"]
piper.strategy @strategy mesh = @mesh {
  // expected-error @+1 {{selects no state with #piper.select<state = "head.*">; the module has embed.weight}}
  piper.do.shard <state = "head.*"> axis = "tp" dim = 0
}

// -----

// Experts are those of all positions of a sequence.
piper.mesh @mesh [cp = 2 manual]
piper.state @layer.experts.up parameter : tensor<4x8x8xf32>
piper.strategy @strategy mesh = @mesh {
  piper.do.sequence axis = "cp" dims = {"ids" = 1}
  // expected-error @+1 {{expected an axis whose ranks have other tokens or the same, got 'cp', along which they have parts of sequences}}
  piper.do.shard <state = "*.experts.*"> axis = "cp" dim = 0
}
