// Programs whose communicators have ends that disagree.
// RUN: piper-opt %s -split-input-file -verify-diagnostics --piper-verify

// Every coordinate has a program, and only one.

!x = tensor<4xf32>
piper.mesh @mesh [pp = 2 unrolled]
piper.stream @pp
piper.comm @send$0.1 axes [] coordinates [0, 1] for @pp
piper.comm @send$1.0 axes [] coordinates [1, 0] for @pp
// expected-error @+1 {{expected a program at each of 2 coordinates, got none at 1}}
piper.program @train$pp0 of @train$cluster at 0 {
  %x = input "x" mb 0 : !x
  %e = record
  %s = send %x to 1 mb 0 on @send$0.1 after %e : !x
}

// -----

!x = tensor<4xf32>
piper.mesh @mesh [pp = 2 unrolled]
piper.stream @pp
piper.comm @send$0.1 axes [] coordinates [0, 1] for @pp
piper.comm @send$1.0 axes [] coordinates [1, 0] for @pp
// expected-note @+1 {{the other program is here}}
piper.program @train$pp0 of @train$cluster at 0 {
  %x = input "x" mb 0 : !x
  %e = record
  %s = send %x to 1 mb 0 on @send$0.1 after %e : !x
}
// expected-error @+1 {{expected one program at coordinate 0, got a second}}
piper.program @train$pp0a of @train$cluster at 0 {
  %x = input "x" mb 0 : !x
  %e = record
  %s = send %x to 1 mb 0 on @send$0.1 after %e : !x
}

// -----

!x = tensor<4xf32>
piper.mesh @mesh [pp = 2 unrolled]
piper.stream @pp
piper.comm @send$0.1 axes [] coordinates [0, 1] for @pp
piper.comm @send$1.0 axes [] coordinates [1, 0] for @pp
// expected-error @+1 {{expected a coordinate below 2, got 2}}
piper.program @train$pp2 of @train$cluster at 2 {
  %x = input "x" mb 0 : !x
}

// -----

// Messages leave in the order in which they are expected.

!x = tensor<4xf32>
piper.mesh @mesh [pp = 2 unrolled]
piper.stream @pp
piper.comm @send$0.1 axes [] coordinates [0, 1] for @pp
piper.comm @send$1.0 axes [] coordinates [1, 0] for @pp
piper.program @train$pp0 of @train$cluster at 0 {
  %x = input "x" mb 0 : !x
  %y = input "x" mb 1 : !x
  %e = record
  // expected-note @+1 {{the other end is here}}
  %s = send %y to 1 mb 1 on @send$0.1 after %e : !x
  %t = send %x to 1 mb 0 on @send$0.1 after %e : !x
}
piper.program @train$pp1 of @train$cluster at 1 {
  %f = record
  // expected-error @+1 {{expected number 0 on @send$0.1 to agree with coordinate 0, which has microbatch 1, got 0}}
  %y, %r = recv from 0 mb 0 on @send$0.1 after %f : !x
  %z, %s = recv from 0 mb 1 on @send$0.1 after %f : !x
}

// -----

// Both ends agree on the type.

!x = tensor<4xf32>
!z = tensor<8xf32>
piper.mesh @mesh [pp = 2 unrolled]
piper.stream @pp
piper.comm @send$0.1 axes [] coordinates [0, 1] for @pp
piper.comm @send$1.0 axes [] coordinates [1, 0] for @pp
piper.program @train$pp0 of @train$cluster at 0 {
  %x = input "x" mb 0 : !x
  %e = record
  // expected-note @+1 {{the other end is here}}
  %s = send %x to 1 mb 0 on @send$0.1 after %e : !x
}
piper.program @train$pp1 of @train$cluster at 1 {
  %f = record
  // expected-error @+1 {{expected number 0 on @send$0.1 to agree with coordinate 0, which has type 'tensor<4xf32>', got 'tensor<8xf32>'}}
  %y, %r = recv from 0 mb 0 on @send$0.1 after %f : !z
}

// -----

// A message that nobody receives.

