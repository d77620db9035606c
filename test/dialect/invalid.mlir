// Every rule that the dialect checks, broken once.
// RUN: piper-opt %s -split-input-file -verify-diagnostics

//===----------------------------------------------------------------------===//
// Attributes
//===----------------------------------------------------------------------===//

// expected-error @+1 {{expected at least 1 rank on axis 'dp', got 0}}
piper.mesh @mesh [dp = 0 manual]

// -----

// expected-error @+1 {{expected a role of unrolled, manual or auto, got 'automatic'}}
piper.mesh @mesh [dp = 2 automatic]

// -----

// expected-error @+1 {{unknown word 'split'}}
#layout = #piper.layout<dp = split>

// -----

// expected-error @+1 {{expected each axis once in a layout, got 'dp' twice}}
#layout = #piper.layout<dp = replicated, dp = partial>

// -----

// expected-error @+1 {{expected no more rows than the bound of 8, got expect = 9}}
#layout = #piper.layout<bound = 8, expect = 9>

// -----

// expected-error @+1 {{expected axis 'dp' to shard one of 2 dims, got dim 2}}
!t = tensor<4x4xf32, #piper.layout<dp = shard(2)>>

// -----

// expected-error @+1 {{expected a bound with a dynamic shape and none with a static one, got bound = 8}}
!t = tensor<4xf32, #piper.layout<bound = 8>>

// -----

// expected-error @+1 {{expected a bound with a dynamic shape and none with a static one, got bound = 0}}
!t = tensor<?xf32, #piper.layout<dp = varying>>

// -----

// expected-error @+1 {{expected a selector by all, tag or state, got 'module'}}
#select = #piper.select<module = "layer">

// -----

// expected-error @+1 {{expected a glob, got '[': }}
#select = #piper.select<state = "[">

// -----

//===----------------------------------------------------------------------===//
// Meshes, states, buckets
//===----------------------------------------------------------------------===//

// expected-error @+1 {{expected distinct axis names, got 'dp' twice}}
piper.mesh @mesh [dp = 2 manual, dp = 2 auto]

// -----

// expected-error @+1 {{expected at most one unrolled axis, got 2}}
piper.mesh @mesh [pp = 2 unrolled, vpp = 2 unrolled]

// -----

// expected-error @+1 {{expected a list of axes for view 'dp'}}
piper.mesh @mesh [edp = 2 manual, ep = 2 manual] views {dp = "edp"}

// -----

// expected-error @+1 {{expected the factors of view 'dp' to be axes, got "tp"}}
piper.mesh @mesh [edp = 2 manual, ep = 2 manual] views {dp = ["edp", "tp"]}

// -----

// expected-error @+1 {{expected a view to differ from every axis, got 'ep'}}
piper.mesh @mesh [edp = 2 manual, ep = 2 manual] views {ep = ["edp"]}

// -----

// expected-error @+1 {{expected the type of the whole tensor, without an encoding; the layout is stated apart}}
piper.state @w parameter : tensor<4xf32, #piper.layout<dp = replicated>>

// -----

// expected-error @+1 {{expected a static shape, got 'tensor<?xf32>'}}
piper.state @w parameter : tensor<?xf32>

// -----

// expected-error @+1 {{expected only a parameter to be frozen or optimized, got a buffer}}
piper.state @w buffer frozen : tensor<4xf32>

// -----

// expected-error @+1 {{expected only a parameter to be frozen or optimized, got a constant}}
piper.state @w constant : tensor<4xf32> optimization <"train:sgd">

// -----

// expected-error @+1 {{expected each name once, got "w" twice}}
piper.state @w parameter : tensor<4xf32> aliases ["v", "w"]

// -----

// expected-error @+1 {{expected at least one member}}
piper.bucket @w$b [] value : tensor<4xf32>

// -----

piper.mesh @mesh [dp = 2 manual]
piper.state @w parameter : tensor<2x2xf32>
// expected-error @+1 {{expected slot grad to be flat, got 'tensor<2x2xf32>'}}
piper.bucket @w$b [@w] value : tensor<4xf32> grad : tensor<2x2xf32>

// -----

