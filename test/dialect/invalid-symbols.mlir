// Attributes, meshes, states and buckets: every rule, broken once.
// RUN: piper-opt %s -split-input-file -verify-diagnostics

//===----------------------------------------------------------------------===//
// Attributes
//===----------------------------------------------------------------------===//

// expected-error @+1 {{expected at least 1 rank on axis 'dp', got 0}}
piper.mesh @mesh [dp = 0 manual]

// -----

// expected-error @+1 {{expected a role of unrolled, manual or auto, got 'automatic'}}
piper.mesh @mesh [dp = 2 automatic]

// -----

// expected-error @+1 {{unknown word 'split'}}
#layout = #piper.layout<dp = split>

// -----

// expected-error @+1 {{expected each axis once in a layout, got 'dp' twice}}
#layout = #piper.layout<dp = replicated, dp = partial>

// -----

// expected-error @+1 {{expected no more rows than the bound of 8, got expect = 9}}
#layout = #piper.layout<bound = 8, expect = 9>

// -----

// expected-error @+1 {{expected axis 'dp' to shard one of 2 dims, got dim 2}}
!t = tensor<4x4xf32, #piper.layout<dp = shard(2)>>

// -----

// expected-error @+1 {{expected a bound with a dynamic shape and none with a static one, got bound = 8}}
!t = tensor<4xf32, #piper.layout<bound = 8>>

// -----

// expected-error @+1 {{expected a bound with a dynamic shape and none with a static one, got bound = 0}}
!t = tensor<?xf32, #piper.layout<dp = varying>>

// -----

// expected-error @+1 {{expected a selector by all, tag or state, got 'module'}}
#select = #piper.select<module = "layer">

// -----

// expected-error @+1 {{expected a glob, got '[': }}
#select = #piper.select<state = "[">

// -----

// expected-error @+1 {{expected no negative number of rows, got bound = -1 and expect = 0}}
#layout = #piper.layout<bound = -1>

// -----

// expected-error @+1 {{expected no negative number of rows, got bound = 0 and expect = -1}}
#layout = #piper.layout<expect = -1>

// -----

//===----------------------------------------------------------------------===//
// Meshes, states, buckets
//===----------------------------------------------------------------------===//

// expected-error @+1 {{expected distinct axis names, got 'dp' twice}}
piper.mesh @mesh [dp = 2 manual, dp = 2 auto]

// -----

// expected-error @+1 {{expected at most one unrolled axis, got 2}}
piper.mesh @mesh [pp = 2 unrolled, vpp = 2 unrolled]

// -----

// expected-error @+1 {{expected a list of axes for view 'dp'}}
piper.mesh @mesh [edp = 2 manual, ep = 2 manual] views {dp = "edp"}

// -----

// expected-error @+1 {{expected the factors of view 'dp' to be axes, got "tp"}}
piper.mesh @mesh [edp = 2 manual, ep = 2 manual] views {dp = ["edp", "tp"]}

// -----

// expected-error @+1 {{expected a view to differ from every axis, got 'ep'}}
piper.mesh @mesh [edp = 2 manual, ep = 2 manual] views {ep = ["edp"]}

// -----

// expected-error @+1 {{expected the type of the whole tensor, without an encoding; the layout is stated apart}}
piper.state @w parameter : tensor<4xf32, #piper.layout<dp = replicated>>

// -----

// expected-error @+1 {{expected a static shape, got 'tensor<?xf32>'}}
piper.state @w parameter : tensor<?xf32>

// -----

// expected-error @+1 {{expected only a parameter to be frozen, replicated or optimized, got a buffer}}
piper.state @w buffer frozen : tensor<4xf32>

// -----

// expected-error @+1 {{expected only a parameter to be frozen, replicated or optimized, got a constant}}
piper.state @w constant : tensor<4xf32> optimization <"train:sgd">

// -----

// expected-error @+1 {{expected each name once, got "w" twice}}
piper.state @w parameter : tensor<4xf32> aliases ["v", "w"]

// -----

// expected-error @+1 {{expected at least one member}}
piper.bucket @w$b [] value : tensor<4xf32>

// -----

piper.mesh @mesh [dp = 2 manual]
piper.state @w parameter : tensor<2x2xf32>
// expected-error @+1 {{expected slot grad to be flat, got 'tensor<2x2xf32>'}}
piper.bucket @w$b [@w] value : tensor<4xf32> grad : tensor<2x2xf32>

// -----

piper.state @w parameter : tensor<4xf32>
// expected-error @+1 {{expected a mesh in the module}}
piper.bucket @w$b [@w] value : tensor<4xf32>

// -----

piper.mesh @mesh [dp = 2 manual]
// expected-error @+1 {{expected members to be states, got @mesh}}
piper.bucket @w$b [@mesh] value : tensor<4xf32>

