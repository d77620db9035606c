// Steps and kernels: every rule, broken once.
// RUN: piper-opt %s -split-input-file -verify-diagnostics

//===----------------------------------------------------------------------===//
// Steps
//===----------------------------------------------------------------------===//

piper.mesh @mesh [pp = 1 unrolled]
// expected-error @+1 {{expected a name and a dim for each of 1 inputs, got 2 and 1}}
piper.step @train phase = outlined mesh = @mesh inputs ["x", "y"] dims [0] (%x: tensor<4xf32>) {}

// -----

piper.mesh @mesh [pp = 1 unrolled]
// expected-error @+1 {{expected a name and a dim for each of 1 inputs, got 1 and 0}}
piper.step @train phase = outlined mesh = @mesh inputs ["x"] dims [] (%x: tensor<4xf32>) {}

// -----

piper.mesh @mesh [pp = 1 unrolled]
// expected-error @+1 {{expected a tensor as input "s", got '!piper.sizes'}}
piper.step @train phase = outlined mesh = @mesh inputs ["s"] dims [0] (%s: !piper.sizes) {}

// -----

piper.mesh @mesh [pp = 1 unrolled]
// expected-error @+1 {{expected phase captured, outlined or bucketed, got ordered}}
piper.step @train phase = ordered mesh = @mesh inputs [] dims [] () {}

// -----

piper.mesh @mesh [pp = 1 unrolled]
piper.step @train phase = captured mesh = @mesh inputs ["x"] dims [0] (%x: tensor<4xf32>) {
  // expected-error @+1 {{expected primals to be a list of numbers for each of 1 results, got [0]}}
  %0 = torch "aten.relu.default"(%x) facts <pure> tag <"layer.0" F> {primals = [0]} : (tensor<4xf32>) -> tensor<4xf32>
}

// -----

piper.mesh @mesh [pp = 1 unrolled]
piper.step @train phase = captured mesh = @mesh inputs [] dims [] () {
  // expected-error @+1 {{expected cotangents to be a list of numbers for each of 1 results, got []}}
  %t = tangent "loss" coeff 1.0 {cotangents = []} -> tensor<f32>
}

// -----

piper.mesh @mesh [pp = 1 unrolled]
piper.chunk @layer.0$F pass = F () {
  return
}
piper.step @train phase = captured mesh = @mesh inputs [] dims [] () {
  // expected-error @+1 {{is not expected in a step of phase captured}}
  run @layer.0$F() : () -> ()
}

// -----

piper.mesh @mesh [pp = 1 unrolled]
piper.step @train phase = outlined mesh = @mesh inputs ["x"] dims [0] (%x: tensor<4xf32>) {
  // expected-error @+1 {{is not expected in a step of phase outlined}}
  %0 = torch "aten.relu.default"(%x) facts <pure> tag <"layer.0" F> : (tensor<4xf32>) -> tensor<4xf32>
}

// -----

piper.mesh @mesh [pp = 1 unrolled]
piper.step @train phase = bucketed mesh = @mesh inputs ["x"] dims [0] (%x: tensor<4xf32>) {
  // expected-error @+1 {{is not expected in a step of phase bucketed}}
  grad @w %x : tensor<4xf32>
}

// -----

piper.mesh @mesh [pp = 1 unrolled]
piper.step @train phase = captured mesh = @mesh inputs ["x"] dims [0] (%x: tensor<4xf32>) {
  // expected-error @+1 {{expected a tag: every op belongs to a chunk}}
  %0 = torch "aten.relu.default"(%x) facts <pure> : (tensor<4xf32>) -> tensor<4xf32>
}

// -----

piper.mesh @mesh [pp = 1 unrolled]
// expected-error @+1 {{expected homes in one row or one per microbatch, got 2 rows}}
piper.step @train phase = outlined mesh = @mesh inputs [] dims [] microbatches = 4 homes [[0], [1]] () {}

// -----

piper.mesh @mesh [pp = 1 unrolled]
// expected-error @+1 {{expected homes in one row or one per microbatch, got 0 rows}}
piper.step @train phase = outlined mesh = @mesh inputs [] dims [] homes [] () {}

// -----

