// Programs that do something else than their cluster says.
// RUN: piper-opt %s -split-input-file -verify-diagnostics --piper-verify

// What the cluster has at a coordinate is in its program.

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
  %z = sum %z0, %z1 at 1 : !x -> !x
  // expected-note @+1 {{@train$cluster has it here}}
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
// expected-error @+1 {{expected 'piper.output' of "z", which @train$cluster has at coordinate 1, got none}}
piper.program @train$pp1 of @train$cluster at 1 {
  %e = record
  %r0, %f0 = recv from 0 mb 0 as "a.0$F#0" on @send$0.1 after %e : !x
  %r1, %f1 = recv from 0 mb 1 as "a.0$F#0" on @send$0.1 after %e : !x
  %z0 = run @a.1$F(%r0) mb 0 after %f0 : (!x) -> !x
  %z1 = run @a.1$F(%r1) mb 1 after %f1 : (!x) -> !x
  %z = sum %z0, %z1 : !x -> !x
}

// -----

// Also in the middle.

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
  // expected-note @+1 {{@train$cluster has it here}}
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
// expected-error @+1 {{expected 'piper.run' of @a.1$F for microbatch 0, which @train$cluster has at coordinate 1, got none}}
piper.program @train$pp1 of @train$cluster at 1 {
  %e = record
  %r0, %f0 = recv from 0 mb 0 as "a.0$F#0" on @send$0.1 after %e : !x
  %r1, %f1 = recv from 0 mb 1 as "a.0$F#0" on @send$0.1 after %e : !x
  %z1 = run @a.1$F(%r1) mb 1 after %f1 : (!x) -> !x
  %z = sum %z1, %z1 : !x -> !x
  output "z" %z : !x
}

// -----

// It is there once.

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
  // expected-note @+1 {{the first time is here}}
  %z1 = run @a.1$F(%r1) mb 1 after %f1 : (!x) -> !x
  // expected-error @+1 {{expected once, as in @train$cluster, got a second time}}
  %z2 = run @a.1$F(%r1) mb 1 after %f1 : (!x) -> !x
  %z = sum %z0, %z1 : !x -> !x
  output "z" %z : !x
}

// -----

// Nothing else is: this is an input of another microbatch.

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
  %z = sum %z0, %z1 at 1 : !x -> !x
  output "z" %z at 1 : !x
}
piper.program @train$pp0 of @train$cluster at 0 {
  %x0 = input "x" mb 0 : !x
  %y0 = run @a.0$F(%x0) mb 0 : (!x) -> !x
  %e0 = record
  %s0 = send %y0 to 1 mb 0 as "a.0$F#0" on @send$0.1 after %e0 : !x
  // expected-error @+1 {{expected an instruction that @train$cluster has at coordinate 0, got 'piper.input' of "x" for microbatch 2}}
  %x1 = input "x" mb 2 : !x
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

// Compute is in the cluster's order.

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
  // expected-note @+1 {{@train$cluster has it here}}
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
  // expected-error @+1 {{expected to come behind 'piper.run' of @a.1$F for microbatch 0, as in @train$cluster}}
  %z1 = run @a.1$F(%r1) mb 1 after %f1 : (!x) -> !x
  %z0 = run @a.1$F(%r0) mb 0 after %f0 : (!x) -> !x
  %z = sum %z0, %z1 : !x -> !x
  output "z" %z : !x
}

// -----

// Messages are, too, even if both ends agree on another one.

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
  // expected-note @+1 {{@train$cluster has it here}}
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
  %x1 = input "x" mb 1 : !x
  %y1 = run @a.0$F(%x1) mb 1 : (!x) -> !x
  %e1 = record
  // expected-error @+1 {{expected to come behind 'piper.transfer' of "a.0$F#0" for microbatch 0, as in @train$cluster}}
  %s1 = send %y1 to 1 mb 1 as "a.0$F#0" on @send$0.1 after %e1 : !x
  %s0 = send %y0 to 1 mb 0 as "a.0$F#0" on @send$0.1 after %e0 : !x
}
piper.program @train$pp1 of @train$cluster at 1 {
  %e = record
  %r1, %f1 = recv from 0 mb 1 as "a.0$F#0" on @send$0.1 after %e : !x
  %r0, %f0 = recv from 0 mb 0 as "a.0$F#0" on @send$0.1 after %e : !x
  %z0 = run @a.1$F(%r0) mb 0 after %f0 : (!x) -> !x
  %z1 = run @a.1$F(%r1) mb 1 after %f1 : (!x) -> !x
  %z = sum %z0, %z1 : !x -> !x
  output "z" %z : !x
}

// -----

// A message that both ends leave out.

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
  // expected-note @+1 {{@train$cluster has it here}}
  %r0 = transfer %y0 from 0 to 1 mb 0 as "a.0$F#0" on @pp : !x
  %x1 = input "x" mb 1 at 0 : !x
  %y1 = run @a.0$F(%x1) mb 1 at 0 : (!x) -> !x
  %r1 = transfer %y1 from 0 to 1 mb 1 as "a.0$F#0" on @pp : !x
  %z0 = run @a.1$F(%r0) mb 0 at 1 : (!x) -> !x
  %z1 = run @a.1$F(%r1) mb 1 at 1 : (!x) -> !x
  %z = sum %z0, %z1 at 1 : !x -> !x
  output "z" %z at 1 : !x
}
// expected-error @+1 {{expected 'piper.transfer' of "a.0$F#0" for microbatch 0, which @train$cluster has at coordinate 0, got none}}
piper.program @train$pp0 of @train$cluster at 0 {
  %x0 = input "x" mb 0 : !x
  %y0 = run @a.0$F(%x0) mb 0 : (!x) -> !x
  %e0 = record
  %x1 = input "x" mb 1 : !x
  %y1 = run @a.0$F(%x1) mb 1 : (!x) -> !x
  %e1 = record
  %s1 = send %y1 to 1 mb 1 as "a.0$F#0" on @send$0.1 after %e1 : !x
}
piper.program @train$pp1 of @train$cluster at 1 {
  %e = record
  %r1, %f1 = recv from 0 mb 1 as "a.0$F#0" on @send$0.1 after %e : !x
  %z0 = run @a.1$F(%r1) mb 0 after %f1 : (!x) -> !x
  %z1 = run @a.1$F(%r1) mb 1 after %f1 : (!x) -> !x
  %z = sum %z0, %z1 : !x -> !x
  output "z" %z : !x
}
