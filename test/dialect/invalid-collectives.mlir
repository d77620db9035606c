// Communication and local data movement: every rule, broken once.
// RUN: piper-opt %s -split-input-file -verify-diagnostics

//===----------------------------------------------------------------------===//
// Transfers and local data movement
//===----------------------------------------------------------------------===//

piper.mesh @mesh [pp = 1 unrolled]
piper.cluster @cluster of @train phase = connected mesh = @mesh microbatches = 1 {
  %x = input "x" mb 0 at 1 : tensor<4xf32>
  // expected-error @+1 {{expected a destination other than the source, got 1}}
  %0 = transfer %x from 1 to 1 mb 0 : tensor<4xf32>
}

// -----

piper.mesh @mesh [pp = 2 unrolled]
piper.cluster @cluster of @train phase = connected mesh = @mesh microbatches = 1 {
  %x = input "x" mb 0 at 0 : tensor<?x4xf32>
  // expected-error @+1 {{'piper.transfer' op expected a value whose size is known before it is sent, got 'tensor<?x4xf32>'}}
  %y = transfer %x from 0 to 1 mb 0 : tensor<?x4xf32>
}

// -----

!V = tensor<4xf32, #piper.layout<dp = varying>>
!S = tensor<2xf32, #piper.layout<dp = shard(0)>>
piper.chunk @layer.0$F pass = F (%x: !V) {
  // expected-error @+1 {{expected to turn replicated into shard(0) on axis 'dp', got varying and shard(0)}}
  %0 = slice %x dim 0 over "dp" : !V -> !S
  return
}

// -----

piper.chunk @layer.0$F pass = F (%x: tensor<4xf32>) {
  // expected-error @+1 {{expected only the dtype to differ, got 'tensor<4xf32>' and 'tensor<2x2xbf16>'}}
  %0 = convert %x : tensor<4xf32> -> tensor<2x2xbf16>
  return
}

// -----

!V = tensor<4xf32, #piper.layout<dp = varying>>
!P = tensor<4xbf16, #piper.layout<dp = partial>>
piper.chunk @layer.0$F pass = F (%x: !V) {
  // expected-error @+1 {{expected only the dtype to differ, got 'tensor<4xf32, #piper.layout<dp = varying>>' and 'tensor<4xbf16, #piper.layout<dp = partial>>'}}
  %0 = convert %x : !V -> !P
  return
}

// -----

piper.mesh @mesh [pp = 1 unrolled]
piper.cluster @cluster of @train phase = connected mesh = @mesh microbatches = 1 {
  %x = input "x" mb 0 at 0 : tensor<4xf32>
  // expected-error @+1 {{expected a stream or communicator, got @missing}}
  %0 = transfer %x from 0 to 1 mb 0 on @missing : tensor<4xf32>
}

// -----

!R = tensor<4x4xf32, #piper.layout<dp = replicated>>
!S = tensor<2x4xf32, #piper.layout<dp = shard(1)>>
piper.chunk @layer.0$F pass = F (%x: !R) {
  // expected-error @+1 {{expected to turn replicated into shard(0) on axis 'dp', got replicated and shard(1)}}
  %0 = slice %x dim 0 over "dp" : !R -> !S
  return
}

// -----

!R = tensor<4x4xf32, #piper.layout<dp = replicated>>
!S = tensor<2x2xf32, #piper.layout<dp = shard(0)>>
piper.chunk @layer.0$F pass = F (%x: !R) {
  // expected-error @+1 {{expected only dim 0 to change, got 'tensor<4x4xf32, #piper.layout<dp = replicated>>' and 'tensor<2x2xf32, #piper.layout<dp = shard(0)>>'}}
  %0 = slice %x dim 0 over "dp" : !R -> !S
  return
}

// -----

!R = tensor<4xf32, #piper.layout<dp = replicated, ep = replicated>>
!S = tensor<2xf32, #piper.layout<dp = shard(0), ep = varying>>
piper.chunk @layer.0$F pass = F (%x: !R) {
  // expected-error @+1 {{expected the kind on axis 'ep' to stay, got 'tensor<2xf32, #piper.layout<dp = shard(0), ep = varying>>'}}
  %0 = slice %x dim 0 over "dp" : !R -> !S
  return
}

// -----