piper.state @w parameter : tensor<4xf32>
// expected-error @+1 {{expected a mesh in the module}}
piper.bucket @w$b [@w] value : tensor<4xf32>

// -----

piper.mesh @mesh [dp = 2 manual]
// expected-error @+1 {{expected members to be states, got @mesh}}
piper.bucket @w$b [@mesh] value : tensor<4xf32>

// -----

// The last rank of a shard is padded: 5 elements over 2 ranks are 3 each.
piper.mesh @mesh [dp = 2 manual]
piper.state @w parameter : tensor<5xf32>
// expected-error @+1 {{expected slot compute to hold 3 elements per rank, got 'tensor<2xf32, #piper.layout<dp = shard(0)>>'}}
piper.bucket @w$b [@w] value : tensor<3xf32, #piper.layout<dp = shard(0)>> compute : tensor<2xf32, #piper.layout<dp = shard(0)>>

// -----

//===----------------------------------------------------------------------===//
// Strategies and schedules
//===----------------------------------------------------------------------===//

piper.mesh @mesh [pp = 2 unrolled]
piper.strategy @strategy mesh = @mesh {
  // expected-error @+1 {{expected only directives in a strategy}}
  %0 = piper.axis_index "pp" : tensor<i64>
}

// -----

// expected-error @+1 {{expected a mesh, got @missing}}
piper.strategy @strategy mesh = @missing {}

// -----

// expected-error @+1 {{expects parent op 'piper.strategy'}}
piper.do.order @order

// -----

piper.mesh @mesh [pp = 2 unrolled]
piper.strategy @strategy mesh = @mesh {
  // expected-error @+1 {{expected at least 1 microbatch, got 0}}
  piper.do.split microbatches = 0 dims = {}
}

// -----

piper.mesh @mesh [pp = 2 unrolled]
piper.strategy @strategy mesh = @mesh {
  // expected-error @+1 {{expected at least 1 stage, got 0}}
  piper.do.place <all> stages = 0 axis = "pp"
}

// -----

piper.mesh @mesh [pp = 2 unrolled]
piper.strategy @strategy mesh = @mesh {
  // expected-error @+1 {{expected a size for each of 2 stages, got 3}}
  piper.do.place <all> stages = 2 axis = "pp" sizes [1, 1, 1]
}

// -----

piper.mesh @mesh [pp = 2 unrolled]
piper.strategy @strategy mesh = @mesh {
  // expected-error @+1 {{expected a coordinate for each of 2 stages, got 1}}
  piper.do.place <all> stages = 2 axis = "pp" coordinates [0]
}

// -----

piper.mesh @mesh [pp = 2 unrolled]
piper.strategy @strategy mesh = @mesh {
  // expected-error @+1 {{expected coordinates or homes, got both}}
  piper.do.place <all> stages = 2 axis = "pp" coordinates [0, 1] homes [array<i64: 0, 1>]
}

// -----

piper.mesh @mesh [pp = 2 unrolled]
piper.strategy @strategy mesh = @mesh {
  // expected-error @+1 {{expected a home for each of 2 stages, got array<i64: 0>}}
  piper.do.place <all> stages = 2 axis = "pp" homes [array<i64: 0, 1>, array<i64: 0>]
}

// -----

piper.mesh @mesh [dp = 2 manual]
piper.strategy @strategy mesh = @mesh {
  // expected-error @+1 {{expected a ZeRO stage of 0 to 3, got 4}}
  piper.do.replicate <all> axes = ["dp"] zero = 4 bucket = 1 reduce = "last"
}

// -----

piper.mesh @mesh [dp = 2 manual]
piper.strategy @strategy mesh = @mesh {
  // expected-error @+1 {{expected reduce to be "last" or "each", got "never"}}
  piper.do.replicate <all> axes = ["dp"] zero = 0 bucket = 1 reduce = "never"
}

// -----

piper.mesh @mesh [dp = 2 manual]
piper.strategy @strategy mesh = @mesh {
  // expected-error @+1 {{expected a bucket of at least 1 byte, got 0}}
  piper.do.replicate <all> axes = ["dp"] zero = 0 bucket = 0 reduce = "last"
}

