// Programs that use what is not there yet, or not any more.
// RUN: piper-opt %s -split-input-file -verify-diagnostics --piper-verify

// A send waits for what it sends.

!x = tensor<4xf32>
piper.mesh @mesh [pp = 2 unrolled]
piper.stream @pp
piper.comm @send$0.1 axes [] coordinates [0, 1] for @pp
piper.comm @send$1.0 axes [] coordinates [1, 0] for @pp
piper.program @train$pp0 of @train$cluster at 0 {
  // expected-note @+1 {{it is made here}}
  %x = input "x" mb 0 : !x
  // expected-error @+1 {{expected to wait for what makes operand 0 on another stream}}
  %s = send %x to 1 mb 0 on @send$0.1 : !x
}

// -----

// A record that comes too early does not help.

!x = tensor<4xf32>
piper.mesh @mesh [pp = 2 unrolled]
piper.stream @pp
piper.comm @send$0.1 axes [] coordinates [0, 1] for @pp
piper.comm @send$1.0 axes [] coordinates [1, 0] for @pp
piper.program @train$pp0 of @train$cluster at 0 {
  %e = record
  // expected-note @+1 {{it is made here}}
  %x = input "x" mb 0 : !x
  // expected-error @+1 {{expected to wait for what makes operand 0 on another stream}}
  %s = send %x to 1 mb 0 on @send$0.1 after %e : !x
}

// -----

// Compute waits for what it receives; an event that another instruction awaited
// before is enough, one of another message is not.

!x = tensor<4xf32>
piper.mesh @mesh [pp = 2 unrolled]
piper.stream @pp
piper.comm @send$0.1 axes [] coordinates [0, 1] for @pp
piper.comm @send$1.0 axes [] coordinates [1, 0] for @pp
piper.program @train$pp1 of @train$cluster at 1 {
  %f = record
  %y, %r = recv from 0 mb 0 on @send$0.1 after %f : !x
  // expected-note @+1 {{it is made here}}
  %z, %s = recv from 0 mb 1 on @send$0.1 after %f : !x
  output "y" %y after %r : !x
  output "again" %y : !x
  // expected-error @+1 {{expected to wait for what makes operand 0 on another stream}}
  output "z" %z : !x
}

// -----

// A value is gone once it is freed.

!x = tensor<4xf32>
piper.mesh @mesh [pp = 2 unrolled]
piper.stream @pp
piper.comm @send$0.1 axes [] coordinates [0, 1] for @pp
piper.comm @send$1.0 axes [] coordinates [1, 0] for @pp
piper.program @train$pp0 of @train$cluster at 0 {
  %x = input "x" mb 0 : !x
  // expected-note @+1 {{it is released here}}
  free %x : !x
  // expected-error @+1 {{expected a value that is still there, got operand 0, which was released}}
  output "x" %x : !x
}

// -----

// It is freed once.

!x = tensor<4xf32>
piper.mesh @mesh [pp = 2 unrolled]
piper.stream @pp
piper.comm @send$0.1 axes [] coordinates [0, 1] for @pp
piper.comm @send$1.0 axes [] coordinates [1, 0] for @pp
piper.program @train$pp0 of @train$cluster at 0 {
  %x = input "x" mb 0 : !x
  // expected-note @+1 {{it is released here}}
  free %x : !x
  // expected-error @+1 {{expected a value that is still there, got operand 0, which was released}}
  free %x : !x
}

// -----

!x = tensor<4xf32>
piper.mesh @mesh [pp = 2 unrolled]
piper.stream @pp
piper.comm @send$0.1 axes [] coordinates [0, 1] for @pp
piper.comm @send$1.0 axes [] coordinates [1, 0] for @pp
piper.program @train$pp0 of @train$cluster at 0 {
  %x = input "x" mb 0 : !x
  // expected-error @+1 {{expected to release each value once}}
  free %x, %x : !x, !x
}

// -----

// Whoever reads it on another stream finishes first.

!x = tensor<4xf32>
piper.mesh @mesh [pp = 2 unrolled]
piper.stream @pp
piper.comm @send$0.1 axes [] coordinates [0, 1] for @pp
piper.comm @send$1.0 axes [] coordinates [1, 0] for @pp
piper.program @train$pp0 of @train$cluster at 0 {
  %x = input "x" mb 0 : !x
  %e = record
  // expected-note @+1 {{it is read here}}
  %s = send %x to 1 mb 0 on @send$0.1 after %e : !x
  // expected-error @+1 {{expected to wait for a stream that reads what it releases}}
  free %x : !x
}

// -----

// What is received is freed behind its arrival.

!x = tensor<4xf32>
piper.mesh @mesh [pp = 2 unrolled]
piper.stream @pp
piper.comm @send$0.1 axes [] coordinates [0, 1] for @pp
piper.comm @send$1.0 axes [] coordinates [1, 0] for @pp
piper.program @train$pp1 of @train$cluster at 1 {
  %f = record
  // expected-note @+1 {{it is made here}}
  %y, %r = recv from 0 mb 0 on @send$0.1 after %f : !x
  // expected-error @+1 {{expected to wait for what makes operand 0 on another stream}}
  free %y : !x
}

