// Replications and updates whose sharding or master dtype means nothing.
// RUN: piper-opt %s -split-input-file -verify-diagnostics

piper.mesh @mesh [dp = 2 manual]
piper.strategy @strategy mesh = @mesh {
  // expected-error @+1 {{expected shard beside a ZeRO stage from 1 on, got zero = 0}}
  piper.do.replicate <all> axes = ["dp"] zero = 0 bucket = 1 reduce = "last" shard = ["dp"]
}

// -----

piper.mesh @mesh [dp = 2 manual]
piper.strategy @strategy mesh = @mesh {
  // expected-error @+1 {{expected at least one axis to shard on}}
  piper.do.replicate <all> axes = ["dp"] zero = 1 bucket = 1 reduce = "last" shard = []
}

// -----

piper.mesh @mesh [rep = 2 manual, dp = 2 manual]
piper.strategy @strategy mesh = @mesh {
  // expected-error @+1 {{expected to shard on one of axes ["dp"], got "rep"}}
  piper.do.replicate <all> axes = ["dp"] zero = 1 bucket = 1 reduce = "last" shard = ["rep"]
}

// -----

piper.mesh @mesh [dp = 2 manual]
piper.strategy @strategy mesh = @mesh {
  // expected-error @+1 {{expected gather, prefetch and limit beside zero = 3, or 1 or 2 with gather = "step", got zero = 2}}
  piper.do.replicate <all> axes = ["dp"] zero = 2 bucket = 1 reduce = "last" gather = "group"
}

// -----

piper.mesh @mesh [dp = 2 manual]
piper.strategy @strategy mesh = @mesh {
  // expected-error @+1 {{expected gather to be "each", "group" or "step", got "never"}}
  piper.do.replicate <all> axes = ["dp"] zero = 3 bucket = 1 reduce = "last" gather = "never"
}

// -----

piper.mesh @mesh [dp = 2 manual]
// expected-error @+1 {{expected dtype, reduce, shard, gather, prefetch or limit, got often}}
piper.state @w parameter : tensor<4xf32> replication <["dp"], zero = 1, bucket = 1, often = 2>

// -----

piper.mesh @mesh [dp = 2 manual]
piper.strategy @strategy mesh = @mesh {
  // expected-error @+1 {{expected a floating-point dtype as master, got 'i32'}}
  piper.do.update <all> optimizer = "train:sgd" master = i32
}

// -----

// A whole slot of a bucket whose value is sharded is as long as all shards.
piper.mesh @mesh [dp = 2 manual]
piper.state @w parameter : tensor<3xf32>
// expected-error @+1 {{expected slot compute to hold 4 elements per rank, got 'tensor<3xf32>'}}
piper.bucket @w$b [@w] value : tensor<2xf32, #piper.layout<dp = shard(0)>> compute : tensor<3xf32>
