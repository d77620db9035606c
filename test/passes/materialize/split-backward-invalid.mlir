// Backward ops that cannot be cut.
// RUN: piper-opt %s -split-input-file -verify-diagnostics --piper-split-backward

// One call makes the gradient of an input and that of a state.

!x = tensor<4xf32>
!P = tensor<4xf32>
piper.mesh @mesh [pp = 1 unrolled]
piper.stream @compute
piper.state @w parameter : !x
piper.bucket @w$b [@w] value : !P grad : !P
piper.kernel @norm(%d: !x) -> (!x, !x) {
  // expected-error @+1 {{computes gradients of inputs and of states in one call of 'my.norm_backward.default', which has no rule by which the backward pass can be cut into I and W: expected an order that does not cut it, such as 1F1B or Interleaved1F1B, or an op whose backward takes a mask of results (`mask` among its facts)}}
  %0, %1 = torch "my.norm_backward.default"(%d) facts <pure> : (!x) -> (!x, !x)
  return %0, %1 : !x, !x
}
piper.chunk @a.0$F pass = F stage = 0 (%x: !x) -> !x { return %x : !x }
piper.chunk @a.0$B pass = B of @a.0$F stage = 0 (%d: !x) -> (!x, !P) {
  %dx, %dw = launch @norm(%d) on @compute : (!x) -> (!x, !x)
  %c = pack @w$b %dw : !x -> !P
  return %dx, %c : !x, !P
}
piper.schedule @order axis = "pp" stages = 1 microbatches = 1 ["0F0 0I0 0W0"]
piper.step @train phase = bucketed mesh = @mesh inputs [] dims [] microbatches = 1 order = @order () {}

// -----

// More work on the gradient of the state does not change that.

!x = tensor<4xf32>
!P = tensor<4xf32>
piper.mesh @mesh [pp = 1 unrolled]
piper.stream @compute
piper.state @w parameter : !x
piper.bucket @w$b [@w] value : !P grad : !P
piper.kernel @norm(%d: !x) -> (!x, !x) {
  // expected-error @+1 {{computes gradients of inputs and of states in one call of 'my.norm_backward.default'}}
  %0, %1 = torch "my.norm_backward.default"(%d) facts <pure> : (!x) -> (!x, !x)
  %2 = torch "aten.relu.default"(%1) facts <pure> : (!x) -> !x
  return %0, %2 : !x, !x
}
piper.chunk @a.0$F pass = F stage = 0 (%x: !x) -> !x { return %x : !x }
piper.chunk @a.0$B pass = B of @a.0$F stage = 0 (%d: !x) -> (!x, !P) {
  %dx, %dw = launch @norm(%d) on @compute : (!x) -> (!x, !x)
  %c = pack @w$b %dw : !x -> !P
  return %dx, %c : !x, !P
}
piper.schedule @order axis = "pp" stages = 1 microbatches = 1 ["0F0 0I0 0W0"]
piper.step @train phase = bucketed mesh = @mesh inputs [] dims [] microbatches = 1 order = @order () {}