// -----

// The last rank of a shard is padded: 5 elements over 2 ranks are 3 each.
piper.mesh @mesh [dp = 2 manual]
piper.state @w parameter : tensor<5xf32>
// expected-error @+1 {{expected slot compute to hold 3 elements per rank, got 'tensor<2xf32, #piper.layout<dp = shard(0)>>'}}
piper.bucket @w$b [@w] value : tensor<3xf32, #piper.layout<dp = shard(0)>> compute : tensor<2xf32, #piper.layout<dp = shard(0)>>

// -----

// expected-error @+1 {{expected only a parameter to be frozen, replicated or optimized, got a buffer}}
piper.state @w buffer : tensor<4xf32> replication <["dp"], zero = 0, bucket = 1>

// -----

piper.mesh @mesh [dp = 2 manual]
// expected-error @+1 {{expected axis 'dp' to shard one of 1 dims, got dim 3}}
piper.state @w parameter : tensor<4xf32> layout <dp = shard(3)>

// -----

// expected-error @+1 {{expected a bound with a dynamic shape and none with a static one, got bound = 4}}
piper.state @w parameter : tensor<4xf32> layout <bound = 4>

// -----

// expected-error @+1 {{expected a mesh in the module}}
piper.state @w parameter : tensor<4xf32> layout <dp = replicated>

// -----

piper.mesh @mesh [dp = 2 manual]
// expected-error @+1 {{expected a manual or auto axis of the mesh, got "tp"}}
piper.state @w parameter : tensor<4xf32> layout <tp = shard(0)>

// -----

// On an unrolled axis a state has holders.
piper.mesh @mesh [pp = 2 unrolled]
// expected-error @+1 {{expected a manual or auto axis of the mesh, got "pp"}}
piper.state @w parameter : tensor<4xf32> layout <pp = shard(0)>

// -----

piper.mesh @mesh [ep = 2 manual, tp = 3 auto]
// expected-error @+1 {{expected dim 1 to be a multiple of the 6 ranks that shard it, got 8}}
piper.state @w parameter : tensor<4x8xf32> layout <ep = shard(1), tp = shard(1)>

// -----

// Along one auto axis parts may have padding, along a manual one they have not.
piper.mesh @mesh [ep = 3 manual, tp = 3 auto]
piper.state @v parameter : tensor<4x8xf32> layout <ep = replicated, tp = shard(1)>
// expected-error @+1 {{expected dim 1 to be a multiple of the 3 ranks that shard it, got 8}}
piper.state @w parameter : tensor<4x8xf32> layout <ep = shard(1), tp = replicated>

// -----

piper.mesh @mesh [dp = 2 manual]
piper.state @w parameter : tensor<4xf32>
// expected-error @+1 {{expected each member once, got @w twice}}
piper.bucket @w$b [@w, @w] value : tensor<8xf32>

// -----

piper.mesh @mesh [dp = 2 manual]
piper.state @v parameter : tensor<4xf32>
piper.state @w parameter : tensor<4xf32>
// expected-note @+1 {{the other bucket is here}}
piper.bucket @v$b [@v, @w] value : tensor<8xf32>
piper.stream @between
// expected-error @+1 {{expected each state in one bucket, got @w in two}}
piper.bucket @w$b [@w] value : tensor<4xf32>

// -----

piper.mesh @mesh [dp = 2 manual]
piper.state @v parameter : tensor<4xf32>
piper.state @w parameter : tensor<4xbf16>
// expected-error @+1 {{expected members of one dtype and layout, unlike @v and @w}}
piper.bucket @v$b [@v, @w] value : tensor<8xf32>

// -----

piper.mesh @mesh [ep = 2 manual]
piper.state @v parameter : tensor<4xf32> layout <ep = shard(0)>
piper.state @w parameter : tensor<4xf32>
// expected-error @+1 {{expected members of one dtype and layout, unlike @v and @w}}
piper.bucket @v$b [@v, @w] value : tensor<6xf32>

// -----

//===----------------------------------------------------------------------===//
// Communicators
//===----------------------------------------------------------------------===//

piper.stream @dp
// expected-error @+1 {{expected a mesh in the module}}
piper.comm @comm axes ["dp"] coordinates [0] for @dp

// -----

piper.mesh @mesh [pp = 2 unrolled]
piper.stream @dp
// expected-error @+1 {{expected a manual or auto axis of the mesh, got "pp"}}
piper.comm @comm axes ["pp"] coordinates [0] for @dp

// -----

piper.mesh @mesh [dp = 2 manual]
// expected-error @+1 {{expected a stream, got @mesh}}
piper.comm @comm axes ["dp"] coordinates [0] for @mesh
