// Directives and schedules: every rule, broken once.
// RUN: piper-opt %s -split-input-file -verify-diagnostics

//===----------------------------------------------------------------------===//
// Strategies and schedules
//===----------------------------------------------------------------------===//

piper.mesh @mesh [pp = 2 unrolled]
piper.strategy @strategy mesh = @mesh {
  // expected-error @+1 {{expected only directives in a strategy}}
  %0 = piper.axis_index "pp" : tensor<i64>
}

// -----

// expected-error @+1 {{expected a mesh, got @missing}}
piper.strategy @strategy mesh = @missing {}

// -----

// expected-error @+1 {{expects parent op 'piper.strategy'}}
piper.do.order @order

// -----

piper.mesh @mesh [pp = 2 unrolled]
piper.strategy @strategy mesh = @mesh {
  // expected-error @+1 {{expected at least 1 microbatch, got 0}}
  piper.do.split microbatches = 0 dims = {}
}

// -----

piper.mesh @mesh [pp = 2 unrolled]
piper.strategy @strategy mesh = @mesh {
  // expected-error @+1 {{expected a priority, sms or both, got neither}}
  piper.do.stream @pp
}

// -----

piper.mesh @mesh [pp = 2 unrolled]
piper.strategy @strategy mesh = @mesh {
  // expected-error @+1 {{expected a function such as "package.module:function", got "own_pass"}}
  piper.do.user_pass "own_pass" at "step"
}

// -----

piper.mesh @mesh [pp = 2 unrolled]
piper.strategy @strategy mesh = @mesh {
  // expected-error @+1 {{expected a function such as "package.module:function", got "a:b:c"}}
  piper.do.user_pass "a:b:c" at "step"
}

// -----

piper.mesh @mesh [pp = 2 unrolled]
piper.strategy @strategy mesh = @mesh {
  // expected-error @+1 {{expected a point of step, chunks, facts, cluster, got "programs"}}
  piper.do.user_pass "own_pass:run" at "programs"
}

// -----

piper.mesh @mesh [pp = 2 unrolled]
piper.strategy @strategy mesh = @mesh {
  // expected-error @+1 {{expected option 'sizes' to be a string, an i64, an f64 or a boolean, got [1]}}
  piper.do.user_pass "own_pass:run" at "step" options {sizes = [1]}
}

// -----

piper.mesh @mesh [pp = 2 unrolled]
piper.strategy @strategy mesh = @mesh {
  // expected-error @+1 {{expected option 'rate' to be a string, an i64, an f64 or a boolean, got 1.000000e+00 : f32}}
  piper.do.user_pass "own_pass:run" at "step" options {rate = 1.0 : f32}
}

// -----

piper.mesh @mesh [pp = 2 unrolled]
piper.strategy @strategy mesh = @mesh {
  // expected-error @+1 {{expected option 'count' to be a string, an i64, an f64 or a boolean, got 1 : i32}}
  piper.do.user_pass "own_pass:run" at "step" options {count = 1 : i32}
}

// -----

piper.mesh @mesh [pp = 2 unrolled]
piper.strategy @strategy mesh = @mesh {
  // expected-error @+1 {{expected at least 1 stage, got 0}}
  piper.do.place <all> stages = 0 axis = "pp"
}

// -----

piper.mesh @mesh [pp = 2 unrolled]
piper.strategy @strategy mesh = @mesh {
  // expected-error @+1 {{expected a size for each of 2 stages, got 3}}
  piper.do.place <all> stages = 2 axis = "pp" sizes [1, 1, 1]
}

// -----

piper.mesh @mesh [pp = 2 unrolled]
piper.strategy @strategy mesh = @mesh {
  // expected-error @+1 {{expected a coordinate for each of 2 stages, got 1}}
  piper.do.place <all> stages = 2 axis = "pp" coordinates [0]
}

// -----

piper.mesh @mesh [pp = 2 unrolled]
piper.strategy @strategy mesh = @mesh {
  // expected-error @+1 {{expected coordinates or homes, got both}}
  piper.do.place <all> stages = 2 axis = "pp" coordinates [0, 1] homes [[0, 1]]
}

// -----

piper.mesh @mesh [pp = 2 unrolled]
piper.strategy @strategy mesh = @mesh {
  // expected-error @+1 {{expected a home for each of 2 stages, got 1}}
  piper.do.place <all> stages = 2 axis = "pp" homes [[0, 1], [0]]
}

// -----

piper.mesh @mesh [dp = 2 manual]
piper.strategy @strategy mesh = @mesh {
  // expected-error @+1 {{expected a ZeRO stage of 0 to 3, got 4}}
  piper.do.replicate <all> axes = ["dp"] zero = 4 bucket = 1 reduce = "last"
}

// -----

piper.mesh @mesh [dp = 2 manual]
piper.strategy @strategy mesh = @mesh {
  // expected-error @+1 {{expected reduce to be "last" or "each", got "never"}}
  piper.do.replicate <all> axes = ["dp"] zero = 0 bucket = 1 reduce = "never"
}

// -----

