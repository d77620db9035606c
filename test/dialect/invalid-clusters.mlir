// Sums, updates and programs: every rule, broken once.
// RUN: piper-opt %s -split-input-file -verify-diagnostics

//===----------------------------------------------------------------------===//
// Sums and updates
//===----------------------------------------------------------------------===//

piper.cluster @cluster of @train phase = reduced mesh = @mesh microbatches = 1 {
  // expected-error @+1 {{expected at least one contribution}}
  %0 = sum at 0 : tensor<4xf32> -> tensor<4xf32>
}

// -----

!P = tensor<4xf32, #piper.layout<dp = partial>>
!R = tensor<4xf32, #piper.layout<dp = replicated>>
piper.cluster @cluster of @train phase = reduced mesh = @mesh microbatches = 1 {
  %x = read @w$b slot grad at 0 : !P
  // expected-error @+1 {{expected contributions like the result 'tensor<4xf32, #piper.layout<dp = replicated>>', got 'tensor<4xf32, #piper.layout<dp = partial>>'}}
  %0 = sum %x at 0 : !P -> !R
}

// -----

!P = tensor<4xf32, #piper.layout<dp = partial>>
!W = tensor<4xf32, #piper.layout<dp = varying>>
piper.cluster @cluster of @train phase = reduced mesh = @mesh microbatches = 1 {
  %x = read @w$b slot grad at 0 : !P
  // expected-error @+1 {{expected a contribution like the sum 'tensor<4xf32, #piper.layout<dp = varying>>', got 'tensor<4xf32, #piper.layout<dp = partial>>'}}
  %0 = accumulate @w$b %x at 0 : !P -> !W
}

// -----

piper.cluster @cluster of @train phase = reduced mesh = @mesh microbatches = 1 {
  // expected-error @+1 {{expected a scalar result, got 'tensor<1xf32>'}}
  %0 = sumsq at 0 : () -> tensor<1xf32>
}

// -----

!P = tensor<4xf32, #piper.layout<dp = partial>>
piper.cluster @cluster of @train phase = reduced mesh = @mesh microbatches = 1 {
  %x = read @w$b slot grad at 0 : !P
  // expected-error @+1 {{expected finished gradients, got 'tensor<4xf32, #piper.layout<dp = partial>>'}}
  %0 = sumsq %x at 0 : (!P) -> tensor<f32, #piper.layout<dp = partial>>
}

// -----

!S = tensor<2xf32, #piper.layout<dp = shard(0)>>
piper.cluster @cluster of @train phase = reduced mesh = @mesh microbatches = 1 {
  %x = read @w$b slot grad at 0 : !S
  // expected-error @+1 {{expected a result that is partial on axis 'dp', got 'tensor<f32, #piper.layout<dp = replicated>>'}}
  %0 = sumsq %x at 0 : (!S) -> tensor<f32, #piper.layout<dp = replicated>>
}

// -----

// A missing reduction is a type error.
!P = tensor<4xf32, #piper.layout<dp = partial>>
piper.cluster @cluster of @train phase = reduced mesh = @mesh microbatches = 1 {
  %x = read @w$b slot grad at 0 : !P
  // expected-error @+1 {{expected a gradient that is reduced over axis 'dp', got 'tensor<4xf32, #piper.layout<dp = partial>>'}}
  %0 = update @w$b %x at 0 optimizer "train:sgd" : !P -> tensor<4xf32>
}

// -----

piper.cluster @cluster of @train phase = reduced mesh = @mesh microbatches = 1 {
  %x = read @w$b slot grad at 0 : tensor<4xf32>
  // expected-error @+1 {{expected a norm to clip by}}
  %0 = update @w$b %x at 0 optimizer "train:sgd" clip 1.0 : tensor<4xf32> -> tensor<4xf32>
}

// -----

// Ranks that do not hold the same may not decide.
!P = tensor<f32, #piper.layout<dp = partial>>
piper.cluster @cluster of @train phase = reduced mesh = @mesh microbatches = 1 {
  %x = read @w$b slot grad at 0 : !P
  // expected-error @+1 {{expected a scalar that is the same on all ranks, got 'tensor<f32, #piper.layout<dp = partial>>'}}
  %0 = nonfinite %x at 0 : !P -> tensor<i1>
}

// -----

piper.cluster @cluster of @train phase = reduced mesh = @mesh microbatches = 1 {
  %x = read @w$b slot grad at 0 : tensor<4xf32>
  // expected-error @+1 {{expected a scalar that is the same on all ranks, got 'tensor<4xf32>'}}
  %0 = nonfinite %x at 0 : tensor<4xf32> -> tensor<i1>
}

