// Programs that wait for each other for ever.
// RUN: piper-opt %s -split-input-file -verify-diagnostics --piper-verify

// Each coordinate receives before it sends: both wait for ever. The cycle leads
// through both messages.

!x = tensor<4xf32>
piper.mesh @mesh [pp = 2 unrolled]
piper.stream @pp
piper.comm @send$0.1 axes [] coordinates [0, 1] for @pp
piper.comm @send$1.0 axes [] coordinates [1, 0] for @pp
piper.chunk @a.0$F pass = F stage = 0 (%x: !x) -> !x { return %x : !x }
// expected-error @+1 {{expected all programs of @train$cluster to finish, got instructions that wait for each other}}
piper.program @train$pp0 of @train$cluster at 0 {
  %f = record
  %y, %r = recv from 1 mb 0 on @send$1.0 after %f : !x
  // expected-note @+1 {{coordinate 0, number 2: 'piper.run' of @a.0$F for microbatch 0 waits for number 1, 'piper.recv' for microbatch 0 on @send$1.0, which makes its operand}}
  %z = run @a.0$F(%y) mb 0 after %r : (!x) -> !x
  %g = record
  // expected-note @+1 {{coordinate 0, number 4: 'piper.send' for microbatch 0 on @send$0.1, the other end, waits for number 2, 'piper.run' of @a.0$F for microbatch 0, which makes its operand}}
  %s = send %z to 1 mb 0 on @send$0.1 after %g : !x
}
piper.program @train$pp1 of @train$cluster at 1 {
  %f = record
  %y, %r = recv from 0 mb 0 on @send$0.1 after %f : !x
  // expected-note @+1 {{coordinate 1, number 2: 'piper.run' of @a.0$F for microbatch 0 waits for number 1, 'piper.recv' for microbatch 0 on @send$0.1, which makes its operand}}
  %z = run @a.0$F(%y) mb 0 after %r : (!x) -> !x
  %g = record
  // expected-note @+1 {{coordinate 1, number 4: 'piper.send' for microbatch 0 on @send$1.0, the other end, waits for number 2, 'piper.run' of @a.0$F for microbatch 0, which makes its operand}}
  %s = send %z to 0 mb 0 on @send$1.0 after %g : !x
}

// -----

// What is sent does not depend on what is received, but compute is behind what is received; the
// instructions between are left out.

!x = tensor<4xf32>
piper.mesh @mesh [pp = 2 unrolled]
piper.stream @pp
piper.comm @send$0.1 axes [] coordinates [0, 1] for @pp
piper.comm @send$1.0 axes [] coordinates [1, 0] for @pp
piper.chunk @a.0$F pass = F stage = 0 (%x: !x) -> !x { return %x : !x }
// expected-error @+1 {{expected all programs of @train$cluster to finish, got instructions that wait for each other}}
piper.program @train$pp0 of @train$cluster at 0 {
  %a = input "x" mb 0 : !x
  %f = record
  %y, %r = recv from 1 mb 0 on @send$1.0 after %f : !x
  // expected-note @+1 {{coordinate 0, number 3: 'piper.output' of "y" waits for number 2, 'piper.recv' for microbatch 0 on @send$1.0, which makes its operand}}
  output "y" %y after %r : !x
  %b = input "x" mb 1 : !x
  // expected-note @+1 {{coordinate 0, number 5: 'piper.record' waits for number 3, 'piper.output' of "y", which comes before it on its stream}}
  %g = record
  // expected-note @+1 {{coordinate 0, number 6: 'piper.send' for microbatch 0 on @send$0.1, the other end, waits for number 5, 'piper.record', whose event it lists}}
  %s = send %a to 1 mb 0 on @send$0.1 after %g : !x
}
piper.program @train$pp1 of @train$cluster at 1 {
  %f = record
  %y, %r = recv from 0 mb 0 on @send$0.1 after %f : !x
  // expected-note @+1 {{coordinate 1, number 2: 'piper.run' of @a.0$F for microbatch 0 waits for number 1, 'piper.recv' for microbatch 0 on @send$0.1, which makes its operand}}
  %z = run @a.0$F(%y) mb 0 after %r : (!x) -> !x
  %g = record
  // expected-note @+1 {{coordinate 1, number 4: 'piper.send' for microbatch 0 on @send$1.0, the other end, waits for number 2, 'piper.run' of @a.0$F for microbatch 0, which makes its operand}}
  %s = send %z to 0 mb 0 on @send$1.0 after %g : !x
}

// -----

// Two collectives that feed each other in one order here and in the other there.