!R = tensor<4xf32, #piper.layout<dp = replicated>>
!S = tensor<1xf32, #piper.layout<dp = shard(0)>>
piper.mesh @mesh [dp = 2 manual]
piper.chunk @layer.0$F pass = F (%x: !R) {
  // expected-error @+1 {{expected dim 0 to shrink by 2, got 'tensor<4xf32, #piper.layout<dp = replicated>>' and 'tensor<1xf32, #piper.layout<dp = shard(0)>>'}}
  %0 = slice %x dim 0 over "dp" : !R -> !S
  return
}

// -----

!R = tensor<4xf32, #piper.layout<dp = replicated>>
!S = tensor<2xf32, #piper.layout<dp = shard(0)>>
piper.chunk @layer.0$F pass = F (%x: !R) {
  // expected-error @+1 {{expected a mesh in the module}}
  %0 = slice %x dim 0 over "dp" : !R -> !S
  return
}

// -----

!R = tensor<4xf32, #piper.layout<dp = replicated>>
!S = tensor<2xf32, #piper.layout<dp = shard(0)>>
piper.mesh @mesh [tp = 2 auto]
piper.chunk @layer.0$F pass = F (%x: !R) {
  // expected-error @+1 {{expected a manual or auto axis of the mesh, got "dp"}}
  %0 = slice %x dim 0 over "dp" : !R -> !S
  return
}

// -----

piper.mesh @mesh [pp = 2 unrolled]
piper.chunk @layer.0$F pass = F () {
  // expected-error @+1 {{expected a manual or auto axis of the mesh, got "pp"}}
  %0 = axis_index "pp" : tensor<i64>
  return
}

// -----

//===----------------------------------------------------------------------===//
// Collectives
//===----------------------------------------------------------------------===//

piper.chunk @layer.0$F pass = F () {
  // expected-error @+1 {{expected at least one operand and one result}}
  "piper.all_reduce"() <{over = ["dp"], operandSegmentSizes = array<i32: 0, 0>}> : () -> ()
  return
}

// -----

!P = tensor<4xf32, #piper.layout<dp = partial>>
!R = tensor<4xf32, #piper.layout<dp = replicated>>
piper.chunk @layer.0$F pass = F (%x: !P) {
  // expected-error @+1 {{expected one result per operand, got 2 for 1}}
  %0, %1 = all_reduce %x over ["dp"] : !P -> !R, !R
  return
}

// -----

piper.mesh @mesh [pp = 1 unrolled]
!P = tensor<4xf32, #piper.layout<dp = partial>>
!R = tensor<4xf32, #piper.layout<dp = replicated>>
piper.cluster @cluster of @train phase = reduced mesh = @mesh microbatches = 1 {
  %x = read @w$b slot grad at 0 : !P
  // expected-error @+1 {{expected one coordinate per operand, got 2 for 1}}
  %0 = all_reduce %x at [0, 1] over ["dp"] : !P -> !R
}

// -----

piper.mesh @mesh [pp = 1 unrolled]
!P = tensor<4xf32, #piper.layout<dp = partial>>
!R = tensor<4xf32, #piper.layout<dp = replicated>>
piper.cluster @cluster of @train phase = reduced mesh = @mesh microbatches = 1 {
  %x = read @w$b slot grad at 0 : !P
  // expected-error @+1 {{expected each coordinate once, got 0 twice}}
  %0, %1 = all_reduce %x, %x at [0, 0] over ["dp"] across "pp" : !P, !P -> !R, !R
}

// -----

piper.mesh @mesh [pp = 1 unrolled]
!P = tensor<4xf32, #piper.layout<dp = partial>>
!R = tensor<4xf32, #piper.layout<dp = replicated>>
piper.cluster @cluster of @train phase = reduced mesh = @mesh microbatches = 1 {
  %x = read @w$b slot grad at 0 : !P
  %y = read @w$b slot grad at 1 : !P
  // expected-error @+1 {{expected `across` with operands of several coordinates}}
  %0, %1 = all_reduce %x, %y at [0, 1] over ["dp"] : !P, !P -> !R, !R
}

// -----

// A reduction too many: the operand is reduced already.
!R = tensor<4xf32, #piper.layout<dp = replicated>>
piper.chunk @layer.0$F pass = F (%x: !R) {
  // expected-error @+1 {{expected to turn partial into replicated on axis 'dp', got replicated and replicated}}
  %0 = all_reduce %x over ["dp"] : !R -> !R
  return
}

