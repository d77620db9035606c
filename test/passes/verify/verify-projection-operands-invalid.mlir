// Programs whose instructions take other operands than their cluster says.
// RUN: piper-opt %s -split-input-file -verify-diagnostics --piper-verify

// Operands stand for those of the cluster.

!x = tensor<4xf32>
piper.mesh @mesh [pp = 2 unrolled]
piper.stream @pp
piper.comm @send$0.1 axes [] coordinates [0, 1] for @pp
piper.chunk @a.0$F pass = F stage = 0 (%x: !x) -> !x { return %x : !x }
piper.chunk @a.1$F pass = F stage = 1 (%x: !x) -> !x { return %x : !x }
piper.step @train phase = bucketed mesh = @mesh inputs ["x"] dims [0] microbatches = 2 homes [[0, 1]] (%x: !x) {
  %0 = run @a.0$F(%x) : (!x) -> !x
  %1 = run @a.1$F(%0) : (!x) -> !x
  output "z" %1 : !x
}
piper.cluster @train$cluster of @train phase = lowered mesh = @mesh microbatches = 2 {
  %x0 = input "x" mb 0 at 0 : !x
  %y0 = run @a.0$F(%x0) mb 0 at 0 : (!x) -> !x
  %r0 = transfer %y0 from 0 to 1 mb 0 as "a.0$F#0" on @pp : !x
  %x1 = input "x" mb 1 at 0 : !x
  // expected-note @+1 {{@train$cluster has it here}}
  %y1 = run @a.0$F(%x1) mb 1 at 0 : (!x) -> !x
  %r1 = transfer %y1 from 0 to 1 mb 1 as "a.0$F#0" on @pp : !x
  %z0 = run @a.1$F(%r0) mb 0 at 1 : (!x) -> !x
  %z1 = run @a.1$F(%r1) mb 1 at 1 : (!x) -> !x
  %z = sum %z0, %z1 at 1 : !x -> !x
  output "z" %z at 1 : !x
}
piper.program @train$pp0 of @train$cluster at 0 {
  %x0 = input "x" mb 0 : !x
  %y0 = run @a.0$F(%x0) mb 0 : (!x) -> !x
  %e0 = record
  %s0 = send %y0 to 1 mb 0 as "a.0$F#0" on @send$0.1 after %e0 : !x
  %x1 = input "x" mb 1 : !x
  // expected-error @+1 {{expected operand 0 to be result 0 of 'piper.input' of "x" for microbatch 1, as in @train$cluster, got result 0 of 'piper.input' of "x" for microbatch 0}}
  %y1 = run @a.0$F(%x0) mb 1 : (!x) -> !x
  %e1 = record
  %s1 = send %y1 to 1 mb 1 as "a.0$F#0" on @send$0.1 after %e1 : !x
}
piper.program @train$pp1 of @train$cluster at 1 {
  %e = record
  %r0, %f0 = recv from 0 mb 0 as "a.0$F#0" on @send$0.1 after %e : !x
  %r1, %f1 = recv from 0 mb 1 as "a.0$F#0" on @send$0.1 after %e : !x
  %z0 = run @a.1$F(%r0) mb 0 after %f0 : (!x) -> !x
  %z1 = run @a.1$F(%r1) mb 1 after %f1 : (!x) -> !x
  %z = sum %z0, %z1 : !x -> !x
  output "z" %z : !x
}

// -----

// So do those of messages.