// -----

piper.mesh @mesh [dp = 2 manual]
piper.strategy @strategy mesh = @mesh {
  // expected-error @+1 {{expected a positive bound of the norm, got 0.000000e+00 : f64}}
  piper.do.update <all> optimizer = "train:sgd" clip = 0.0
}

// -----

// expected-error @+1 {{expected cells such as 0F0 in row 1, got '1X0'}}
piper.schedule @order axis = "pp" stages = 2 microbatches = 1 ["0F0", "1F0 1X0"]

// -----

// Preambles and counts have no cell.
// expected-error @+1 {{expected cells such as 0F0 in row 0, got '0P0'}}
piper.schedule @order axis = "pp" stages = 2 microbatches = 1 ["0P0"]

// -----

// expected-error @+1 {{expected cells such as 0F0 in row 0, got '(0F0;1B0)'}}
piper.schedule @order axis = "pp" stages = 2 microbatches = 1 ["(0F0;1B0)"]

// -----

// expected-error @+1 {{expected cells such as 0F0 in row 0, got '(0F0;1)OVERLAP_F_B'}}
piper.schedule @order axis = "pp" stages = 2 microbatches = 1 ["(0F0;1)OVERLAP_F_B"]

// -----

// expected-error @+1 {{expected stages below 2 and microbatches below 1, got 2F0 in row 1}}
piper.schedule @order axis = "pp" stages = 2 microbatches = 1 ["0F0", "2F0"]

// -----

// expected-error @+1 {{expected stages below 2 and microbatches below 1, got 0F1 in row 0}}
piper.schedule @order axis = "pp" stages = 2 microbatches = 1 ["0F0 0F1"]

// -----

// expected-error @+1 {{expected each cell once, got 0F0 in row 0 and in row 1}}
piper.schedule @order axis = "pp" stages = 2 microbatches = 1 ["0F0 0B0", "1F0 0F0"]

// -----

//===----------------------------------------------------------------------===//
// Steps
//===----------------------------------------------------------------------===//

// expected-error @+1 {{expected a name and a dim for each of 1 inputs, got 2 and 1}}
piper.step @train phase = outlined mesh = @mesh inputs ["x", "y"] dims [0] (%x: tensor<4xf32>) {}

// -----

// expected-error @+1 {{expected a name and a dim for each of 1 inputs, got 1 and 0}}
piper.step @train phase = outlined mesh = @mesh inputs ["x"] dims [] (%x: tensor<4xf32>) {}

// -----

// expected-error @+1 {{expected phase captured, outlined or bucketed, got ordered}}
piper.step @train phase = ordered mesh = @mesh inputs [] dims [] () {}

// -----

piper.chunk @layer.0$F pass = F () {
  return
}
piper.step @train phase = captured mesh = @mesh inputs [] dims [] () {
  // expected-error @+1 {{is not expected in a step of phase captured}}
  run @layer.0$F() : () -> ()
}

// -----

piper.step @train phase = outlined mesh = @mesh inputs ["x"] dims [0] (%x: tensor<4xf32>) {
  // expected-error @+1 {{is not expected in a step of phase outlined}}
  %0 = torch "aten.relu.default"(%x) facts <pure> tag <"layer.0" F> : (tensor<4xf32>) -> tensor<4xf32>
}

// -----

piper.step @train phase = bucketed mesh = @mesh inputs ["x"] dims [0] (%x: tensor<4xf32>) {
  // expected-error @+1 {{is not expected in a step of phase bucketed}}
  grad @w %x : tensor<4xf32>
}

// -----

piper.step @train phase = captured mesh = @mesh inputs ["x"] dims [0] (%x: tensor<4xf32>) {
  // expected-error @+1 {{expected a tag: every op belongs to a chunk}}
  %0 = torch "aten.relu.default"(%x) facts <pure> : (tensor<4xf32>) -> tensor<4xf32>
}

// -----

//===----------------------------------------------------------------------===//
// Kernels
//===----------------------------------------------------------------------===//

piper.kernel @kernel() -> tensor<4xf32> {
  // expected-error @+1 {{is not expected in a kernel, which holds torch ops only}}
  %0 = read @w : tensor<4xf32>
  return %0 : tensor<4xf32>
}

