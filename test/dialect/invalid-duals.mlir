// Duals of chunks, the gradients of what is passed on: every rule, broken once.
// RUN: piper-opt %s -split-input-file -verify-diagnostics

// expected-error @+1 {{expected `dual` only beside `of`}}
piper.chunk @layer.0$F pass = F dual [0] -> [] (%x: tensor<4xf32>) {
  return
}

// -----

piper.chunk @layer.0$F pass = F (%x: tensor<4xf32>) -> tensor<4xf32> {
  return %x : tensor<4xf32>
}
// expected-error @+1 {{expected no more duals than operands and results}}
piper.chunk @layer.0$B pass = B of @layer.0$F dual [0] -> [] () {
  return
}

// -----

piper.chunk @layer.0$F pass = F (%x: tensor<4xf32>) -> tensor<4xf32> {
  return %x : tensor<4xf32>
}
// expected-error @+1 {{expected a result of @layer.0$F, got 1}}
piper.chunk @layer.0$B pass = B of @layer.0$F dual [1] -> [] (%dy: tensor<4xf32>) {
  return
}

// -----

piper.chunk @layer.0$F pass = F (%x: tensor<4xf32>) -> tensor<4xf32> {
  return %x : tensor<4xf32>
}
// expected-error @+1 {{expected an operand of @layer.0$F, got -2}}
piper.chunk @layer.0$B pass = B of @layer.0$F dual [0] -> [-2] (%dy: tensor<4xf32>) -> tensor<4xf32> {
  return %dy : tensor<4xf32>
}

// -----

// Replicated and partial are dual: a replicated loss has a partial tangent.
!R = tensor<f32, #piper.layout<dp = replicated>>
piper.chunk @loss.0$F pass = F (%x: !R) -> !R {
  return %x : !R
}
// expected-error @+1 {{expected the gradient of result 0 to be partial on axis 'dp', got replicated}}
piper.chunk @loss.0$B pass = B of @loss.0$F dual [0] -> [] (%t: !R) {
  return
}

// -----

// -1 is an operand that is no cotangent: only the second is one.
!V = tensor<f32, #piper.layout<dp = varying>>
piper.chunk @loss.0$F pass = F (%x: !V) -> !V {
  return %x : !V
}
// expected-error @+1 {{expected the gradient of result 0 to be varying on axis 'dp', got replicated}}
piper.chunk @loss.0$B pass = B of @loss.0$F dual [-1, 0] -> [] (%x: tensor<f32>, %t: tensor<f32>) {
  return
}

// -----

// A missing reduction: the rank's own gradient, taken for the whole.
!R = tensor<4xf32, #piper.layout<dp = replicated>>
!V = tensor<4xf32, #piper.layout<dp = varying>>
piper.chunk @layer.0$F pass = F (%w: !R) {
  return
}
// expected-error @+1 {{expected the gradient of operand 0 to be partial on axis 'dp', got varying}}
piper.chunk @layer.0$B pass = B of @layer.0$F dual [] -> [0] (%dw: !V) -> !V {
  return %dw : !V
}