!x = tensor<4xf32>
piper.mesh @mesh [pp = 2 unrolled]
piper.stream @pp
piper.comm @send$0.1 axes [] coordinates [0, 1] for @pp
piper.chunk @a.0$F pass = F stage = 0 (%x: !x) -> !x { return %x : !x }
piper.chunk @a.1$F pass = F stage = 1 (%x: !x) -> !x { return %x : !x }
piper.step @train phase = bucketed mesh = @mesh inputs ["x"] dims [0] microbatches = 2 homes [[0, 1]] (%x: !x) {
  %0 = run @a.0$F(%x) : (!x) -> !x
  %1 = run @a.1$F(%0) : (!x) -> !x
  output "z" %1 : !x
}
piper.cluster @train$cluster of @train phase = lowered mesh = @mesh microbatches = 2 {
  %x0 = input "x" mb 0 at 0 : !x
  %y0 = run @a.0$F(%x0) mb 0 at 0 : (!x) -> !x
  %r0 = transfer %y0 from 0 to 1 mb 0 as "a.0$F#0" on @pp : !x
  %x1 = input "x" mb 1 at 0 : !x
  %y1 = run @a.0$F(%x1) mb 1 at 0 : (!x) -> !x
  // expected-note @+1 {{@train$cluster has it here}}
  %r1 = transfer %y1 from 0 to 1 mb 1 as "a.0$F#0" on @pp : !x
  %z0 = run @a.1$F(%r0) mb 0 at 1 : (!x) -> !x
  %z1 = run @a.1$F(%r1) mb 1 at 1 : (!x) -> !x
  %z = sum %z0, %z1 at 1 : !x -> !x
  output "z" %z at 1 : !x
}
piper.program @train$pp0 of @train$cluster at 0 {
  %x0 = input "x" mb 0 : !x
  %y0 = run @a.0$F(%x0) mb 0 : (!x) -> !x
  %e0 = record
  %s0 = send %y0 to 1 mb 0 as "a.0$F#0" on @send$0.1 after %e0 : !x
  %x1 = input "x" mb 1 : !x
  %y1 = run @a.0$F(%x1) mb 1 : (!x) -> !x
  %e1 = record
  // expected-error @+1 {{expected operand 0 to be result 0 of 'piper.run' of @a.0$F for microbatch 1, as in @train$cluster, got result 0 of 'piper.run' of @a.0$F for microbatch 0}}
  %s1 = send %y0 to 1 mb 1 as "a.0$F#0" on @send$0.1 after %e1 : !x
}
piper.program @train$pp1 of @train$cluster at 1 {
  %e = record
  %r0, %f0 = recv from 0 mb 0 as "a.0$F#0" on @send$0.1 after %e : !x
  %r1, %f1 = recv from 0 mb 1 as "a.0$F#0" on @send$0.1 after %e : !x
  %z0 = run @a.1$F(%r0) mb 0 after %f0 : (!x) -> !x
  %z1 = run @a.1$F(%r1) mb 1 after %f1 : (!x) -> !x
  %z = sum %z0, %z1 : !x -> !x
  output "z" %z : !x
}

// -----

// There are as many.

!x = tensor<4xf32>
piper.mesh @mesh [pp = 2 unrolled]
piper.stream @pp
piper.comm @send$0.1 axes [] coordinates [0, 1] for @pp
piper.chunk @a.0$F pass = F stage = 0 (%x: !x) -> !x { return %x : !x }
piper.chunk @a.1$F pass = F stage = 1 (%x: !x) -> !x { return %x : !x }
piper.step @train phase = bucketed mesh = @mesh inputs ["x"] dims [0] microbatches = 2 homes [[0, 1]] (%x: !x) {
  %0 = run @a.0$F(%x) : (!x) -> !x
  %1 = run @a.1$F(%0) : (!x) -> !x
  output "z" %1 : !x
}
piper.cluster @train$cluster of @train phase = lowered mesh = @mesh microbatches = 2 {
  %x0 = input "x" mb 0 at 0 : !x
  %y0 = run @a.0$F(%x0) mb 0 at 0 : (!x) -> !x
  %r0 = transfer %y0 from 0 to 1 mb 0 as "a.0$F#0" on @pp : !x
  %x1 = input "x" mb 1 at 0 : !x
  %y1 = run @a.0$F(%x1) mb 1 at 0 : (!x) -> !x
  %r1 = transfer %y1 from 0 to 1 mb 1 as "a.0$F#0" on @pp : !x
  %z0 = run @a.1$F(%r0) mb 0 at 1 : (!x) -> !x
  %z1 = run @a.1$F(%r1) mb 1 at 1 : (!x) -> !x
  // expected-note @+1 {{@train$cluster has it here}}
  %z = sum %z0, %z1 at 1 : !x -> !x
  output "z" %z at 1 : !x
}
piper.program @train$pp0 of @train$cluster at 0 {
  %x0 = input "x" mb 0 : !x
  %y0 = run @a.0$F(%x0) mb 0 : (!x) -> !x
  %e0 = record
  %s0 = send %y0 to 1 mb 0 as "a.0$F#0" on @send$0.1 after %e0 : !x
  %x1 = input "x" mb 1 : !x
  %y1 = run @a.0$F(%x1) mb 1 : (!x) -> !x
  %e1 = record
  %s1 = send %y1 to 1 mb 1 as "a.0$F#0" on @send$0.1 after %e1 : !x
}
piper.program @train$pp1 of @train$cluster at 1 {
  %e = record
  %r0, %f0 = recv from 0 mb 0 as "a.0$F#0" on @send$0.1 after %e : !x
  %r1, %f1 = recv from 0 mb 1 as "a.0$F#0" on @send$0.1 after %e : !x
  %z0 = run @a.1$F(%r0) mb 0 after %f0 : (!x) -> !x
  %z1 = run @a.1$F(%r1) mb 1 after %f1 : (!x) -> !x
  // expected-error @+1 {{expected the operands that @train$cluster gives it, got more, fewer or others}}
  %z = sum %z0 : !x -> !x
  output "z" %z : !x
}