!x = tensor<4xf32>
piper.mesh @mesh [pp = 2 unrolled]
piper.stream @pp
piper.comm @send$0.1 axes [] coordinates [0, 1] for @pp
piper.comm @send$1.0 axes [] coordinates [1, 0] for @pp
piper.comm @r.a axes [] coordinates [0, 1] for @pp
piper.comm @r.b axes [] coordinates [0, 1] for @pp
// expected-error @+1 {{expected all programs of @train$cluster to finish, got instructions that wait for each other}}
piper.program @train$pp0 of @train$cluster at 0 {
  %x = input "x" mb 0 : !x
  %e = record
  %a, %ae = all_reduce %x over [] across "pp" on @r.a after %e : !x -> !x, !piper.event
  // expected-note @+1 {{coordinate 0, number 3: 'piper.all_reduce' on @r.b, the other end, waits for number 2, 'piper.all_reduce' on @r.a, which makes its operand}}
  %b, %be = all_reduce %a over [] across "pp" on @r.b after %ae : !x -> !x, !piper.event
}
piper.program @train$pp1 of @train$cluster at 1 {
  %x = input "x" mb 0 : !x
  %e = record
  %a, %ae = all_reduce %x over [] across "pp" on @r.b after %e : !x -> !x, !piper.event
  // expected-note @+1 {{coordinate 1, number 3: 'piper.all_reduce' on @r.a, the other end, waits for number 2, 'piper.all_reduce' on @r.b, which makes its operand}}
  %b, %be = all_reduce %a over [] across "pp" on @r.a after %ae : !x -> !x, !piper.event
}

// -----

// The host of each blocks before it issues what the other waits for.

!n = tensor<2xi64>
piper.mesh @mesh [pp = 2 unrolled]
piper.stream @pp
piper.comm @send$0.1 axes [] coordinates [0, 1] for @pp
piper.comm @send$1.0 axes [] coordinates [1, 0] for @pp
// expected-error @+1 {{expected all programs of @train$cluster to finish, got instructions that wait for each other}}
piper.program @train$pp0 of @train$cluster at 0 {
  %n = input "n" mb 0 : !n
  %e = record
  %y, %r = recv from 1 mb 0 on @send$1.0 after %e : !n
  // expected-note @+1 {{coordinate 0, number 3: 'piper.host_wait' waits for number 2, 'piper.recv' for microbatch 0 on @send$1.0, which makes its operand}}
  %h = host_wait %y after %r : !n -> !piper.sizes
  // expected-note @+1 {{coordinate 0, number 4: 'piper.send' for microbatch 0 on @send$0.1, the other end, waits for number 3, 'piper.host_wait', which blocks the host}}
  %s = send %n to 1 mb 0 on @send$0.1 after %e : !n
}
piper.program @train$pp1 of @train$cluster at 1 {
  %n = input "n" mb 0 : !n
  %e = record
  %y, %r = recv from 0 mb 0 on @send$0.1 after %e : !n
  // expected-note @+1 {{coordinate 1, number 3: 'piper.host_wait' waits for number 2, 'piper.recv' for microbatch 0 on @send$0.1, which makes its operand}}
  %h = host_wait %y after %r : !n -> !piper.sizes
  // expected-note @+1 {{coordinate 1, number 4: 'piper.send' for microbatch 0 on @send$1.0, the other end, waits for number 3, 'piper.host_wait', which blocks the host}}
  %s = send %n to 0 mb 0 on @send$1.0 after %e : !n
}

// -----

// An update that may be skipped blocks the host, too: it reads the scalar.

!x = tensor<4xf32>
!s = tensor<f32>
piper.mesh @mesh [pp = 2 unrolled]
piper.stream @pp
piper.comm @send$0.1 axes [] coordinates [0, 1] for @pp
piper.comm @send$1.0 axes [] coordinates [1, 0] for @pp
piper.state @w parameter : !x holders [0, 1] optimization <"train:sgd">
piper.bucket @w$b [@w] value : !x grad : !x
// expected-error @+1 {{expected all programs of @train$cluster to finish, got instructions that wait for each other}}
piper.program @train$pp0 of @train$cluster at 0 {
  %n = input "n" mb 0 : !s
  %G = read @w$b slot grad : !x
  %e = record
  %y, %r = recv from 1 mb 0 on @send$1.0 after %e : !s
  // expected-note @+1 {{coordinate 0, number 4: 'piper.update' of @w$b waits for number 3, 'piper.recv' for microbatch 0 on @send$1.0, which makes its operand}}
  %u = update @w$b %G skip %y : !s optimizer "train:sgd" after %r : !x -> !x
  // expected-note @+1 {{coordinate 0, number 5: 'piper.send' for microbatch 0 on @send$0.1, the other end, waits for number 4, 'piper.update' of @w$b, which blocks the host}}
  %s = send %n to 1 mb 0 on @send$0.1 after %e : !s
}
piper.program @train$pp1 of @train$cluster at 1 {
  %n = input "n" mb 0 : !s
  %G = read @w$b slot grad : !x
  %e = record
  %y, %r = recv from 0 mb 0 on @send$0.1 after %e : !s
  // expected-note @+1 {{coordinate 1, number 4: 'piper.update' of @w$b waits for number 3, 'piper.recv' for microbatch 0 on @send$0.1, which makes its operand}}
  %u = update @w$b %G skip %y : !s optimizer "train:sgd" after %r : !x -> !x
  // expected-note @+1 {{coordinate 1, number 5: 'piper.send' for microbatch 0 on @send$1.0, the other end, waits for number 4, 'piper.update' of @w$b, which blocks the host}}
  %s = send %n to 0 mb 0 on @send$1.0 after %e : !s
}
