// Chunks: every rule, broken once.
// RUN: piper-opt %s -split-input-file -verify-diagnostics

//===----------------------------------------------------------------------===//
// Chunks
//===----------------------------------------------------------------------===//

// expected-error @+1 {{expected `of` for a chunk of pass B, I or W and no other, got pass B}}
piper.chunk @layer.0$B pass = B () {
  return
}

// -----

piper.chunk @layer.0$F pass = F () {
  return
}
// expected-error @+1 {{expected `of` for a chunk of pass B, I or W and no other, got pass P}}
piper.chunk @layer.0$P pass = P of @layer.0$F () {
  return
}

// -----

piper.chunk @layer.0$F pass = F () {
  // expected-error @+1 {{is not expected in a chunk}}
  %0 = input "x" mb 0 : tensor<4xf32>
  return
}

// -----

piper.chunk @layer.0$F pass = F (%x: tensor<4xf32>) -> tensor<8xf32> {
  // expected-error @+1 {{expected to return 'tensor<8xf32>', got 'tensor<4xf32>'}}
  return %x : tensor<4xf32>
}

// -----

// expected-error @+1 {{expected `of` to name a chunk of pass F, got @missing}}
piper.chunk @layer.0$B pass = B of @missing () {
  return
}

// -----

piper.chunk @layer.0$P pass = P () {
  return
}
// expected-error @+1 {{expected `of` to name a chunk of pass F, got @layer.0$P}}
piper.chunk @layer.0$B pass = B of @layer.0$P () {
  return
}

// -----

piper.chunk @loss$P pass = P (%n: tensor<4xf32, #piper.layout<dp = varying>>) {
  // expected-error @+1 {{expected only kinds to differ, got 'tensor<4xf32, #piper.layout<dp = varying>>' and 'tensor<8xf32, #piper.layout<dp = partial>>'}}
  %0 = relabel %n : tensor<4xf32, #piper.layout<dp = varying>> -> tensor<8xf32, #piper.layout<dp = partial>>
  return
}

// -----

piper.mesh @mesh [dp = 2 manual]
piper.state @w parameter : tensor<4xf32>
piper.bucket @w$b [@w] value : tensor<4xf32>
piper.chunk @layer.0$F pass = F () {
  return
}
piper.chunk @layer.0$W pass = W of @layer.0$F (%dw: tensor<4xf32>) {
  %0 = pack @w$b %dw : tensor<4xf32> -> tensor<4xf32, #piper.layout<dp = partial>>
  // expected-error @+1 {{expected one contribution to a bucket per chunk, got two to @w$b}}
  %1 = pack @w$b %dw : tensor<4xf32> -> tensor<4xf32, #piper.layout<dp = partial>>
  return
}

// -----

//===----------------------------------------------------------------------===//
// Launches and runs
//===----------------------------------------------------------------------===//

piper.chunk @layer.0$F pass = F () {
  // expected-error @+1 {{expected a kernel, got @missing}}
  launch @missing() : () -> ()
  return
}

// -----

piper.kernel @kernel(%x: tensor<4xf32>) {
  return
}
piper.chunk @layer.0$F pass = F () {
  // expected-error @+1 {{expected 1 operands and 0 results, got 0 and 0}}
  launch @kernel() : () -> ()
  return
}

// -----

piper.kernel @kernel(%x: tensor<4xf32>) {
  return
}
piper.chunk @layer.0$F pass = F (%x: tensor<8xf32>) {
  // expected-error @+1 {{expected operand 0 of type 'tensor<4xf32>', got 'tensor<8xf32>'}}
  launch @kernel(%x) : (tensor<8xf32>) -> ()
  return
}

// -----

piper.kernel @kernel(%x: tensor<4xf32>) -> tensor<4xf32> {
  %0 = torch "aten.relu.default"(%x) facts <pure> : (tensor<4xf32>) -> tensor<4xf32>
  return %0 : tensor<4xf32>
}
piper.chunk @layer.0$F pass = F (%x: tensor<4xf32>) {
  // expected-error @+1 {{expected result 0 of type 'tensor<4xf32>', got 'tensor<4xf16>'}}
  %0 = launch @kernel(%x) : (tensor<4xf32>) -> tensor<4xf16>
  return
}

// -----