// -----

// expected-error @+1 {{expected arguments of the signature's types}}
"piper.kernel"() <{sym_name = "kernel", function_type = (tensor<4xf32>) -> ()}> ({
^bb0(%x: tensor<8xf32>):
  "piper.return"() : () -> ()
}) : () -> ()

// -----

piper.kernel @kernel(%x: tensor<4xf32>) -> tensor<8xf32> {
  %0 = torch "aten.relu.default"(%x) facts <pure> : (tensor<4xf32>) -> tensor<4xf32>
  // expected-error @+1 {{expected to return 'tensor<8xf32>', got 'tensor<4xf32>'}}
  return %0 : tensor<4xf32>
}

// -----

piper.kernel @kernel(%x: tensor<4xf32>) -> tensor<4xf32> {
  // expected-error @+1 {{expected results that alias nothing, got an argument}}
  return %x : tensor<4xf32>
}

// -----

piper.kernel @kernel(%x: tensor<4xf32>) -> tensor<2x2xf32> {
  %0 = torch "aten.view.default"(%x, [2, 2]) facts <view> : (tensor<4xf32>) -> tensor<2x2xf32>
  // expected-error @+1 {{expected results that alias nothing, got a view}}
  return %0 : tensor<2x2xf32>
}

// -----

piper.kernel @kernel(%x: tensor<4xf32>) -> (tensor<4xf32>, tensor<4xf32>) {
  %0 = torch "aten.relu.default"(%x) facts <pure> : (tensor<4xf32>) -> tensor<4xf32>
  // expected-error @+1 {{expected each value once}}
  return %0, %0 : tensor<4xf32>, tensor<4xf32>
}

// -----

