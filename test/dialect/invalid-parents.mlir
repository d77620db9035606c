// No op decides whether a rank takes part in a collective: inside any op but a step, a
// chunk, a cluster or a program there is none. An `if` of another dialect stands for
// what could decide.
// RUN: piper-opt %s -split-input-file -verify-diagnostics -allow-unregistered-dialect

!P = tensor<4xf32, #piper.layout<dp = partial>>
!R = tensor<4xf32, #piper.layout<dp = replicated>>
piper.mesh @mesh [pp = 1 unrolled, dp = 2 manual]
piper.program @train$pp0 of @train$cluster at 0 {
  %x = input "x" mb 0 : !P
  "test.if"() ({
    // expected-error @+1 {{'piper.all_reduce' op expects parent op to be one of 'piper.step, piper.chunk, piper.cluster, piper.program'}}
    %0 = piper.all_reduce %x over ["dp"] : !P -> !R
  }) : () -> ()
}

// -----

!R = tensor<4xf32, #piper.layout<dp = replicated>>
!S = tensor<2xf32, #piper.layout<dp = shard(0)>>
piper.mesh @mesh [pp = 1 unrolled, dp = 2 manual]
piper.program @train$pp0 of @train$cluster at 0 {
  %x = input "x" mb 0 : !S
  "test.if"() ({
    // expected-error @+1 {{'piper.all_gather' op expects parent op to be one of 'piper.step, piper.chunk, piper.cluster, piper.program'}}
    %0 = piper.all_gather %x dim 0 over ["dp"] : !S -> !R
  }) : () -> ()
}

// -----

!P = tensor<4xf32, #piper.layout<dp = partial>>
!S = tensor<2xf32, #piper.layout<dp = shard(0)>>
piper.mesh @mesh [pp = 1 unrolled, dp = 2 manual]
piper.program @train$pp0 of @train$cluster at 0 {
  %x = input "x" mb 0 : !P
  "test.if"() ({
    // expected-error @+1 {{'piper.reduce_scatter' op expects parent op to be one of 'piper.step, piper.chunk, piper.cluster, piper.program'}}
    %0 = piper.reduce_scatter %x dim 0 over ["dp"] : !P -> !S
  }) : () -> ()
}

// -----

!V = tensor<4xf32, #piper.layout<dp = varying>>
piper.mesh @mesh [pp = 1 unrolled, dp = 2 manual]
piper.program @train$pp0 of @train$cluster at 0 {
  %x = input "x" mb 0 : !V
  "test.if"() ({
    // expected-error @+1 {{'piper.all_to_all' op expects parent op to be one of 'piper.step, piper.chunk, piper.cluster, piper.program'}}
    %0 = piper.all_to_all %x dim 0 over ["dp"] : !V -> !V
  }) : () -> ()
}

// -----

!V = tensor<4xf32, #piper.layout<dp = varying>>
piper.mesh @mesh [pp = 1 unrolled, dp = 2 manual]
piper.program @train$pp0 of @train$cluster at 0 {
  %x = input "x" mb 0 : !V
  "test.if"() ({
    // expected-error @+1 {{'piper.permute' op expects parent op to be one of 'piper.step, piper.chunk, piper.cluster, piper.program'}}
    %0 = piper.permute %x shift 1 over ["dp"] : !V -> !V
  }) : () -> ()
}

// -----

!R = tensor<4xf32, #piper.layout<dp = replicated>>
!V = tensor<4xf32, #piper.layout<dp = varying>>
piper.mesh @mesh [pp = 1 unrolled, dp = 2 manual]
piper.program @train$pp0 of @train$cluster at 0 {
  %x = input "x" mb 0 : !V
  "test.if"() ({
    // expected-error @+1 {{'piper.broadcast' op expects parent op to be one of 'piper.step, piper.chunk, piper.cluster, piper.program'}}
    %0 = piper.broadcast %x root 0 over ["dp"] : !V -> !R
  }) : () -> ()
}

// -----

!V = tensor<4xf32, #piper.layout<dp = varying>>
piper.mesh @mesh [pp = 1 unrolled, dp = 2 manual]
piper.kernel @k(%x: !V) -> !V {
  // expected-error @+1 {{'piper.permute' op expects parent op to be one of 'piper.step, piper.chunk, piper.cluster, piper.program'}}
  %0 = permute %x shift 1 over ["dp"] : !V -> !V
  return %0 : !V
}