// -----

// A buffer may be one that compute has just freed, and may still be using.

!x = tensor<4xf32>
piper.mesh @mesh [pp = 2 unrolled]
piper.stream @pp
piper.comm @send$0.1 axes [] coordinates [0, 1] for @pp
piper.comm @send$1.0 axes [] coordinates [1, 0] for @pp
piper.program @train$pp1 of @train$cluster at 1 {
  %f = record
  %x = input "x" mb 0 : !x
  // expected-note @+1 {{compute releases memory here}}
  free %x : !x
  // expected-error @+1 {{expected to wait for the point of compute at which its buffer is taken}}
  %y, %r = recv from 0 mb 0 on @send$0.1 after %f : !x
}

// -----

// An accumulation overwrites the sum so far: what reads it finishes first.

!x = tensor<4xf32>
piper.mesh @mesh [pp = 2 unrolled]
piper.stream @pp
piper.comm @send$0.1 axes [] coordinates [0, 1] for @pp
piper.comm @send$1.0 axes [] coordinates [1, 0] for @pp
piper.state @w parameter : !x holders [0]
piper.state @v parameter : !x holders [0]
piper.bucket @w$b [@w] value : !x grad : !x
piper.bucket @v$b [@v] value : !x grad : !x
piper.program @train$pp0 of @train$cluster at 0 {
  %x = input "x" mb 0 : !x
  %G = accumulate @w$b %x : !x -> !x
  %e = record
  // expected-note @+1 {{it is read here}}
  %s = send %G to 1 mb 0 on @send$0.1 after %e : !x
  // expected-error @+1 {{expected to wait for a stream that reads what it releases}}
  %H = accumulate @w$b %x onto %G : !x -> !x
}

// -----

!x = tensor<4xf32>
piper.mesh @mesh [pp = 2 unrolled]
piper.stream @pp
piper.comm @send$0.1 axes [] coordinates [0, 1] for @pp
piper.comm @send$1.0 axes [] coordinates [1, 0] for @pp
piper.state @w parameter : !x holders [0]
piper.state @v parameter : !x holders [0]
piper.bucket @w$b [@w] value : !x grad : !x
piper.bucket @v$b [@v] value : !x grad : !x
piper.program @train$pp0 of @train$cluster at 0 {
  %x = input "x" mb 0 : !x
  %G = accumulate @w$b %x : !x -> !x
  // expected-note @+1 {{it is released here}}
  %H = accumulate @w$b %x onto %G : !x -> !x
  // expected-error @+1 {{expected a value that is still there, got operand 0, which was released}}
  output "g" %G : !x
}

// -----

// A gradient in a bucket is reduced in place: its part of the sum is gone.

!x = tensor<4xf32>
piper.mesh @mesh [pp = 2 unrolled]
piper.stream @pp
piper.comm @send$0.1 axes [] coordinates [0, 1] for @pp
piper.comm @reduce.pp$0.1 axes [] coordinates [0, 1] for @pp
piper.state @w parameter : !x holders [0]
piper.state @v parameter : !x holders [0]
piper.bucket @w$b [@w] value : !x grad : !x
piper.bucket @v$b [@v] value : !x grad : !x
piper.program @train$pp0 of @train$cluster at 0 {
  %x = input "x" mb 0 : !x
  %G = accumulate @w$b %x : !x -> !x
  %e = record
  // expected-note @+1 {{it is released here}}
  %R, %f = all_reduce %G over [] across "pp" on @reduce.pp$0.1 after %e : !x -> !x, !piper.event
  // expected-error @+1 {{expected a value that is still there, got operand 0, which was released}}
  output "g" %G after %f : !x
}

// -----

// Whoever reads that part finishes before the reduction.

!x = tensor<4xf32>
piper.mesh @mesh [pp = 2 unrolled]
piper.stream @pp
piper.comm @send$0.1 axes [] coordinates [0, 1] for @pp
piper.comm @reduce.pp$0.1 axes [] coordinates [0, 1] for @pp
piper.state @w parameter : !x holders [0]
piper.state @v parameter : !x holders [0]
piper.bucket @w$b [@w] value : !x grad : !x
piper.bucket @v$b [@v] value : !x grad : !x
piper.program @train$pp0 of @train$cluster at 0 {
  %x = input "x" mb 0 : !x
  %G = accumulate @w$b %x : !x -> !x
  %e = record
  // expected-note @+1 {{it is read here}}
  %s = send %G to 1 mb 0 on @send$0.1 after %e : !x
  // expected-error @+1 {{expected to wait for a stream that reads what it releases}}
  %R, %f = all_reduce %G over [] across "pp" on @reduce.pp$0.1 after %e : !x -> !x, !piper.event
}

// -----