piper.mesh @mesh [pp = 1 unrolled]
// expected-error @+1 {{expected a home for each of 1 stages, got 2}}
piper.step @train phase = outlined mesh = @mesh inputs [] dims [] microbatches = 2 homes [[0], [0, 1]] () {}

// -----

piper.mesh @mesh [pp = 1 unrolled]
piper.step @train phase = captured mesh = @mesh inputs [] dims [] () {
  // expected-error @+1 {{expected a state, got @missing}}
  %w = read @missing : tensor<4xf32>
}

// -----

piper.mesh @mesh [dp = 2 manual]
piper.state @w parameter : tensor<4xf32>
piper.step @train phase = captured mesh = @mesh inputs [] dims [] () {
  // expected-error @+1 {{expected dtype and shape of @w, which is 'tensor<4xf32>', got 'tensor<8xf32>'}}
  %w = read @w : tensor<8xf32>
}

// -----

piper.mesh @mesh [pp = 1 unrolled]
piper.state @w parameter : tensor<4xf32>
piper.step @train phase = captured mesh = @mesh inputs [] dims [] () {
  // expected-error @+1 {{expected dtype and shape of @w, which is 'tensor<4xf32>', got 'tensor<4xbf16>'}}
  %w = read @w : tensor<4xbf16>
}

// -----

// A rank reads the whole of a state, or its own part.
piper.mesh @mesh [ep = 2 manual]
piper.state @w parameter : tensor<4xf32> layout <ep = shard(0)>
piper.step @train phase = captured mesh = @mesh inputs [] dims [] () {
  %whole = read @w : tensor<4xf32>
  %part = read @w : tensor<2xf32>
  // expected-error @+1 {{expected dtype and shape of @w, which is 'tensor<4xf32>', got 'tensor<1xf32>'}}
  %w = read @w : tensor<1xf32>
}

// -----

piper.mesh @mesh [pp = 1 unrolled]
piper.step @train phase = bucketed mesh = @mesh inputs [] dims [] () {
  // expected-error @+1 {{expected a bucket, got @missing}}
  %w = read @missing slot value : tensor<4xf32>
}

// -----

piper.mesh @mesh [dp = 2 manual]
piper.state @w parameter : tensor<4xf32>
piper.bucket @w$b [@w] value : tensor<4xf32>
piper.step @train phase = bucketed mesh = @mesh inputs [] dims [] () {
  // expected-error @+1 {{expected a bucket with slot compute, got @w$b}}
  %w = read @w$b slot compute : tensor<4xf32>
}

// -----

piper.mesh @mesh [dp = 2 manual]
piper.state @w parameter : tensor<4xf32>
piper.bucket @w$b [@w] value : tensor<4xf32>
piper.step @train phase = bucketed mesh = @mesh inputs ["x"] dims [0] (%x: tensor<4xbf16>) {
  // expected-error @+1 {{expected 'tensor<4xf32>', the type of slot value of @w$b, got 'tensor<4xbf16>'}}
  write @w$b slot value %x : tensor<4xbf16>
}

// -----