// -----

// A reduction over the wrong axis: nothing is partial on ep.
!P = tensor<4xf32, #piper.layout<edp = partial, ep = varying>>
!R = tensor<4xf32, #piper.layout<edp = replicated, ep = replicated>>
piper.chunk @layer.0$F pass = F (%x: !P) {
  // expected-error @+1 {{expected to turn partial into replicated on axis 'ep', got varying and replicated}}
  %0 = all_reduce %x over ["edp", "ep"] : !P -> !R
  return
}

// -----

!P = tensor<4xf32, #piper.layout<edp = partial, ep = partial>>
!R = tensor<4xf32, #piper.layout<edp = replicated, ep = replicated>>
piper.chunk @layer.0$F pass = F (%x: !P) {
  // expected-error @+1 {{expected the kind on axis 'ep' to stay, got 'tensor<4xf32, #piper.layout<edp = replicated, ep = replicated>>'}}
  %0 = all_reduce %x over ["edp"] : !P -> !R
  return
}

// -----

!P = tensor<4xf32, #piper.layout<dp = partial>>
!R = tensor<4xf64, #piper.layout<dp = replicated>>
piper.chunk @layer.0$F pass = F (%x: !P) {
  // expected-error @+1 {{expected shape and dtype to stay, got 'tensor<4xf32, #piper.layout<dp = partial>>' and 'tensor<4xf64, #piper.layout<dp = replicated>>'}}
  %0 = all_reduce %x over ["dp"] : !P -> !R
  return
}

// -----

!V = tensor<2xf32, #piper.layout<dp = varying>>
!R = tensor<4xf32, #piper.layout<dp = replicated>>
piper.chunk @layer.0$F pass = F (%x: !V) {
  // expected-error @+1 {{expected to turn shard(0) into replicated on axis 'dp', got varying and replicated}}
  %0 = all_gather %x dim 0 over ["dp"] : !V -> !R
  return
}

// -----

!S = tensor<2xf32, #piper.layout<dp = shard(0)>>
!R = tensor<6xf32, #piper.layout<dp = replicated>>
piper.mesh @mesh [dp = 2 manual]
piper.chunk @layer.0$F pass = F (%x: !S) {
  // expected-error @+1 {{expected dim 0 to grow by 2, got 'tensor<2xf32, #piper.layout<dp = shard(0)>>' and 'tensor<6xf32, #piper.layout<dp = replicated>>'}}
  %0 = all_gather %x dim 0 over ["dp"] : !S -> !R
  return
}

// -----

!S = tensor<2xf32, #piper.layout<dp = shard(0)>>
!R = tensor<4xf32, #piper.layout<dp = replicated>>
piper.mesh @mesh [dp = 2 manual]
piper.chunk @layer.0$F pass = F (%x: !S) {
  // expected-error @+1 {{expected to turn shard(1) into replicated on axis 'dp', got shard(0) and replicated}}
  %0 = all_gather %x dim 1 over ["dp"] : !S -> !R
  return
}

// -----

!P = tensor<4xf32, #piper.layout<dp = partial>>
!V = tensor<2xf32, #piper.layout<dp = varying>>
piper.chunk @layer.0$F pass = F (%x: !P) {
  // expected-error @+1 {{expected to turn partial into shard(0) on axis 'dp', got partial and varying}}
  %0 = reduce_scatter %x dim 0 over ["dp"] : !P -> !V
  return
}

// -----

!P = tensor<4xf32, #piper.layout<dp = partial>>
!S = tensor<4xf32, #piper.layout<dp = shard(0)>>
piper.mesh @mesh [dp = 2 manual]
piper.chunk @layer.0$F pass = F (%x: !P) {
  // expected-error @+1 {{expected dim 0 to shrink by 2, got 'tensor<4xf32, #piper.layout<dp = partial>>' and 'tensor<4xf32, #piper.layout<dp = shard(0)>>'}}
  %0 = reduce_scatter %x dim 0 over ["dp"] : !P -> !S
  return
}

// -----

!V = tensor<4xf32, #piper.layout<ep = varying>>
piper.chunk @layer.0$F pass = F (%x: !V, %s: !piper.sizes) {
  // expected-error @+1 {{expected both sizes or neither}}
  %0 = "piper.all_to_all"(%x, %s) <{over = ["ep"], dim = 0 : i64, operandSegmentSizes = array<i32: 1, 0, 1, 0>}> : (!V, !piper.sizes) -> !V
  return
}