piper.mesh @mesh [dp = 2 manual]
piper.strategy @strategy mesh = @mesh {
  // expected-error @+1 {{expected a bucket of at least 1 byte, got 0}}
  piper.do.replicate <all> axes = ["dp"] zero = 0 bucket = 0 reduce = "last"
}

// -----

piper.mesh @mesh [dp = 2 manual]
piper.strategy @strategy mesh = @mesh {
  // expected-error @+1 {{expected a positive bound of the norm, got 0.000000e+00 : f64}}
  piper.do.update <all> optimizer = "train:sgd" clip = 0.0
}

// -----

piper.mesh @mesh [dp = 2 manual]
piper.strategy @strategy mesh = @mesh {
  // expected-error @+1 {{expected one or four positive numbers as loss scale, got [0.000000e+00]}}
  piper.do.update <all> optimizer = "train:sgd" loss_scale = [0.0]
}

// -----

piper.mesh @mesh [dp = 2 manual]
piper.strategy @strategy mesh = @mesh {
  // expected-error @+1 {{expected one or four positive numbers as loss scale, got [8.000000e+00, 2.000000e+00]}}
  piper.do.update <all> optimizer = "train:sgd" loss_scale = [8.0, 2.0]
}

// -----

piper.mesh @mesh [dp = 2 manual]
piper.strategy @strategy mesh = @mesh {
  // expected-error @+1 {{expected growth above 1, backoff below 1 and a whole number of steps, got [8.000000e+00, 2.000000e+00, 5.000000e-01, 1.500000e+00]}}
  piper.do.update <all> optimizer = "train:sgd" skip_nonfinite loss_scale = [8.0, 2.0, 0.5, 1.5]
}

// -----

piper.mesh @mesh [dp = 2 manual]
piper.strategy @strategy mesh = @mesh {
  // expected-error @+1 {{expected skip_nonfinite with a loss scale that changes, got none}}
  piper.do.update <all> optimizer = "train:sgd" loss_scale = [8.0, 2.0, 0.5, 2000.0]
}

// -----

// expected-error @+1 {{expected cells such as 0F0 in row 1, got '1X0'}}
piper.schedule @order axis = "pp" stages = 2 microbatches = 1 ["0F0", "1F0 1X0"]

// -----

// Preambles and counts have no cell.
// expected-error @+1 {{expected cells such as 0F0 in row 0, got '0P0'}}
piper.schedule @order axis = "pp" stages = 2 microbatches = 1 ["0P0"]

// -----

// expected-error @+1 {{expected cells such as 0F0 in row 0, got '(0F0;1B0)'}}
piper.schedule @order axis = "pp" stages = 2 microbatches = 1 ["(0F0;1B0)"]

// -----

// expected-error @+1 {{expected cells such as 0F0 in row 0, got '(0F0;1)OVERLAP_F_B'}}
piper.schedule @order axis = "pp" stages = 2 microbatches = 1 ["(0F0;1)OVERLAP_F_B"]

// -----

// expected-error @+1 {{expected stages below 2 and microbatches below 1, got 2F0 in row 1}}
piper.schedule @order axis = "pp" stages = 2 microbatches = 1 ["0F0", "2F0"]

// -----

// expected-error @+1 {{expected stages below 2 and microbatches below 1, got 0F1 in row 0}}
piper.schedule @order axis = "pp" stages = 2 microbatches = 1 ["0F0 0F1"]

// -----

// expected-error @+1 {{expected each cell once, got 0F0 in row 0 and in row 1}}
piper.schedule @order axis = "pp" stages = 2 microbatches = 1 ["0F0 0B0", "1F0 0F0"]

// -----

// Only a pair in parentheses has two cells.
// expected-error @+1 {{expected cells such as 0F0 in row 0, got '0F0;1B0'}}
piper.schedule @order axis = "pp" stages = 2 microbatches = 1 ["0F0;1B0"]

// -----

// expected-error @+1 {{expected cells such as 0F0 in row 0, got '(0F0)OVERLAP_F_B'}}
piper.schedule @order axis = "pp" stages = 2 microbatches = 1 ["(0F0)OVERLAP_F_B"]

// -----

// expected-error @+1 {{expected cells such as 0F0 in row 0, got '(0F0;0B0;1F0)OVERLAP_F_B'}}
piper.schedule @order axis = "pp" stages = 2 microbatches = 1 ["(0F0;0B0;1F0)OVERLAP_F_B"]

// -----

piper.mesh @mesh [pp = 2 unrolled]
piper.strategy @strategy mesh = @mesh {
  // expected-error @+1 {{expected policy to be "min_cut", "full" or "save", got "most"}}
  piper.do.remat <all> policy = "most"
}

// -----

piper.mesh @mesh [pp = 2 unrolled]
piper.strategy @strategy mesh = @mesh {
  // expected-error @+1 {{expected to select chunks, got #piper.select<state = "w">}}
  piper.do.remat <state = "w"> policy = "full"
}

// -----

piper.mesh @mesh [pp = 2 unrolled]
piper.strategy @strategy mesh = @mesh {
  // expected-error @+1 {{expected no ops beside policy "save", which computes nothing again}}
  piper.do.remat <all> policy = "save" ops ["aten.*"]
}