// -----

// A cluster that is not ordered yet has no programs.

!x = tensor<4xf32>
piper.mesh @mesh [pp = 2 unrolled]
piper.stream @pp
piper.comm @send$0.1 axes [] coordinates [0, 1] for @pp
piper.chunk @a.0$F pass = F stage = 0 (%x: !x) -> !x { return %x : !x }
piper.chunk @a.1$F pass = F stage = 1 (%x: !x) -> !x { return %x : !x }
piper.step @train phase = bucketed mesh = @mesh inputs ["x"] dims [0] microbatches = 2 homes [[0, 1]] (%x: !x) {
  %0 = run @a.0$F(%x) : (!x) -> !x
  %1 = run @a.1$F(%0) : (!x) -> !x
  output "z" %1 : !x
}
// expected-error @+1 {{expected phase ordered or lowered, since there are programs of it}}
piper.cluster @train$cluster of @train phase = reduced mesh = @mesh microbatches = 2 {
  %x0 = input "x" mb 0 at 0 : !x
  %y0 = run @a.0$F(%x0) mb 0 at 0 : (!x) -> !x
  %r0 = transfer %y0 from 0 to 1 mb 0 as "a.0$F#0" on @pp : !x
  %x1 = input "x" mb 1 at 0 : !x
  %y1 = run @a.0$F(%x1) mb 1 at 0 : (!x) -> !x
  %r1 = transfer %y1 from 0 to 1 mb 1 as "a.0$F#0" on @pp : !x
  %z0 = run @a.1$F(%r0) mb 0 at 1 : (!x) -> !x
  %z1 = run @a.1$F(%r1) mb 1 at 1 : (!x) -> !x
  %z = sum %z0, %z1 at 1 : !x -> !x
  output "z" %z at 1 : !x
}
piper.program @train$pp0 of @train$cluster at 0 {
  %x0 = input "x" mb 0 : !x
  %y0 = run @a.0$F(%x0) mb 0 : (!x) -> !x
  %e0 = record
  %s0 = send %y0 to 1 mb 0 as "a.0$F#0" on @send$0.1 after %e0 : !x
  %x1 = input "x" mb 1 : !x
  %y1 = run @a.0$F(%x1) mb 1 : (!x) -> !x
  %e1 = record
  %s1 = send %y1 to 1 mb 1 as "a.0$F#0" on @send$0.1 after %e1 : !x
}
piper.program @train$pp1 of @train$cluster at 1 {
  %e = record
  %r0, %f0 = recv from 0 mb 0 as "a.0$F#0" on @send$0.1 after %e : !x
  %r1, %f1 = recv from 0 mb 1 as "a.0$F#0" on @send$0.1 after %e : !x
  %z0 = run @a.1$F(%r0) mb 0 after %f0 : (!x) -> !x
  %z1 = run @a.1$F(%r1) mb 1 after %f1 : (!x) -> !x
  %z = sum %z0, %z1 : !x -> !x
  output "z" %z : !x
}

// -----

// One that is lowered has.

!x = tensor<4xf32>
piper.mesh @mesh [pp = 2 unrolled]
piper.stream @pp
piper.comm @send$0.1 axes [] coordinates [0, 1] for @pp
piper.chunk @a.0$F pass = F stage = 0 (%x: !x) -> !x { return %x : !x }
piper.chunk @a.1$F pass = F stage = 1 (%x: !x) -> !x { return %x : !x }
piper.step @train phase = bucketed mesh = @mesh inputs ["x"] dims [0] microbatches = 2 homes [[0, 1]] (%x: !x) {
  %0 = run @a.0$F(%x) : (!x) -> !x
  %1 = run @a.1$F(%0) : (!x) -> !x
  output "z" %1 : !x
}
// expected-error @+1 {{expected programs of a lowered cluster, got none}}
piper.cluster @train$cluster of @train phase = lowered mesh = @mesh microbatches = 2 {
  %x0 = input "x" mb 0 at 0 : !x
  %y0 = run @a.0$F(%x0) mb 0 at 0 : (!x) -> !x
  %r0 = transfer %y0 from 0 to 1 mb 0 as "a.0$F#0" on @pp : !x
  %x1 = input "x" mb 1 at 0 : !x
  %y1 = run @a.0$F(%x1) mb 1 at 0 : (!x) -> !x
  %r1 = transfer %y1 from 0 to 1 mb 1 as "a.0$F#0" on @pp : !x
  %z0 = run @a.1$F(%r0) mb 0 at 1 : (!x) -> !x
  %z1 = run @a.1$F(%r1) mb 1 at 1 : (!x) -> !x
  %z = sum %z0, %z1 at 1 : !x -> !x
  output "z" %z at 1 : !x
}