// -----

!R = tensor<4xf32, #piper.layout<ep = replicated>>
piper.chunk @layer.0$F pass = F (%x: !R) {
  // expected-error @+1 {{expected to turn varying into varying on axis 'ep', got replicated and replicated}}
  %0 = all_to_all %x dim 0 over ["ep"] : !R -> !R
  return
}

// -----

!V = tensor<4xf32, #piper.layout<cp = varying>>
!W = tensor<8xf32, #piper.layout<cp = varying>>
piper.chunk @layer.0$F pass = F (%x: !V) {
  // expected-error @+1 {{expected the type to stay, got 'tensor<4xf32, #piper.layout<cp = varying>>' and 'tensor<8xf32, #piper.layout<cp = varying>>'}}
  %0 = permute %x shift 1 over ["cp"] : !V -> !W
  return
}

// -----

!V = tensor<4xf32, #piper.layout<cp = varying>>
!R = tensor<4xf32, #piper.layout<cp = replicated>>
piper.chunk @layer.0$F pass = F (%x: !V) {
  // expected-error @+1 {{expected the type to stay, got 'tensor<4xf32, #piper.layout<cp = varying>>' and 'tensor<4xf32, #piper.layout<cp = replicated>>'}}
  %0 = permute %x shift 1 over ["cp"] : !V -> !R
  return
}

// -----

!P = tensor<4xf32, #piper.layout<dp = partial>>
!R = tensor<4xf32, #piper.layout<dp = replicated>>
piper.chunk @layer.0$F pass = F (%x: !P) {
  // expected-error @+1 {{expected to turn varying into replicated on axis 'dp', got partial and replicated}}
  %0 = broadcast %x root 0 over ["dp"] : !P -> !R
  return
}

// -----

// A program's results are tensors and one event.
!P = tensor<4xf32, #piper.layout<dp = partial>>
piper.chunk @layer.0$F pass = F (%x: !P) {
  // expected-error @+1 {{expected tensors, got '!piper.sizes'}}
  %0 = all_reduce %x over ["dp"] : !P -> !piper.sizes
  return
}

// -----

!P = tensor<4xf32, #piper.layout<dp = partial>>
!R = tensor<4xf32, #piper.layout<dp = replicated>>
piper.chunk @layer.0$F pass = F (%x: !P) {
  // expected-error @+1 {{expected a mesh in the module}}
  %0 = all_reduce %x over ["dp"] : !P -> !R
  return
}

// -----

!P = tensor<4xf32, #piper.layout<dp = partial>>
!R = tensor<4xf32, #piper.layout<dp = replicated>>
piper.mesh @mesh [edp = 2 manual, ep = 2 manual] views {dp = ["edp", "ep"]}
piper.chunk @layer.0$F pass = F (%x: !P) {
  // expected-error @+1 {{expected a manual or auto axis of the mesh, got "dp"}}
  %0 = all_reduce %x over ["dp"] : !P -> !R
  return
}

// -----

// Along the unrolled axis a collective goes across coordinates.
!P = tensor<4xf32, #piper.layout<pp = partial>>
!R = tensor<4xf32, #piper.layout<pp = replicated>>
piper.mesh @mesh [pp = 2 unrolled]
piper.chunk @layer.0$F pass = F (%x: !P) {
  // expected-error @+1 {{expected a manual or auto axis of the mesh, got "pp"}}
  %0 = all_reduce %x over ["pp"] : !P -> !R
  return
}

// -----

!P = tensor<4xf32, #piper.layout<dp = partial>>
!R = tensor<4xf32, #piper.layout<dp = replicated>>
piper.mesh @mesh [pp = 2 unrolled, dp = 2 manual]
piper.cluster @cluster of @train phase = reduced mesh = @mesh microbatches = 1 {
  %x = input "x" mb 0 at 0 : !P
  // expected-error @+1 {{expected `across` to name the unrolled axis, got "dp"}}
  %0 = all_reduce %x at [0] over ["dp"] across "dp" : !P -> !R
}

// -----

piper.mesh @mesh [dp = 2 manual]
piper.chunk @layer.0$F pass = F (%x: tensor<4xf32>) {
  // expected-error @+1 {{expected `across` to name the unrolled axis, got "pp"}}
  %0 = all_reduce %x over [] across "pp" : tensor<4xf32> -> tensor<4xf32>
  return
}