!x = tensor<4xf32>
piper.mesh @mesh [pp = 2 unrolled]
piper.stream @pp
piper.comm @send$0.1 axes [] coordinates [0, 1] for @pp
piper.comm @send$1.0 axes [] coordinates [1, 0] for @pp
piper.program @train$pp0 of @train$cluster at 0 {
  %x = input "x" mb 0 : !x
  %e = record
  // expected-error @+1 {{expected number 0 on @send$0.1 at coordinate 1, too, got only 0 there}}
  %s = send %x to 1 mb 0 on @send$0.1 after %e : !x
}
piper.program @train$pp1 of @train$cluster at 1 {
  %f = record
}

// -----

// One that nobody sends.

!x = tensor<4xf32>
piper.mesh @mesh [pp = 2 unrolled]
piper.stream @pp
piper.comm @send$0.1 axes [] coordinates [0, 1] for @pp
piper.comm @send$1.0 axes [] coordinates [1, 0] for @pp
piper.program @train$pp0 of @train$cluster at 0 {
  %x = input "x" mb 0 : !x
  %e = record
  %s = send %x to 1 mb 0 on @send$0.1 after %e : !x
}
piper.program @train$pp1 of @train$cluster at 1 {
  %f = record
  %y, %r = recv from 0 mb 0 on @send$0.1 after %f : !x
  // expected-error @+1 {{expected number 1 on @send$0.1 at coordinate 0, too, got only 1 there}}
  %z, %s = recv from 0 mb 1 on @send$0.1 after %f : !x
}

// -----

// The communicator is that of the direction.

!x = tensor<4xf32>
piper.mesh @mesh [pp = 2 unrolled]
piper.stream @pp
// expected-note @+1 {{the communicator is here}}
piper.comm @send$1.0 axes [] coordinates [1, 0] for @pp
piper.program @train$pp0 of @train$cluster at 0 {
  %x = input "x" mb 0 : !x
  %e = record
  // expected-error @+1 {{expected a communicator of messages from 0 to 1}}
  %s = send %x to 1 mb 0 on @send$1.0 after %e : !x
}
piper.program @train$pp1 of @train$cluster at 1 {
}

// -----

// In a program communication lies on a communicator, not on a stream.

!x = tensor<4xf32>
piper.mesh @mesh [pp = 2 unrolled]
piper.stream @pp
piper.program @train$pp0 of @train$cluster at 0 {
  %x = input "x" mb 0 : !x
  %e = record
  // expected-error @+1 {{expected a communicator, got @pp}}
  %s = send %x to 1 mb 0 on @pp after %e : !x
}
piper.program @train$pp1 of @train$cluster at 1 {
}

// -----

// A collective takes place at all members.

!x = tensor<4xf32>
piper.mesh @mesh [pp = 2 unrolled]
piper.stream @pp
piper.comm @send$0.1 axes [] coordinates [0, 1] for @pp
piper.comm @send$1.0 axes [] coordinates [1, 0] for @pp
piper.comm @reduce.pp$0.1 axes [] coordinates [0, 1] for @pp
piper.program @train$pp0 of @train$cluster at 0 {
  %x = input "x" mb 0 : !x
  %e = record
  %a, %ae = all_reduce %x over [] across "pp" on @reduce.pp$0.1 after %e : !x -> !x, !piper.event
  // expected-error @+1 {{expected number 1 on @reduce.pp$0.1 at coordinate 1, too, got only 1 there}}
  %b, %be = all_reduce %a over [] across "pp" on @reduce.pp$0.1 after %ae : !x -> !x, !piper.event
}
piper.program @train$pp1 of @train$cluster at 1 {
  %x = input "x" mb 0 : !x
  %e = record
  %a, %ae = all_reduce %x over [] across "pp" on @reduce.pp$0.1 after %e : !x -> !x, !piper.event
}

// -----

// Members agree on its type and on what it does.

!x = tensor<4xf32>
!z = tensor<8xf32>
piper.mesh @mesh [pp = 2 unrolled]
piper.stream @pp
piper.comm @reduce.pp$0.1 axes [] coordinates [0, 1] for @pp
piper.program @train$pp0 of @train$cluster at 0 {
  %x = input "x" mb 0 : !x
  %e = record
  // expected-note @+1 {{the other end is here}}
  %a, %ae = all_reduce %x over [] across "pp" on @reduce.pp$0.1 after %e : !x -> !x, !piper.event
}
piper.program @train$pp1 of @train$cluster at 1 {
  %x = input "z" mb 0 : !z
  %e = record
  // expected-error @+1 {{expected number 0 on @reduce.pp$0.1 to agree with coordinate 0, which has type 'tensor<4xf32>', got 'tensor<8xf32>'}}
  %a, %ae = all_reduce %x over [] across "pp" on @reduce.pp$0.1 after %e : !z -> !z, !piper.event
}