piper.kernel @kernel(%x: tensor<4xf32>) {
  // expected-error @+1 {{expected operand 0 once in the argument template, got it 2 times}}
  %0 = "piper.torch"(%x) <{op_name = "aten.add.Tensor", args = [#piper.arg<0>, [#piper.arg<0>]], kwargs = {}, facts = #piper.facts<pure>}> : (tensor<4xf32>) -> tensor<4xf32>
  return
}

// -----

piper.kernel @kernel(%x: tensor<4xf32>) {
  // expected-error @+1 {{expected operand 1 once in the argument template, got it 0 times}}
  %0 = "piper.torch"(%x, %x) <{op_name = "aten.add.Tensor", args = [], kwargs = {other = #piper.arg<0>}, facts = #piper.facts<pure>}> : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  return
}

// -----

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

// expected-error @+1 {{expected `dual` only beside `of`}}
piper.chunk @layer.0$F pass = F dual [0] -> [] (%x: tensor<4xf32>) {
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
// expected-error @+1 {{expected an operand of @layer.0$F, got -1}}
piper.chunk @layer.0$B pass = B of @layer.0$F dual [0] -> [-1] (%dy: tensor<4xf32>) -> tensor<4xf32> {
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

// -----

piper.chunk @loss$P pass = P (%n: tensor<4xf32, #piper.layout<dp = varying>>) {
  // expected-error @+1 {{expected only kinds to differ, got 'tensor<4xf32, #piper.layout<dp = varying>>' and 'tensor<8xf32, #piper.layout<dp = partial>>'}}
  %0 = relabel %n : tensor<4xf32, #piper.layout<dp = varying>> -> tensor<8xf32, #piper.layout<dp = partial>>
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

piper.step @train phase = outlined mesh = @mesh inputs [] dims [] () {
  // expected-error @+1 {{expected a chunk, got @missing}}
  run @missing() : () -> ()
}

// -----

piper.chunk @layer.0$F pass = F () {
  return
}
piper.step @train phase = outlined mesh = @mesh inputs [] dims [] () {
  // expected-error @+1 {{expected 0 operands and 0 results, got 0 and 1}}
  %0 = run @layer.0$F() : () -> tensor<4xf32>
}

// -----

// A run compares whole types: unlike a kernel, a chunk has kinds.
!V = tensor<4xf32, #piper.layout<dp = varying>>
piper.chunk @layer.0$F pass = F (%x: tensor<4xf32>) {
  return
}
piper.step @train phase = outlined mesh = @mesh inputs ["x"] dims [0] (%x: !V) {
  // expected-error @+1 {{expected operand 0 of type 'tensor<4xf32>', got 'tensor<4xf32, #piper.layout<dp = varying>>'}}
  run @layer.0$F(%x) : (!V) -> ()
}

// -----

//===----------------------------------------------------------------------===//
// Buckets in chunks
//===----------------------------------------------------------------------===//

piper.mesh @mesh [dp = 2 manual]
piper.chunk @layer.0$F pass = F (%p: tensor<4xf32>) {
  // expected-error @+1 {{expected a bucket and a mesh, got @missing}}
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

//===----------------------------------------------------------------------===//
// Transfers and local data movement
//===----------------------------------------------------------------------===//

piper.cluster @cluster of @train phase = connected mesh = @mesh microbatches = 1 {
  %x = input "x" mb 0 at 1 : tensor<4xf32>
  // expected-error @+1 {{expected a destination other than the source, got 1}}
  %0 = transfer %x from 1 to 1 mb 0 : tensor<4xf32>
}

// -----

!V = tensor<4xf32, #piper.layout<dp = varying>>
!S = tensor<2xf32, #piper.layout<dp = shard(0)>>
piper.chunk @layer.0$F pass = F (%x: !V) {
  // expected-error @+1 {{expected to make a shard of a replicated value on axis 'dp', got 'tensor<4xf32, #piper.layout<dp = varying>>' and 'tensor<2xf32, #piper.layout<dp = shard(0)>>'}}
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

!P = tensor<4xf32, #piper.layout<dp = partial>>
!R = tensor<4xf32, #piper.layout<dp = replicated>>
piper.cluster @cluster of @train phase = reduced mesh = @mesh microbatches = 1 {
  %x = read @w$b slot grad at 0 : !P
  // expected-error @+1 {{expected one coordinate per operand, got 2 for 1}}
  %0 = all_reduce %x at [0, 1] over ["dp"] : !P -> !R
}

// -----

!P = tensor<4xf32, #piper.layout<dp = partial>>
!R = tensor<4xf32, #piper.layout<dp = replicated>>
piper.cluster @cluster of @train phase = reduced mesh = @mesh microbatches = 1 {
  %x = read @w$b slot grad at 0 : !P
  // expected-error @+1 {{expected each coordinate once, got 0 twice}}
  %0, %1 = all_reduce %x, %x at [0, 0] over ["dp"] across "pp" : !P, !P -> !R, !R
}

// -----

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
  // expected-error @+1 {{expected to turn shard into replicated on axis 'dp', got varying and replicated}}
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
  // expected-error @+1 {{expected dim 1 to grow by 2, got}}
  %0 = all_gather %x dim 1 over ["dp"] : !S -> !R
  return
}

// -----

!P = tensor<4xf32, #piper.layout<dp = partial>>
!V = tensor<2xf32, #piper.layout<dp = varying>>
piper.chunk @layer.0$F pass = F (%x: !P) {
  // expected-error @+1 {{expected to turn partial into shard on axis 'dp', got partial and varying}}
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

//===----------------------------------------------------------------------===//
// Sums and updates
//===----------------------------------------------------------------------===//

piper.cluster @cluster of @train phase = reduced mesh = @mesh microbatches = 1 {
  // expected-error @+1 {{expected at least one contribution}}
  %0 = sum at 0 : tensor<4xf32> -> tensor<4xf32>
}

// -----

!P = tensor<4xf32, #piper.layout<dp = partial>>
!R = tensor<4xf32, #piper.layout<dp = replicated>>
piper.cluster @cluster of @train phase = reduced mesh = @mesh microbatches = 1 {
  %x = read @w$b slot grad at 0 : !P
  // expected-error @+1 {{expected contributions like the result 'tensor<4xf32, #piper.layout<dp = replicated>>', got 'tensor<4xf32, #piper.layout<dp = partial>>'}}
  %0 = sum %x at 0 : !P -> !R
}

// -----

!P = tensor<4xf32, #piper.layout<dp = partial>>
!W = tensor<4xf32, #piper.layout<dp = varying>>
piper.cluster @cluster of @train phase = reduced mesh = @mesh microbatches = 1 {
  %x = read @w$b slot grad at 0 : !P
  // expected-error @+1 {{expected a contribution like the sum 'tensor<4xf32, #piper.layout<dp = varying>>', got 'tensor<4xf32, #piper.layout<dp = partial>>'}}
  %0 = accumulate @w$b %x at 0 : !P -> !W
}

// -----

piper.cluster @cluster of @train phase = reduced mesh = @mesh microbatches = 1 {
  // expected-error @+1 {{expected a scalar result, got 'tensor<1xf32>'}}
  %0 = sumsq at 0 : () -> tensor<1xf32>
}

// -----

!P = tensor<4xf32, #piper.layout<dp = partial>>
piper.cluster @cluster of @train phase = reduced mesh = @mesh microbatches = 1 {
  %x = read @w$b slot grad at 0 : !P
  // expected-error @+1 {{expected finished gradients, got 'tensor<4xf32, #piper.layout<dp = partial>>'}}
  %0 = sumsq %x at 0 : (!P) -> tensor<f32, #piper.layout<dp = partial>>
}

// -----

!S = tensor<2xf32, #piper.layout<dp = shard(0)>>
piper.cluster @cluster of @train phase = reduced mesh = @mesh microbatches = 1 {
  %x = read @w$b slot grad at 0 : !S
  // expected-error @+1 {{expected a result that is partial on axis 'dp', got 'tensor<f32, #piper.layout<dp = replicated>>'}}
  %0 = sumsq %x at 0 : (!S) -> tensor<f32, #piper.layout<dp = replicated>>
}

// -----

// A missing reduction is a type error.
!P = tensor<4xf32, #piper.layout<dp = partial>>
piper.cluster @cluster of @train phase = reduced mesh = @mesh microbatches = 1 {
  %x = read @w$b slot grad at 0 : !P
  // expected-error @+1 {{expected a gradient that is reduced over axis 'dp', got 'tensor<4xf32, #piper.layout<dp = partial>>'}}
  %0 = update @w$b %x at 0 optimizer "train:sgd" : !P -> tensor<4xf32>
}

// -----

piper.cluster @cluster of @train phase = reduced mesh = @mesh microbatches = 1 {
  %x = read @w$b slot grad at 0 : tensor<4xf32>
  // expected-error @+1 {{expected a norm to clip by}}
  %0 = update @w$b %x at 0 optimizer "train:sgd" clip 1.0 : tensor<4xf32> -> tensor<4xf32>
}

// -----

piper.chunk @layer.0$F pass = F (%n: tensor<2xi64>) {
  // expected-error @+1 {{expected one result per operand, got 2 for 1}}
  %0, %1 = host_wait %n : tensor<2xi64> -> !piper.sizes, !piper.sizes
  return
}

// -----

piper.chunk @layer.0$F pass = F (%n: tensor<2xi32>) {
  // expected-error @+1 {{expected 64-bit integers, got 'tensor<2xi32>'}}
  %0 = host_wait %n : tensor<2xi32> -> !piper.sizes
  return
}

// -----

//===----------------------------------------------------------------------===//
// Programs
//===----------------------------------------------------------------------===//

piper.cluster @cluster of @train phase = ordered mesh = @mesh microbatches = 1 {
  %x = input "x" mb 0 at 0 : tensor<4xf32>
  // expected-error @+1 {{expects parent op 'piper.program'}}
  %0 = send %x to 1 mb 0 on @comm : tensor<4xf32>
}

// -----

piper.program @program of @cluster at 1 {
  %x = input "x" mb 0 : tensor<4xf32>
  // expected-error @+1 {{expected a peer other than the program's coordinate, got 1}}
  %0 = send %x to 1 mb 0 on @comm : tensor<4xf32>
}

// -----

piper.program @program of @cluster at 1 {
  // expected-error @+1 {{expected a peer other than the program's coordinate, got 1}}
  %x, %0 = recv from 1 mb 0 on @comm : tensor<4xf32>
}