piper.mesh @mesh [pp = 1 unrolled]
piper.step @train phase = captured mesh = @mesh inputs ["x"] dims [0] (%x: tensor<4xf32>) {
  // expected-error @+1 {{expected a state, got @missing}}
  grad @missing %x : tensor<4xf32>
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

piper.kernel @kernel(%x: tensor<4xf32>) {
  // expected-error @+1 {{expected places of 1 operands in the argument template, got #piper.arg<1>}}
  %0 = "piper.torch"(%x) <{op_name = "aten.add.Tensor", args = [#piper.arg<0>, #piper.arg<1>], kwargs = {}, facts = #piper.facts<pure>}> : (tensor<4xf32>) -> tensor<4xf32>
  return
}

// -----

piper.kernel @kernel(%x: tensor<4xf32>) {
  // expected-error @+1 {{expected places of 1 operands in the argument template, got #piper.arg<-1>}}
  %0 = "piper.torch"(%x) <{op_name = "aten.add.Tensor", args = [#piper.arg<-1>, #piper.arg<0>], kwargs = {}, facts = #piper.facts<pure>}> : (tensor<4xf32>) -> tensor<4xf32>
  return
}

// -----

piper.kernel @kernel(%x: tensor<4xf32>) {
  // expected-error @+1 {{expected operands in the order of the argument template, got operand 1 at place 0}}
  %0 = "piper.torch"(%x, %x) <{op_name = "aten.add.Tensor", args = [#piper.arg<1>, #piper.arg<0>], kwargs = {}, facts = #piper.facts<pure>}> : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  return
}

// -----

// Keyword arguments are sorted by name in print, and so are their operands.
piper.kernel @kernel(%x: tensor<4xf32>) {
  // expected-error @+1 {{expected operands in the order of the argument template, got operand 1 at place 0}}
  %0 = torch "my.op"(arg "b" = %x, arg "a" = %x) facts <pure> : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  return
}

// -----

piper.kernel @kernel(%x: tensor<4xf32>) {
  // expected-error @+1 {{expected each keyword argument once, got 'dtype' twice}}
  %0 = torch "aten.sum.default"(%x, dtype = f32, dtype = f64) facts <pure> : (tensor<4xf32>) -> tensor<f32>
  return
}

// -----

// A step says which mesh it is for.
// expected-error @+1 {{expected a mesh, got @mesh}}
piper.step @train phase = captured mesh = @mesh inputs [] dims [] () {}

// -----

piper.mesh @mesh [pp = 1 unrolled]
// expected-error @+1 {{expected a schedule, got @order}}
piper.step @train phase = outlined mesh = @mesh inputs [] dims [] order = @order () {}

// -----

// A mask is a list with a flag for each result.
!x = tensor<4xf32>
piper.kernel @norm(%x: !x) -> (!x, !x) {
  // expected-error @+1 {{expected argument 1 to be a list with a flag for each result, as its facts say}}
  %0, %1 = torch "aten.native_layer_norm_backward.default"(%x, [true]) facts <pure, mask = 1> : (!x) -> (!x, !x)
  return %0, %1 : !x, !x
}

// -----

// A rule names each dim.
!x = tensor<4x2xf32>
piper.kernel @relu(%x: !x) -> (!x) {
  // expected-error @+1 {{expected a rule that names each dim of operands and results, got "a -> a b"}}
  %0 = torch "aten.relu.default"(%x) facts <pure, rule = "a -> a b"> : (!x) -> !x
  return %0 : !x
}

// -----

// It has an arrow.
!x = tensor<4x2xf32>
piper.kernel @relu(%x: !x) -> (!x) {
  // expected-error @+1 {{expected a rule that names each dim of operands and results, got "a b"}}
  %0 = torch "aten.relu.default"(%x) facts <pure, rule = "a b"> : (!x) -> !x
  return %0 : !x
}

// -----

// It names dims of all operands.
!x = tensor<4x2xf32>
piper.kernel @add(%x: !x) -> (!x) {
  // expected-error @+1 {{expected a rule that names each dim of operands and results, got "a b -> a b"}}
  %0 = torch "aten.add.Tensor"(%x, %x) facts <pure, rule = "a b -> a b"> : (!x, !x) -> !x
  return %0 : !x
}

// -----

// A rank's index is one of the operands.
!x = tensor<4x2xf32>
piper.kernel @part(%x: !x) -> (!x) {
  // expected-error @+1 {{expected a rule that names each dim of operands and results, got "a b -> a b; b at 1"}}
  %0 = torch "piper.part.default"(%x) facts <pure, rule = "a b -> a b; b at 1"> : (!x) -> !x
  return %0 : !x
}

// -----

// What is no sum is a result, by its number.
!x = tensor<4x2xf32>
piper.kernel @sum(%x: !x) -> (tensor<2xf32>) {
  // expected-error @+1 {{expected a rule that names each dim of operands and results, got "a b -> b; sum a but one"}}
  %0 = torch "aten.sum.dim_IntList"(%x, [0]) facts <pure, rule = "a b -> b; sum a but one"> : (!x) -> tensor<2xf32>
  return %0 : tensor<2xf32>
}

// -----

// A size is an argument, or an element of one.
!x = tensor<4x2xf32>
piper.kernel @slice(%x: !x) -> (!x) {
  // expected-error @+1 {{expected argument 2 to give the size of a, as its rule "a b -> a b; 2 = a" says}}
  %0 = torch "aten.slice.Tensor"(%x, 0) facts <view, rule = "a b -> a b; 2 = a"> : (!x) -> !x
  return %0 : !x
}