// -----

piper.cluster @cluster of @train phase = reduced mesh = @mesh microbatches = 1 {
  %x = read @w$b slot grad at 0 : tensor<f32>
  // expected-error @+1 {{expected a result of type 'tensor<i1>', got 'tensor<f32>'}}
  %0 = nonfinite %x at 0 : tensor<f32> -> tensor<f32>
}

// -----

piper.chunk @layer.0$F pass = F (%n: tensor<2xi64>) {
  // expected-error @+1 {{expected one result per operand, got 2 for 1}}
  %0, %1 = host_wait %n : tensor<2xi64> -> !piper.sizes, !piper.sizes
  return
}

// -----

piper.chunk @layer.0$F pass = F (%n: tensor<2xi32>) {
  // expected-error @+1 {{expected 64-bit integers, got 'tensor<2xi32>'}}
  %0 = host_wait %n : tensor<2xi32> -> !piper.sizes
  return
}

// -----

!P = tensor<4xf32, #piper.layout<dp = partial>>
!W = tensor<4xf64, #piper.layout<dp = partial>>
piper.cluster @cluster of @train phase = ordered mesh = @mesh microbatches = 1 {
  %x = read @w$b slot grad at 0 : !P
  // expected-error @+1 {{expected to continue a sum of type 'tensor<4xf64, #piper.layout<dp = partial>>', got 'tensor<4xf32, #piper.layout<dp = partial>>'}}
  %0 = "piper.accumulate"(%x, %x) <{bucket = @w$b, at = 0 : i64, operandSegmentSizes = array<i32: 1, 1, 0>}> : (!P, !P) -> !W
}

// -----

!P = tensor<4xf32, #piper.layout<dp = partial>>
piper.mesh @mesh [dp = 2 manual]
piper.cluster @cluster of @train phase = ordered mesh = @mesh microbatches = 1 {
  %x = input "x" mb 0 at 0 : !P
  // expected-error @+1 {{expected a bucket, got @missing}}
  %0 = accumulate @missing %x at 0 : !P -> !P
}

// -----

!P = tensor<4xf32, #piper.layout<dp = partial>>
piper.mesh @mesh [dp = 2 manual]
piper.state @w parameter frozen : tensor<4xf32>
piper.bucket @w$b [@w] value : tensor<4xf32>
piper.cluster @cluster of @train phase = ordered mesh = @mesh microbatches = 1 {
  %x = input "x" mb 0 at 0 : !P
  // expected-error @+1 {{expected a bucket with slot grad, got @w$b}}
  %0 = accumulate @w$b %x at 0 : !P -> !P
}

// -----

// Gradients are accumulated in f32.
!P = tensor<4xbf16, #piper.layout<dp = partial>>
piper.mesh @mesh [dp = 2 manual]
piper.state @w parameter : tensor<4xbf16>
piper.bucket @w$b [@w] value : tensor<4xbf16> grad : tensor<4xf32, #piper.layout<dp = partial>>
piper.cluster @cluster of @train phase = ordered mesh = @mesh microbatches = 1 {
  %x = input "x" mb 0 at 0 : !P
  // expected-error @+1 {{expected 'tensor<4xf32, #piper.layout<dp = partial>>', the type of slot grad of @w$b, got 'tensor<4xbf16, #piper.layout<dp = partial>>'}}
  %0 = accumulate @w$b %x at 0 : !P -> !P
}

// -----

!P = tensor<4xbf16, #piper.layout<dp = partial>>
piper.mesh @mesh [dp = 2 manual]
piper.state @w parameter : tensor<4xbf16>
piper.bucket @w$b [@w] value : tensor<4xbf16> grad : tensor<4xf32, #piper.layout<dp = partial>>
piper.cluster @cluster of @train phase = reduced mesh = @mesh microbatches = 1 {
  %x = input "x" mb 0 at 0 : !P
  // expected-error @+1 {{expected 'tensor<4xf32, #piper.layout<dp = partial>>', the type of slot grad of @w$b, got 'tensor<4xbf16, #piper.layout<dp = partial>>'}}
  %0 = sum bucket @w$b %x at 0 : !P -> !P
}

// -----

// What is whole would be counted by every rank.
!S = tensor<2xf32, #piper.layout<dp = shard(0)>>
!R = tensor<4xf32, #piper.layout<dp = replicated>>
piper.cluster @cluster of @train phase = reduced mesh = @mesh microbatches = 1 {
  %x = input "x" mb 0 at 0 : !S
  %y = input "y" mb 0 at 0 : !R
  // expected-error @+1 {{expected operands that are all whole or all parts on axis 'dp', got 'tensor<2xf32, #piper.layout<dp = shard(0)>>', 'tensor<4xf32, #piper.layout<dp = replicated>>'}}
  %0 = sumsq %x, %y at 0 : (!S, !R) -> tensor<f32, #piper.layout<dp = partial>>
}

