// RUN: piper-opt %s -split-input-file -verify-diagnostics --piper-form-buckets

// A chunk sums its contributions to a state itself.

!x = tensor<4xf32>
piper.mesh @mesh [pp = 2 unrolled]
piper.state @w parameter : !x
piper.chunk @a.0$F pass = F (%x: !x) -> !x { return %x : !x }
piper.chunk @a.0$B pass = B of @a.0$F (%d: !x) {
  grad @w %d : !x
  // expected-error @+1 {{expected one gradient of @w per chunk, got two}}
  grad @w %d : !x
  return
}