// -----

!P = tensor<4xf32, #piper.layout<dp = partial>>
!R = tensor<4xf32, #piper.layout<dp = replicated>>
piper.mesh @mesh [dp = 2 manual]
piper.chunk @layer.0$F pass = F (%x: !P) {
  // expected-error @+1 {{expected a stream or communicator, got @mesh}}
  %0 = all_reduce %x over ["dp"] on @mesh : !P -> !R
  return
}

// -----

// Equal layouts are equal types: an axis does not come or go.
!P = tensor<4xf32, #piper.layout<edp = partial>>
!R = tensor<4xf32, #piper.layout<edp = replicated, ep = varying>>
piper.chunk @layer.0$F pass = F (%x: !P) {
  // expected-error @+1 {{expected layouts that name the same axes, got 'tensor<4xf32, #piper.layout<edp = partial>>' and 'tensor<4xf32, #piper.layout<edp = replicated, ep = varying>>'}}
  %0 = all_reduce %x over ["edp"] : !P -> !R
  return
}

// -----

!P = tensor<4x4xf32, #piper.layout<dp = partial, tp = shard(0)>>
!R = tensor<4x4xf32, #piper.layout<dp = replicated, tp = shard(1)>>
piper.chunk @layer.0$F pass = F (%x: !P) {
  // expected-error @+1 {{expected the kind on axis 'tp' to stay, got 'tensor<4x4xf32, #piper.layout<dp = replicated, tp = shard(1)>>'}}
  %0 = all_reduce %x over ["dp"] : !P -> !R
  return
}

// -----

!S = tensor<2x4xf32, #piper.layout<dp = shard(0)>>
!R = tensor<4x8xf32, #piper.layout<dp = replicated>>
piper.chunk @layer.0$F pass = F (%x: !S) {
  // expected-error @+1 {{expected only dim 0 to change, got 'tensor<2x4xf32, #piper.layout<dp = shard(0)>>' and 'tensor<4x8xf32, #piper.layout<dp = replicated>>'}}
  %0 = all_gather %x dim 0 over ["dp"] : !S -> !R
  return
}

// -----

!P = tensor<4xbf16, #piper.layout<dp = partial>>
!S = tensor<2xf32, #piper.layout<dp = shard(0)>>
piper.chunk @layer.0$F pass = F (%x: !P) {
  // expected-error @+1 {{expected only dim 0 to change, got 'tensor<4xbf16, #piper.layout<dp = partial>>' and 'tensor<2xf32, #piper.layout<dp = shard(0)>>'}}
  %0 = reduce_scatter %x dim 0 over ["dp"] : !P -> !S
  return
}

// -----

!V = tensor<4x4xf32, #piper.layout<ep = varying>>
!W = tensor<4x2xf32, #piper.layout<ep = varying>>
piper.chunk @layer.0$F pass = F (%x: !V) {
  // expected-error @+1 {{expected only dim 0 to change, got 'tensor<4x4xf32, #piper.layout<ep = varying>>' and 'tensor<4x2xf32, #piper.layout<ep = varying>>'}}
  %0 = all_to_all %x dim 0 over ["ep"] : !V -> !W
  return
}

// -----

// Every rank has the same: there is nothing to pass on.
!R = tensor<4xf32, #piper.layout<cp = replicated>>
piper.chunk @layer.0$F pass = F (%x: !R) {
  // expected-error @+1 {{expected a varying or sharded value on axis 'cp', got 'tensor<4xf32, #piper.layout<cp = replicated>>'}}
  %0 = permute %x shift 1 over ["cp"] : !R -> !R
  return
}

// -----

// Any number may stand for a coordinate; the mesh says later that it has none.
!r = tensor<4xf32>
piper.mesh @mesh [pp = 2 unrolled, dp = 2 manual]
piper.cluster @cluster of @train phase = unrolled mesh = @mesh microbatches = 1 {
  %x = input "x" mb 0 at 0 : !r
  // expected-error @+1 {{expected each coordinate once, got 9223372036854775807 twice}}
  %y, %z = all_reduce %x, %x at [9223372036854775807, 9223372036854775807] over ["dp"] across "pp" : !r, !r -> !r, !r
}