// A bucket holds one sum: the next, which starts from zero, overwrites it.

!x = tensor<4xf32>
piper.mesh @mesh [pp = 2 unrolled]
piper.stream @pp
piper.comm @send$0.1 axes [] coordinates [0, 1] for @pp
piper.comm @reduce.pp$0.1 axes [] coordinates [0, 1] for @pp
piper.state @w parameter : !x holders [0]
piper.state @v parameter : !x holders [0]
piper.bucket @w$b [@w] value : !x grad : !x
piper.bucket @v$b [@v] value : !x grad : !x
piper.program @train$pp0 of @train$cluster at 0 {
  %x = input "x" mb 0 : !x
  %G = accumulate @w$b %x : !x -> !x
  // expected-note @+1 {{it is released here}}
  %H = accumulate @w$b %x : !x -> !x
  // expected-error @+1 {{expected a value that is still there, got operand 0, which was released}}
  output "g" %G : !x
}

// -----

// A sum lies in its own bucket.

!x = tensor<4xf32>
piper.mesh @mesh [pp = 2 unrolled]
piper.stream @pp
piper.comm @send$0.1 axes [] coordinates [0, 1] for @pp
piper.comm @reduce.pp$0.1 axes [] coordinates [0, 1] for @pp
piper.state @w parameter : !x holders [0]
piper.state @v parameter : !x holders [0]
piper.bucket @w$b [@w] value : !x grad : !x
piper.bucket @v$b [@v] value : !x grad : !x
piper.program @train$pp0 of @train$cluster at 0 {
  %x = input "x" mb 0 : !x
  // expected-note @+1 {{the last addition is here}}
  %G = accumulate @w$b %x : !x -> !x
  %H = accumulate @v$b %x : !x -> !x
  // expected-error @+1 {{expected to continue the sum of @w$b so far, got another `onto`}}
  %K = accumulate @w$b %x onto %H : !x -> !x
}

// -----

// An update overwrites what was read of the bucket.

!x = tensor<4xf32>
piper.mesh @mesh [pp = 2 unrolled]
piper.stream @pp
piper.comm @send$0.1 axes [] coordinates [0, 1] for @pp
piper.comm @reduce.pp$0.1 axes [] coordinates [0, 1] for @pp
piper.state @w parameter : !x holders [0]
piper.state @v parameter : !x holders [0]
piper.bucket @w$b [@w] value : !x grad : !x
piper.bucket @v$b [@v] value : !x grad : !x
piper.program @train$pp0 of @train$cluster at 0 {
  %x = input "x" mb 0 : !x
  %w = read @w$b slot value : !x
  // expected-note @+1 {{it is released here}}
  %u = update @w$b %x optimizer "train:sgd" : !x -> !x
  // expected-error @+1 {{expected a value that is still there, got operand 0, which was released}}
  output "w" %w : !x
}

// -----

// Whoever reads that on another stream finishes before the update.

!x = tensor<4xf32>
piper.mesh @mesh [pp = 2 unrolled]
piper.stream @pp
piper.comm @send$0.1 axes [] coordinates [0, 1] for @pp
piper.comm @reduce.pp$0.1 axes [] coordinates [0, 1] for @pp
piper.state @w parameter : !x holders [0]
piper.state @v parameter : !x holders [0]
piper.bucket @w$b [@w] value : !x grad : !x
piper.bucket @v$b [@v] value : !x grad : !x
piper.program @train$pp0 of @train$cluster at 0 {
  %x = input "x" mb 0 : !x
  %w = read @w$b slot value : !x
  %e = record
  // expected-note @+1 {{it is read here}}
  %s = send %w to 1 mb 0 on @send$0.1 after %e : !x
  // expected-error @+1 {{expected to wait for a stream that reads what it releases}}
  %u = update @w$b %x optimizer "train:sgd" : !x -> !x
}

// -----

// What a program of a lowered cluster makes is freed.

!x = tensor<4xf32>
piper.mesh @mesh [dp = 2 manual]
piper.chunk @a.0$F pass = F stage = 0 (%x: !x) -> !x { return %x : !x }
piper.step @train phase = bucketed mesh = @mesh inputs ["x"] dims [0] microbatches = 1 homes [[0]] (%x: !x) {
  %0 = run @a.0$F(%x) : (!x) -> !x
  output "y" %0 : !x
}
piper.cluster @train$cluster of @train phase = lowered mesh = @mesh microbatches = 1 {
  %x = input "x" mb 0 at 0 : !x
  %y = run @a.0$F(%x) mb 0 at 0 : (!x) -> !x
  output "y" %y at 0 : !x
}
piper.program @train$0 of @train$cluster at 0 {
  %x = input "x" mb 0 : !x
  // expected-error @+1 {{expected result 0 of 'piper.run' of @a.0$F for microbatch 0 to be freed, got no free of it}}
  %y = run @a.0$F(%x) mb 0 : (!x) -> !x
  output "y" %y : !x
  free %x : !x
}