piper.mesh @mesh [dp = 2 manual]
piper.kernel @kernel(%x: tensor<4xf32>) {
  return
}
piper.chunk @layer.0$F pass = F (%x: tensor<4xf32, #piper.layout<dp = partial>>) {
  // expected-error @+1 {{expected no partial operand on axis 'dp', got 'tensor<4xf32, #piper.layout<dp = partial>>'}}
  launch @kernel(%x) : (tensor<4xf32, #piper.layout<dp = partial>>) -> ()
  return
}

// -----

!R = tensor<4xf32, #piper.layout<dp = replicated>>
!V = tensor<4xf32, #piper.layout<dp = varying>>
piper.mesh @mesh [dp = 2 manual]
piper.kernel @kernel(%x: tensor<4xf32>, %y: tensor<4xf32>) -> tensor<4xf32> {
  %0 = torch "aten.add.Tensor"(%x, %y) facts <pure> : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  return %0 : tensor<4xf32>
}
piper.chunk @layer.0$F pass = F (%x: !R, %y: !V) {
  // expected-error @+1 {{expected results that are varying on axis 'dp', got 'tensor<4xf32, #piper.layout<dp = replicated>>'}}
  %0 = launch @kernel(%x, %y) : (!R, !V) -> !R
  return
}

// -----

!R = tensor<4xf32, #piper.layout<dp = replicated>>
!V = tensor<4xf32, #piper.layout<dp = varying>>
piper.mesh @mesh [dp = 2 manual]
piper.kernel @kernel(%x: tensor<4xf32>) -> tensor<4xf32> {
  %0 = torch "aten.relu.default"(%x) facts <pure> : (tensor<4xf32>) -> tensor<4xf32>
  return %0 : tensor<4xf32>
}
piper.chunk @layer.0$F pass = F (%x: !R) {
  // expected-error @+1 {{expected results that are replicated on axis 'dp', got 'tensor<4xf32, #piper.layout<dp = varying>>'}}
  %0 = launch @kernel(%x) : (!R) -> !V
  return
}

// -----

piper.mesh @mesh [pp = 1 unrolled]
piper.step @train phase = outlined mesh = @mesh inputs [] dims [] () {
  // expected-error @+1 {{expected a chunk, got @missing}}
  run @missing() : () -> ()
}

// -----

piper.mesh @mesh [pp = 1 unrolled]
piper.chunk @layer.0$F pass = F () {
  return
}
piper.step @train phase = outlined mesh = @mesh inputs [] dims [] () {
  // expected-error @+1 {{expected 0 operands and 0 results, got 0 and 1}}
  %0 = run @layer.0$F() : () -> tensor<4xf32>
}

// -----

// A run compares whole types: unlike a kernel, a chunk has kinds.
piper.mesh @mesh [pp = 1 unrolled]
!V = tensor<4xf32, #piper.layout<dp = varying>>
piper.chunk @layer.0$F pass = F (%x: tensor<4xf32>) {
  return
}
piper.step @train phase = outlined mesh = @mesh inputs ["x"] dims [0] (%x: !V) {
  // expected-error @+1 {{expected operand 0 of type 'tensor<4xf32>', got 'tensor<4xf32, #piper.layout<dp = varying>>'}}
  run @layer.0$F(%x) : (!V) -> ()
}

// -----

// A result without a layout is replicated.
!V = tensor<4xf32, #piper.layout<dp = varying>>
piper.mesh @mesh [dp = 2 manual]
piper.kernel @kernel(%x: tensor<4xf32>) -> tensor<4xf32> {
  %0 = torch "aten.relu.default"(%x) facts <pure> : (tensor<4xf32>) -> tensor<4xf32>
  return %0 : tensor<4xf32>
}
piper.chunk @layer.0$F pass = F (%x: !V) {
  // expected-error @+1 {{expected results that are varying on axis 'dp', got 'tensor<4xf32>'}}
  %0 = launch @kernel(%x) : (!V) -> tensor<4xf32>
  return
}

// -----

piper.kernel @kernel() {
  return
}
piper.chunk @layer.0$F pass = F () {
  // expected-error @+1 {{expected a stream or communicator, got @kernel}}
  launch @kernel() on @kernel : () -> ()
  return
}

// -----

//===----------------------------------------------------------------------===//
// Buckets in chunks
//===----------------------------------------------------------------------===//

piper.mesh @mesh [dp = 2 manual]
piper.chunk @layer.0$F pass = F (%p: tensor<4xf32>) {
  // expected-error @+1 {{expected a bucket, got @missing}}
  %0 = unpack @missing %p : tensor<4xf32> -> tensor<4xf32>
  return
}

// -----

piper.mesh @mesh [dp = 2 manual]
piper.state @w parameter : tensor<4xf32>
piper.bucket @w$b [@w] value : tensor<4xf32>
piper.chunk @layer.0$F pass = F (%p: tensor<4xf32>) {
  // expected-error @+1 {{expected 1 members, got 2}}
  %0, %1 = unpack @w$b %p : tensor<4xf32> -> tensor<4xf32>, tensor<4xf32>
  return
}

// -----

piper.mesh @mesh [dp = 2 manual]
piper.state @w parameter : tensor<2x2xf32>
piper.bucket @w$b [@w] value : tensor<4xf32>
piper.chunk @layer.0$F pass = F (%p: tensor<4xf32>) {
  // expected-error @+1 {{expected @w of dtype 'f32' and its shape on one rank, got 'tensor<4xf32>'}}
  %0 = unpack @w$b %p : tensor<4xf32> -> tensor<4xf32>
  return
}

// -----

// Of a sharded state a rank sees its part.
piper.mesh @mesh [tp = 2 auto]
piper.state @w parameter : tensor<4xf32> layout <tp = shard(0)>
piper.bucket @w$b [@w] value : tensor<2xf32>
piper.chunk @layer.0$B pass = W of @layer.0$F (%dw: tensor<4xf32>) {
  // expected-error @+1 {{expected @w of dtype 'f32' and its shape on one rank, got 'tensor<4xf32>'}}
  %0 = pack @w$b %dw : tensor<4xf32> -> tensor<2xf32>
  return
}
piper.chunk @layer.0$F pass = F () {
  return
}

// -----

piper.mesh @mesh [dp = 2 manual]
piper.state @w parameter : tensor<4xf32>
piper.bucket @w$b [@w] value : tensor<4xf32>
piper.chunk @layer.0$F pass = F (%p: tensor<4xf32>) {
  // expected-error @+1 {{expected @w of dtype 'f32' and its shape on one rank, got 'tensor<4xbf16>'}}
  %0 = unpack @w$b %p : tensor<4xf32> -> tensor<4xbf16>
  return
}

// -----

!V = tensor<4xf32, #piper.layout<dp = varying>>
piper.mesh @mesh [dp = 2 manual]
piper.state @w parameter : tensor<4xf32>
piper.bucket @w$b [@w] value : tensor<4xf32>
piper.chunk @layer.0$F pass = F () {
  return
}
piper.chunk @layer.0$W pass = W of @layer.0$F (%dw: !V) {
  // expected-error @+1 {{expected a contribution that is partial on axis 'dp', got 'tensor<4xf32, #piper.layout<dp = varying>>'}}
  %0 = pack @w$b %dw : !V -> !V
  return
}

// -----

// Experts are sharded on ep: their gradients are no partial sums there.
!V = tensor<2xf32, #piper.layout<ep = varying>>
!P = tensor<2xf32, #piper.layout<ep = partial>>
piper.mesh @mesh [ep = 2 manual]
piper.state @w parameter : tensor<4xf32> layout <ep = shard(0)>
piper.bucket @w$b [@w] value : !V
piper.chunk @layer.0$F pass = F () {
  return
}
piper.chunk @layer.0$W pass = W of @layer.0$F (%dw: !V) {
  // expected-error @+1 {{expected a contribution that is varying on axis 'ep', got 'tensor<2xf32, #piper.layout<ep = partial>>'}}
  %0 = pack @w$b %dw : !V -> !P
  return
}

// -----

// A value that is not gathered.
!S = tensor<2xf32, #piper.layout<dp = shard(0)>>
piper.mesh @mesh [dp = 2 manual]
piper.state @w parameter : tensor<4xf32>
piper.bucket @w$b [@w] value : !S
piper.chunk @layer.0$F pass = F (%p: !S) {
  // expected-error @+1 {{expected a flat tensor of 4 elements, got 'tensor<2xf32, #piper.layout<dp = shard(0)>>'}}
  %0 = unpack @w$b %p : !S -> tensor<4xf32>
  return
}

// -----

!P = tensor<4xf32, #piper.layout<dp = partial>>
piper.mesh @mesh [dp = 2 manual]
piper.state @w parameter : tensor<4xf32>
piper.bucket @w$b [@w] value : tensor<4xf32>
piper.chunk @layer.0$F pass = F (%p: !P) {
  // expected-error @+1 {{expected a replicated or varying value on axis 'dp', got 'tensor<4xf32, #piper.layout<dp = partial>>'}}
  %0 = unpack @w$b %p : !P -> tensor<4xf32>
  return
}

// -----

piper.mesh @mesh [dp = 2 manual]
piper.state @w parameter : tensor<4xf32>
piper.bucket @w$b [@w] value : tensor<4xf32> compute : tensor<4xbf16>
piper.chunk @layer.0$F pass = F (%p: tensor<4xf16>) {
  // expected-error @+1 {{expected the dtype of slot value or compute of @w$b, got 'tensor<4xf16>'}}
  %0 = unpack @w$b %p : tensor<4xf16> -> tensor<4xf16>
  return
}

// -----

!P = tensor<8xf32, #piper.layout<dp = partial>>
piper.mesh @mesh [dp = 2 manual]
piper.state @w parameter : tensor<4xf32>
piper.bucket @w$b [@w] value : tensor<4xf32>
piper.chunk @layer.0$F pass = F () {
  return
}
piper.chunk @layer.0$W pass = W of @layer.0$F (%dw: tensor<4xf32>) {
  // expected-error @+1 {{expected a flat tensor of 4 elements, got 'tensor<8xf32, #piper.layout<dp = partial>>'}}
  %0 = pack @w$b %dw : tensor<4xf32> -> !P
  return
}

// -----

// A gradient that is a partial sum would be summed twice.
!P = tensor<4xf32, #piper.layout<dp = partial>>
piper.mesh @mesh [dp = 2 manual]
piper.state @w parameter : tensor<4xf32>
piper.bucket @w$b [@w] value : tensor<4xf32>
piper.chunk @layer.0$F pass = F () {
  return
}
piper.chunk @layer.0$W pass = W of @layer.0$F (%dw: !P) {
  // expected-error @+1 {{expected replicated or varying members on axis 'dp', got 'tensor<4xf32, #piper.layout<dp = partial>>'}}
  %0 = pack @w$b %dw : !P -> !P
  return
}

// -----

// Only a whole backward chunk has halves.
!x = tensor<4xf32>
piper.chunk @a.0$F pass = F (%x: !x) -> !x { return %x : !x }
// expected-error @+1 {{expected halves of a chunk of pass B only}}
piper.chunk @a.0$I pass = I of @a.0$F input <@a.0$I [0] -> [0]> (%d: !x) -> !x { return %d : !x }

// -----

!x = tensor<4xf32>
piper.chunk @a.0$F pass = F (%x: !x) -> !x { return %x : !x }
piper.chunk @a.0$I pass = I of @a.0$F (%d: !x) -> !x { return %d : !x }
// expected-error @+1 {{expected operands below 1 in #piper.half<@a.0$I [1] -> [0]>, got 1}}
piper.chunk @a.0$B pass = B of @a.0$F input <@a.0$I [1] -> [0]> (%d: !x) -> !x { return %d : !x }

// -----

!x = tensor<4xf32>
piper.chunk @a.0$F pass = F (%x: !x) -> !x { return %x : !x }
piper.chunk @a.0$I pass = I of @a.0$F (%d: !x) -> !x { return %d : !x }
// expected-error @+1 {{expected results below 1 in #piper.half<@a.0$I [0] -> [2]>, got 2}}
piper.chunk @a.0$B pass = B of @a.0$F input <@a.0$I [0] -> [2]> (%d: !x) -> !x { return %d : !x }

// -----

// No result is lost between the halves.
!x = tensor<4xf32>
piper.chunk @a.0$F pass = F (%x: !x) -> !x { return %x : !x }
piper.chunk @a.0$I pass = I of @a.0$F (%d: !x) -> !x { return %d : !x }
// expected-error @+1 {{expected its halves to return result 1 once, got it 0 times}}
piper.chunk @a.0$B pass = B of @a.0$F input <@a.0$I [0] -> [0]> (%d: !x) -> (!x, !x) { return %d, %d : !x, !x }

// -----

!x = tensor<4xf32>
piper.chunk @a.0$F pass = F (%x: !x) -> !x { return %x : !x }
// expected-error @+1 {{expected a chunk of pass I of @a.0$F, got @a.0$F}}
piper.chunk @a.0$B pass = B of @a.0$F input <@a.0$F [0] -> [0]> (%d: !x) -> !x { return %d : !x }

// -----

!x = tensor<4xf32>
piper.chunk @a.0$F pass = F (%x: !x) -> !x { return %x : !x }
piper.chunk @a.0$W pass = W of @a.0$F (%d: tensor<2xf32>) -> tensor<2xf32> { return %d : tensor<2xf32> }
// expected-error @+1 {{expected @a.0$W to begin with the types of #piper.half<@a.0$W [0] -> [0]>}}
piper.chunk @a.0$B pass = B of @a.0$F weight <@a.0$W [0] -> [0]> (%d: !x) -> !x { return %d : !x }