// -----

// A collective joins the coordinates that the cluster says.

!x = tensor<4xf32>
piper.mesh @mesh [pp = 3 unrolled]
piper.stream @pp
piper.comm @reduce.pp$0.1 axes [] coordinates [0, 1] for @pp
piper.comm @reduce.pp$0.1.2 axes [] coordinates [0, 1, 2] for @pp
piper.step @train phase = bucketed mesh = @mesh inputs ["x"] dims [0] microbatches = 1 homes [[0, 1, 2]] (%x: !x) {
}
piper.cluster @train$cluster of @train phase = lowered mesh = @mesh microbatches = 1 {
  %a0 = input "x" mb 0 at 0 : !x
  %a1 = input "x" mb 0 at 1 : !x
  %a2 = input "x" mb 0 at 2 : !x
  // expected-note @+1 {{@train$cluster has it here}}
  %b0, %b1 = all_reduce %a0, %a1 at [0, 1] over [] across "pp" on @pp : !x, !x -> !x, !x
}
// expected-error @+1 {{expected 'piper.all_reduce' on @pp, which @train$cluster has at coordinate 0, got none}}
piper.program @train$pp0 of @train$cluster at 0 {
  %a = input "x" mb 0 : !x
  %e = record
  %b, %be = all_reduce %a over [] across "pp" on @reduce.pp$0.1.2 after %e : !x -> !x, !piper.event
}
piper.program @train$pp1 of @train$cluster at 1 {
  %a = input "x" mb 0 : !x
  %e = record
  %b, %be = all_reduce %a over [] across "pp" on @reduce.pp$0.1.2 after %e : !x -> !x, !piper.event
}
piper.program @train$pp2 of @train$cluster at 2 {
  %a = input "x" mb 0 : !x
  %e = record
  %b, %be = all_reduce %a over [] across "pp" on @reduce.pp$0.1.2 after %e : !x -> !x, !piper.event
}

// -----

// An operand has the meaning that the cluster gives it: a norm is not a reason to
// skip.

!x = tensor<4xf32>
!s = tensor<f32>
piper.mesh @mesh [pp = 1 unrolled]
piper.state @w parameter : !x holders [0] optimization <"train:sgd">
piper.bucket @w$b [@w] value : !x grad : !x
piper.chunk @a.0$F pass = F stage = 0 (%x: !x) -> !x { return %x : !x }
piper.chunk @a.0$B pass = B of @a.0$F stage = 0 (%x: !x) -> !x {
  %g = pack @w$b %x : !x -> !x
  return %g : !x
}
piper.step @train phase = bucketed mesh = @mesh inputs ["x"] dims [0] microbatches = 1 homes [[0]] (%x: !x) {
  %0 = run @a.0$F(%x) : (!x) -> !x
  %1 = run @a.0$B(%0) : (!x) -> !x
}
piper.cluster @train$cluster of @train phase = lowered mesh = @mesh microbatches = 1 {
  %x = input "x" mb 0 at 0 : !x
  %y = run @a.0$F(%x) mb 0 at 0 : (!x) -> !x
  %g = run @a.0$B(%y) mb 0 at 0 : (!x) -> !x
  %G = accumulate @w$b %g at 0 : !x -> !x
  %s = sumsq %G at 0 : (!x) -> !s
  output "grad_norm" %s at 0 : !s
  // expected-note @+1 {{@train$cluster has it here}}
  %u = update @w$b %G norm %s : !s at 0 optimizer "train:sgd" : !x -> !x
}
piper.program @train$pp0 of @train$cluster at 0 {
  %x = input "x" mb 0 : !x
  %y = run @a.0$F(%x) mb 0 : (!x) -> !x
  %g = run @a.0$B(%y) mb 0 : (!x) -> !x
  %G = accumulate @w$b %g : !x -> !x
  %s = sumsq %G : (!x) -> !s
  output "grad_norm" %s : !s
  // expected-error @+1 {{expected the operands that @train$cluster gives it, got more, fewer or others}}
  %u = update @w$b %G skip %s : !s optimizer "train:sgd" : !x -> !x
}