// -----

!R = tensor<4xf32, #piper.layout<dp = replicated>>
piper.cluster @cluster of @train phase = reduced mesh = @mesh microbatches = 1 {
  %x = input "x" mb 0 at 0 : !R
  // expected-error @+1 {{expected a result that is replicated on axis 'dp', got 'tensor<f32, #piper.layout<dp = partial>>'}}
  %0 = sumsq %x at 0 : (!R) -> tensor<f32, #piper.layout<dp = partial>>
}

// -----

piper.mesh @mesh [dp = 2 manual]
piper.cluster @cluster of @train phase = reduced mesh = @mesh microbatches = 1 {
  %x = input "x" mb 0 at 0 : tensor<4xf32>
  // expected-error @+1 {{expected a bucket, got @missing}}
  %0 = update @missing %x at 0 optimizer "train:sgd" : tensor<4xf32> -> tensor<4xf32>
}

// -----

// The optimizer steps a rank's part of the value, in the dtype of gradients.
!S = tensor<2xbf16, #piper.layout<dp = shard(0)>>
!R = tensor<4xf32, #piper.layout<dp = replicated>>
piper.mesh @mesh [dp = 2 manual]
piper.state @w parameter : tensor<4xbf16>
piper.bucket @w$b [@w] value : !S grad : tensor<4xf32, #piper.layout<dp = partial>>
piper.cluster @cluster of @train phase = reduced mesh = @mesh microbatches = 1 {
  %x = input "x" mb 0 at 0 : !R
  // expected-error @+1 {{expected a gradient of type 'tensor<2xf32, #piper.layout<dp = shard(0)>>', as slots value and grad of @w$b say, got 'tensor<4xf32, #piper.layout<dp = replicated>>'}}
  %0 = update @w$b %x at 0 optimizer "train:sgd" : !R -> !S
}

// -----

!R = tensor<4xf32, #piper.layout<dp = replicated>>
piper.mesh @mesh [dp = 2 manual]
piper.state @w parameter : tensor<4xbf16>
piper.bucket @w$b [@w] value : tensor<4xbf16, #piper.layout<dp = replicated>> grad : tensor<4xf32, #piper.layout<dp = partial>>
piper.cluster @cluster of @train phase = reduced mesh = @mesh microbatches = 1 {
  %x = input "x" mb 0 at 0 : !R
  // expected-error @+1 {{expected 'tensor<4xbf16, #piper.layout<dp = replicated>>', the type of slot value of @w$b, got 'tensor<4xf32, #piper.layout<dp = replicated>>'}}
  %0 = update @w$b %x at 0 optimizer "train:sgd" : !R -> !R
}

// -----

//===----------------------------------------------------------------------===//
// Programs
//===----------------------------------------------------------------------===//

piper.cluster @cluster of @train phase = ordered mesh = @mesh microbatches = 1 {
  %x = input "x" mb 0 at 0 : tensor<4xf32>
  // expected-error @+1 {{expects parent op 'piper.program'}}
  %0 = send %x to 1 mb 0 on @comm : tensor<4xf32>
}

// -----

piper.program @program of @cluster at 1 {
  %x = input "x" mb 0 : tensor<4xf32>
  // expected-error @+1 {{expected a peer other than the program's coordinate, got 1}}
  %0 = send %x to 1 mb 0 on @comm : tensor<4xf32>
}

// -----

piper.program @program of @cluster at 1 {
  // expected-error @+1 {{expected a peer other than the program's coordinate, got 1}}
  %x, %0 = recv from 1 mb 0 on @comm : tensor<4xf32>
}

// -----

piper.program @program of @cluster at 1 {
  %x = input "x" mb 0 : tensor<4xf32>
  // expected-error @+1 {{expected a stream or communicator, got @missing}}
  %0 = send %x to 0 mb 0 on @missing : tensor<4xf32>
}

// -----

piper.program @program of @cluster at 1 {
  // expected-error @+1 {{expected a stream or communicator, got @missing}}
  %x, %0 = recv from 0 mb 0 on @missing : tensor<4xf32>
}

// -----

// A cluster says which mesh it is for.
// expected-error @+1 {{expected a mesh, got @mesh}}
piper.cluster @train$cluster of @train phase = unrolled mesh = @mesh microbatches = 1 {}