// -----

!x = tensor<4xf32>
piper.mesh @mesh [pp = 2 unrolled]
piper.stream @pp
piper.comm @send$0.1 axes [] coordinates [0, 1] for @pp
piper.comm @send$1.0 axes [] coordinates [1, 0] for @pp
piper.comm @reduce.pp$0.1 axes [] coordinates [0, 1] for @pp
piper.program @train$pp0 of @train$cluster at 0 {
  %x = input "x" mb 0 : !x
  %e = record
  // expected-note @+1 {{the other end is here}}
  %a, %ae = all_reduce %x over [] across "pp" on @reduce.pp$0.1 after %e : !x -> !x, !piper.event
}
piper.program @train$pp1 of @train$cluster at 1 {
  %x = input "x" mb 0 : !x
  %e = record
  // expected-error @+1 {{expected number 0 on @reduce.pp$0.1 to agree with coordinate 0, which has 'piper.all_reduce'}}
  %a, %ae = permute %x shift 1 over [] across "pp" on @reduce.pp$0.1 after %e : !x -> !x, !piper.event
}

// -----

!x = tensor<4xf32>
piper.mesh @mesh [pp = 2 unrolled]
piper.stream @pp
piper.comm @send$0.1 axes [] coordinates [0, 1] for @pp
piper.comm @send$1.0 axes [] coordinates [1, 0] for @pp
piper.comm @reduce.pp$0.1 axes [] coordinates [0, 1] for @pp
piper.program @train$pp0 of @train$cluster at 0 {
  %x = input "x" mb 0 : !x
  %e = record
  // expected-note @+1 {{the other end is here}}
  %a, %ae = permute %x shift 1 over [] across "pp" on @reduce.pp$0.1 after %e : !x -> !x, !piper.event
}
piper.program @train$pp1 of @train$cluster at 1 {
  %x = input "x" mb 0 : !x
  %e = record
  // expected-error @+1 {{expected number 0 on @reduce.pp$0.1 to agree with coordinate 0, which has attributes}}
  %a, %ae = permute %x shift 2 over [] across "pp" on @reduce.pp$0.1 after %e : !x -> !x, !piper.event
}

// -----

// Its communicator is over the same axes and joins this coordinate.

!x = tensor<4xf32>
piper.mesh @mesh [pp = 2 unrolled, dp = 2 manual]
piper.stream @pp
// expected-note @+1 {{the communicator is here}}
piper.comm @reduce.dp$0 axes ["dp"] coordinates [0] for @pp
piper.program @train$pp0 of @train$cluster at 0 {
  %x = input "x" mb 0 : !x
}
piper.program @train$pp1 of @train$cluster at 1 {
  %x = input "x" mb 0 : !x
  %e = record
  // expected-error @+1 {{expected a communicator over [] that joins other coordinates with 1}}
  %a, %ae = all_reduce %x over [] across "pp" on @reduce.dp$0 after %e : !x -> !x, !piper.event
}

// -----

// One without `across` stays at its coordinate.

!x = tensor<4xf32, #piper.layout<dp = partial>>
!y = tensor<4xf32, #piper.layout<dp = replicated>>
piper.mesh @mesh [pp = 2 unrolled, dp = 2 manual]
piper.stream @pp
// expected-note @+1 {{the communicator is here}}
piper.comm @reduce.dp$0.1 axes ["dp"] coordinates [0, 1] for @pp
piper.program @train$pp0 of @train$cluster at 0 {
  %x = input "x" mb 0 : !x
}
piper.program @train$pp1 of @train$cluster at 1 {
  %x = input "x" mb 0 : !x
  %e = record
  // expected-error @+1 {{expected a communicator over ["dp"] that stays at coordinate 1}}
  %a, %ae = all_reduce %x over ["dp"] on @reduce.dp$0.1 after %e : !x -> !y, !piper.event
}

