// Communication that holds more of a device than it may.
// RUN: piper-opt %s -split-input-file -verify-diagnostics --piper-verify=max-sms=16
// RUN: piper-opt %s -split-input-file --piper-verify -o %t

// A stream is one queue per communicator, and each may spin with its own SMs, one
// that receives no less than one that sends: coordinate 0 has three.

!x = tensor<4xf32>
piper.mesh @mesh [pp = 2 unrolled]
// expected-note @+2 {{@send$0.1 holds 7, the sms of @pp}}
// expected-note @+1 {{@send$1.0 holds 7, the sms of @pp}}
piper.stream @pp sms = 7
// expected-note @+1 {{@reduce.pp$0.1 holds 3, the sms of @norm}}
piper.stream @norm priority = 1 sms = 3
piper.comm @send$0.1 axes [] coordinates [0, 1] for @pp
piper.comm @send$1.0 axes [] coordinates [1, 0] for @pp
piper.comm @reduce.pp$0.1 axes [] coordinates [0, 1] for @norm
// expected-error @+1 {{expected communication of @train$pp0 to hold at most 16 SMs at once, got 17}}
piper.program @train$pp0 of @train$cluster at 0 {
  %x = input "x" mb 0 : !x
  %e = record
  %s = send %x to 1 mb 0 on @send$0.1 after %e : !x
  %t = send %x to 1 mb 1 on @send$0.1 after %e : !x
  %y, %r = recv from 1 mb 0 on @send$1.0 after %e : !x
  %n, %f = all_reduce %x over [] across "pp" on @reduce.pp$0.1 after %e : !x -> !x, !piper.event
}
piper.program @train$pp1 of @train$cluster at 1 {
  %x = input "x" mb 0 : !x
  %e = record
  %z, %s = recv from 0 mb 0 on @send$0.1 after %e : !x
  %y, %t = recv from 0 mb 1 on @send$0.1 after %e : !x
  %r = send %x to 0 mb 0 on @send$1.0 after %e : !x
  %n, %f = all_reduce %x over [] across "pp" on @reduce.pp$0.1 after %e : !x -> !x, !piper.event
}

// -----

// 16 SMs are no more than the limit. A communicator that is declared only, one
// of a single rank and streams that no communicator is for hold none, whether
// they say sms or not. Compute is no communication.

!x = tensor<4xf32>
piper.mesh @mesh [pp = 2 unrolled, dp = 1 manual]
piper.stream @compute
piper.stream @pp sms = 8
piper.stream @dp
piper.comm @send$0.1 axes [] coordinates [0, 1] for @pp
piper.comm @send$1.0 axes [] coordinates [1, 0] for @pp
piper.comm @unused axes [] coordinates [1, 0] for @dp
piper.comm @reduce.dp$0 axes ["dp"] coordinates [0] for @dp
piper.program @train$pp0 of @train$cluster at 0 {
  %x = input "x" mb 0 : tensor<4xf32, #piper.layout<dp = partial>>
  %e = record
  %n, %f = all_reduce %x over ["dp"] on @reduce.dp$0 after %e : tensor<4xf32, #piper.layout<dp = partial>> -> tensor<4xf32, #piper.layout<dp = replicated>>, !piper.event
  %i = input "x" mb 0 : !x
  %g = record
  %s = send %i to 1 mb 0 on @send$0.1 after %g : !x
  %y, %r = recv from 1 mb 0 on @send$1.0 after %g : !x
}
piper.program @train$pp1 of @train$cluster at 1 {
  %x = input "x" mb 0 : !x
  %e = record
  %y, %s = recv from 0 mb 0 on @send$0.1 after %e : !x
  %r = send %x to 0 mb 0 on @send$1.0 after %e : !x
}

// -----

// What a stream holds must be known.

!x = tensor<4xf32>
piper.mesh @mesh [pp = 2 unrolled]
// expected-error @+1 {{expected @pp to state sms, since those of communication are limited and @train$pp0 communicates on @send$0.1}}
piper.stream @pp priority = 1
piper.comm @send$0.1 axes [] coordinates [0, 1] for @pp
piper.program @train$pp0 of @train$cluster at 0 {
  %x = input "x" mb 0 : !x
  %e = record
  %s = send %x to 1 mb 0 on @send$0.1 after %e : !x
}
piper.program @train$pp1 of @train$cluster at 1 {
  %e = record
  %y, %s = recv from 0 mb 0 on @send$0.1 after %e : !x
}
