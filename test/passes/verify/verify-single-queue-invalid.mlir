// Programs that finish where each communicator has a queue of its own, as the
// second line checks, but not where all communication of a rank shares one.
// RUN: piper-opt %s -split-input-file -verify-diagnostics --piper-verify=single-queue
// RUN: piper-opt %s -split-input-file --piper-verify -o %t

// Two communicators that join the same coordinates are issued in one order there.

!x = tensor<4xf32>
piper.mesh @mesh [pp = 2 unrolled]
piper.stream @pp
piper.comm @a axes [] coordinates [0, 1] for @pp
piper.comm @b axes [] coordinates [0, 1] for @pp
piper.program @train$pp0 of @train$cluster at 0 {
  %x = input "x" mb 0 : !x
  %e = record
  %a, %ae = all_reduce %x over [] across "pp" on @a after %e : !x -> !x, !piper.event
  // expected-note @+1 {{the other end is here}}
  %b, %be = all_reduce %x over [] across "pp" on @b after %e : !x -> !x, !piper.event
  %c, %ce = all_reduce %x over [] across "pp" on @a after %e : !x -> !x, !piper.event
}
piper.program @train$pp1 of @train$cluster at 1 {
  %x = input "x" mb 0 : !x
  %e = record
  %a, %ae = all_reduce %x over [] across "pp" on @a after %e : !x -> !x, !piper.event
  // expected-note @+1 {{this comes first here}}
  %c, %ce = all_reduce %x over [] across "pp" on @a after %e : !x -> !x, !piper.event
  // expected-error @+1 {{expected number 0 on @b to come before 'piper.all_reduce' on @a, as at coordinate 0, which shares both communicators}}
  %b, %be = all_reduce %x over [] across "pp" on @b after %e : !x -> !x, !piper.event
}

// -----

// Three coordinates that send around a ring before they receive. No two
// communicators join the same two of them.

!x = tensor<4xf32>
piper.mesh @mesh [pp = 3 unrolled]
piper.stream @pp
piper.comm @send$0.1 axes [] coordinates [0, 1] for @pp
piper.comm @send$1.2 axes [] coordinates [1, 2] for @pp
piper.comm @send$2.0 axes [] coordinates [2, 0] for @pp
// expected-error @+1 {{expected all programs of @train$cluster to finish where all communication of a rank shares one queue, got instructions that wait for each other}}
piper.program @train$pp0 of @train$cluster at 0 {
  %x = input "x" mb 0 : !x
  %e = record
  %s = send %x to 1 mb 0 on @send$0.1 after %e : !x
  // expected-note @+1 {{coordinate 0, number 3: 'piper.recv' for microbatch 0 on @send$2.0, the other end, waits for number 2, 'piper.send' for microbatch 0 on @send$0.1, which comes before it in the queue of all communication}}
  %y, %f = recv from 2 mb 0 on @send$2.0 after %e : !x
}
piper.program @train$pp1 of @train$cluster at 1 {
  %x = input "x" mb 0 : !x
  %e = record
  %s = send %x to 2 mb 0 on @send$1.2 after %e : !x
  // expected-note @+1 {{coordinate 1, number 3: 'piper.recv' for microbatch 0 on @send$0.1, the other end, waits for number 2, 'piper.send' for microbatch 0 on @send$1.2, which comes before it in the queue of all communication}}
  %y, %f = recv from 0 mb 0 on @send$0.1 after %e : !x
}
piper.program @train$pp2 of @train$cluster at 2 {
  %x = input "x" mb 0 : !x
  %e = record
  %s = send %x to 0 mb 0 on @send$2.0 after %e : !x
  // expected-note @+1 {{coordinate 2, number 3: 'piper.recv' for microbatch 0 on @send$1.2, the other end, waits for number 2, 'piper.send' for microbatch 0 on @send$2.0, which comes before it in the queue of all communication}}
  %y, %f = recv from 1 mb 0 on @send$1.2 after %e : !x
}