// -----

// The members are distinct.

!x = tensor<4xf32>
piper.mesh @mesh [pp = 2 unrolled]
piper.stream @pp
// expected-error @+1 {{expected distinct coordinates, got 0 twice}}
piper.comm @reduce.pp$0.0 axes [] coordinates [0, 0] for @pp
piper.program @train$pp0 of @train$cluster at 0 {
  %x = input "x" mb 0 : !x
  %e = record
  %a, %ae = all_reduce %x over [] across "pp" on @reduce.pp$0.0 after %e : !x -> !x, !piper.event
}
piper.program @train$pp1 of @train$cluster at 1 {
}

// -----

// Two messages of equal shape, of one microbatch and one direction, as a V has
// them, are told apart by the value that each carries.

!x = tensor<4xf32>
piper.mesh @mesh [pp = 2 unrolled]
piper.stream @pp
piper.comm @send$0.1 axes [] coordinates [0, 1] for @pp
piper.program @train$pp0 of @train$cluster at 0 {
  %x = input "x" mb 0 : !x
  %y = input "y" mb 0 : !x
  %e = record
  // expected-note @+1 {{the other end is here}}
  %s = send %y to 1 mb 0 as "layer.3$B#0" on @send$0.1 after %e : !x
  %t = send %x to 1 mb 0 as "layer.0$F#0" on @send$0.1 after %e : !x
}
piper.program @train$pp1 of @train$cluster at 1 {
  %e = record
  // expected-error @+1 {{expected number 0 on @send$0.1 to agree with coordinate 0, which has value "layer.3$B#0", got "layer.0$F#0"}}
  %x, %r = recv from 0 mb 0 as "layer.0$F#0" on @send$0.1 after %e : !x
  %y, %f = recv from 0 mb 0 as "layer.3$B#0" on @send$0.1 after %e : !x
}

// -----

// Programs are of one coordinate: they have halves of messages and collectives.

!x = tensor<4xf32>
piper.mesh @mesh [pp = 2 unrolled]
piper.stream @pp
piper.comm @reduce.pp$0.1 axes [] coordinates [0, 1] for @pp
piper.program @train$pp0 of @train$cluster at 0 {
  %x = input "x" mb 0 : !x
  // expected-error @+1 {{expected an instruction of this coordinate alone, got what only clusters have}}
  %y = transfer %x from 0 to 1 mb 0 on @pp : !x
}
piper.program @train$pp1 of @train$cluster at 1 {
}

// -----

// Nothing in them says where it runs.

!x = tensor<4xf32>
piper.mesh @mesh [pp = 2 unrolled]
piper.stream @pp
piper.comm @reduce.pp$0.1 axes [] coordinates [0, 1] for @pp
piper.program @train$pp0 of @train$cluster at 0 {
  %x = input "x" mb 0 : !x
  // expected-error @+1 {{expected an instruction of this coordinate alone, got what only clusters have}}
  output "x" %x at 1 : !x
}
piper.program @train$pp1 of @train$cluster at 1 {
}

// -----

// A collective has an event, for others to wait for.

!x = tensor<4xf32>
piper.mesh @mesh [pp = 2 unrolled]
piper.stream @pp
piper.comm @reduce.pp$0.1 axes [] coordinates [0, 1] for @pp
piper.program @train$pp0 of @train$cluster at 0 {
  %x = input "x" mb 0 : !x
  %e = record
  // expected-error @+1 {{expected one operand and an event, as in a program}}
  %a = all_reduce %x over [] across "pp" on @reduce.pp$0.1 after %e : !x -> !x
}
piper.program @train$pp1 of @train$cluster at 1 {
}

// -----

// It lies on a communicator.

!x = tensor<4xf32>
piper.mesh @mesh [pp = 2 unrolled]
piper.stream @pp
piper.comm @reduce.pp$0.1 axes [] coordinates [0, 1] for @pp
piper.program @train$pp0 of @train$cluster at 0 {
  %x = input "x" mb 0 : !x
  // expected-error @+1 {{expected to name a communicator}}
  %a, %f = all_reduce %x over [] across "pp" : !x -> !x, !piper.event
}
piper.program @train$pp1 of @train$cluster at 1 {
}
