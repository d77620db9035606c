// The syntax that the goldens do not show, read and printed twice.
// RUN: piper-opt %s | piper-opt | FileCheck %s
// RUN: piper-opt %s -mlir-print-op-generic | piper-opt | FileCheck %s
// RUN: piper-opt %s -emit-bytecode | piper-opt | FileCheck %s

#R = #piper.layout<dp = replicated>
#P = #piper.layout<dp = partial>
#S = #piper.layout<dp = shard(0)>
#V = #piper.layout<dp = varying>
!t = tensor<4xf32>
!i = tensor<i64>
!s = tensor<f32>
!tR = tensor<4xf32, #R>
!tP = tensor<4xf32, #P>
!tS = tensor<2xf32, #S>
!tV = tensor<4xf32, #V>
!sR = tensor<f32, #R>
!sP = tensor<f32, #P>
!nP = tensor<i64, #P>
!nR = tensor<i64, #R>
!cV = tensor<2xi64, #V>

//===----------------------------------------------------------------------===//
// Symbols
//===----------------------------------------------------------------------===//

// A name that is no bare word is quoted.
// CHECK: piper.mesh @mesh [pp = 2 unrolled, dp = 2 manual, tp = 4 auto, "c-p" = 1 auto] views {all = ["dp", "tp"]}
piper.mesh @mesh [pp = 2 unrolled, dp = 2 manual, tp = 4 auto, "c-p" = 1 auto] views {all = ["dp", "tp"]}

// CHECK: piper.state @heads parameter : !f32_4 layout <tp = shard(0), "c-p" = varying>
// CHECK: piper.state @frozen.weight parameter frozen : !f32_4
// CHECK: piper.state @bn.running_mean buffer : !f32_4 layout <dp = replicated>
// CHECK: piper.state @mask constant : !f32_4
piper.state @heads parameter : !t layout <tp = shard(0), "c-p" = varying>
piper.state @frozen.weight parameter frozen : !t
piper.state @bn.running_mean buffer : !t layout <dp = replicated>
piper.state @mask constant : !t

// What directives recorded stands on the state.
// CHECK: piper.state @w parameter : !f32_4 layout <dp = replicated> aliases ["a", "b"] holders [0, 1]
// CHECK-SAME: replication <["dp"], zero = 1, bucket = 1024> optimization <"train:sgd", clip = 5.000000e-01>
piper.state @w parameter : !t layout <dp = replicated> aliases ["a", "b"] holders [0, 1]
    replication <["dp"], zero = 1, bucket = 1024> optimization <"train:sgd", clip = 0.5>
// CHECK: piper.state @x parameter : !f32_4 replication <["rep", "dp"], zero = 3, bucket = 8, dtype = f32, reduce = "each", shard = ["dp"], gather = "step", prefetch = 0, limit = 64> optimization <"train:sgd", master = f32>
piper.state @x parameter : !t
    replication <["rep", "dp"], zero = 3, bucket = 8, dtype = f32, reduce = "each", shard = ["dp"], gather = "step", prefetch = 0, limit = 64>
    optimization <"train:sgd", master = f32>

// A bucket that is not trained has a value only.
// CHECK: piper.bucket @frozen.weight$b [@frozen.weight] value : !f32_4_dpR{{ loc|$}}
// CHECK: piper.bucket @w$b [@w] value : !f32_2_dpS0 compute : !bf16_4_dpR grad : !f32_4_dpP
// CHECK: piper.bucket @v$b [@v] value : !f32_4_dpR grad : !f64_4_dpP
piper.bucket @frozen.weight$b [@frozen.weight] value : !tR
piper.bucket @w$b [@w] value : !tS compute : tensor<4xbf16, #R> grad : !tP
piper.state @v parameter : !t
piper.bucket @v$b [@v] value : !tR grad : tensor<4xf64, #P>

// CHECK: piper.stream @plain
// CHECK: piper.stream @comm priority = -1 sms = 20
// CHECK: piper.comm @all$0.1 axes ["dp"] coordinates [0, 1] for @comm
piper.stream @plain
piper.stream @comm priority = -1 sms = 20
piper.comm @all$0.1 axes ["dp"] coordinates [0, 1] for @comm

//===----------------------------------------------------------------------===//
// Strategies
//===----------------------------------------------------------------------===//

// A directive keeps the line on which the user wrote it.
// CHECK-LABEL: piper.strategy @options mesh = @mesh
piper.strategy @options mesh = @mesh {
  // CHECK: piper.do.place <tag = "layer"> stages = 3 axis = "pp" sizes [1, 2, 1] coordinates [0, 1, 0] loc([[$LINE:#loc[0-9]*]])
  piper.do.place <tag = "layer"> stages = 3 axis = "pp" sizes [1, 2, 1] coordinates [0, 1, 0] loc("train.py":8:5)
  // CHECK: piper.do.replicate <all> axes = ["edp", "ep"] zero = 3 bucket = 1 reduce = "each" shard = ["ep"] gather = "group" prefetch = 2 limit = 64
  piper.do.replicate <all> axes = ["edp", "ep"] zero = 3 bucket = 1 reduce = "each" shard = ["ep"] gather = "group" prefetch = 2 limit = 64
  // CHECK: piper.do.replicate <not state = "*.[wb]*"> axes = ["edp", "ep"] zero = 2 bucket = 1 reduce = "each"{{ loc|$}}
  piper.do.replicate <not state = "*.[wb]*"> axes = ["edp", "ep"] zero = 2 bucket = 1 reduce = "each"
  // A stage may live at two places: a row of homes per microbatch.
  // CHECK: piper.do.place <all> stages = 2 axis = "pp" homes {{\[\[}}0, 1], [1, 0]]
  piper.do.place <all> stages = 2 axis = "pp" homes [[0, 1], [1, 0]]
  // CHECK: piper.do.split microbatches = 1 dims = {}
  piper.do.split microbatches = 1 dims = {}
  // CHECK: piper.do.stream @dp priority = -1
  // CHECK: piper.do.stream @pp priority = 1 sms = 16
  piper.do.stream @dp priority = -1
  piper.do.stream @pp priority = 1 sms = 16
  // CHECK: piper.do.user_pass "a.b:c" at "chunks"{{ loc|$}}
  // CHECK: piper.do.user_pass "a:b.c" at "step" options {big = 0x7FF0000000000000 : f64, count = -3 : i64, name = "a\22b", on = true, rate = 5.000000e-01 : f64} done{{ loc|$}}
  piper.do.user_pass "a.b:c" at "chunks"
  piper.do.user_pass "a:b.c" at "step" options {big = 0x7FF0000000000000 : f64, count = -3, name = "a\"b", on = true, rate = 0.5} done
  // CHECK: piper.do.update <not tag = "head"> optimizer = "train:sgd" clip = 5.000000e-01
  piper.do.update <not tag = "head"> optimizer = "train:sgd" clip = 0.5
  // CHECK: piper.do.update <all> optimizer = "train:sgd" skip_nonfinite loss_scale = [6.553600e+04, 2.000000e+00, 5.000000e-01, 2.000000e+03]
  // CHECK: piper.do.update <all> optimizer = "train:sgd" loss_scale = [1.024000e+03]
  piper.do.update <all> optimizer = "train:sgd" skip_nonfinite loss_scale = [65536.0, 2.0, 0.5, 2000.0]
  piper.do.update <all> optimizer = "train:sgd" loss_scale = [1024.0]
}
// A word is quoted in print, whether or not it was.
// CHECK-LABEL: piper.strategy @bare mesh = @mesh
// CHECK: piper.do.overlap <tag = "layer"> order = []
// CHECK: piper.do.update <not all>
piper.strategy @bare mesh = @mesh {
  piper.do.overlap <tag = layer> order = []
  piper.do.update <not all> optimizer = "train:sgd"
}
// A coordinate may be idle.
// CHECK: piper.schedule @order axis = "pp" stages = 2 microbatches = 12 ["0F0 (1F11;0B0)OVERLAP_F_B 1I0 1W0", ""]
piper.schedule @order axis = "pp" stages = 2 microbatches = 12 ["0F0 (1F11;0B0)OVERLAP_F_B 1I0 1W0", ""]

//===----------------------------------------------------------------------===//
// Captured steps
//===----------------------------------------------------------------------===//

// Tags say where an op belongs; an input without a batch dim has dim -1.
// CHECK-LABEL: piper.step @captured phase = captured mesh = @mesh inputs ["x", "scale"] dims [0, -1] (%x: !f32_4{{.*}}, %scale: !f32_scalar
piper.step @captured phase = captured mesh = @mesh inputs ["x", "scale"] dims [0, -1] (%x: !t, %scale: !s) {
  // CHECK: %[[W:.*]] = read @w : !f32_4
  // CHECK: torch "aten.mul.Tensor"(%x, %[[W]]) facts <pure, flops = 4> tag <"layer.0" F> : (!f32_4, !f32_4) -> !f32_4
  %w = read @w : !t
  %y = torch "aten.mul.Tensor"(%x, %w) facts <pure, flops = 4> tag <"layer.0" F> : (!t, !t) -> !t
  %l = torch "aten.sum.default"(%y) facts <pure> tag <"head.0" F> : (!t) -> !s
  // The count of a loss that depends on no data is stated, for one microbatch.
  // CHECK: %[[T:.*]] = tangent "loss" coeff 1.000000e+00 examples 4 -> !f32_scalar
  // CHECK: output "loss" %{{.*}} : !f32_scalar
  %t = tangent "loss" coeff 1.0 examples 4 -> !s
  output "loss" %l : !s
  // CHECK: grad @w %{{.*}} tag <"layer.0" B> : !f32_4
  %d = torch "aten.mul.Tensor"(%x, %t) facts <pure> tag <"layer.0" B> : (!t, !s) -> !t
  grad @w %d tag <"layer.0" B> : !t
  // CHECK: write @bn.running_mean %{{.*}} : !f32_4
  write @bn.running_mean %y : !t
}
// CHECK: piper.step @empty phase = outlined mesh = @mesh inputs [] dims [] () {
piper.step @empty phase = outlined mesh = @mesh inputs [] dims [] () {}
// CHECK: piper.step @placed phase = outlined mesh = @mesh inputs [] dims [] microbatches = 2 homes {{\[\[}}0, 1], [1, 0]] () {
piper.step @placed phase = outlined mesh = @mesh inputs [] dims [] microbatches = 2 homes [[0, 1], [1, 0]] () {}

//===----------------------------------------------------------------------===//
// Argument templates
//===----------------------------------------------------------------------===//

// Operands stand where tensors were, also inside lists; the rest is literal.
// CHECK-LABEL: piper.kernel @templates
piper.kernel @templates(%a: !t, %b: !t, %n: !i) -> (!t, !t, !t, !t) {
  // CHECK: torch "aten.cat.default"([%[[A:.*]], %[[B:.*]]], -1) facts <pure>
  %0 = torch "aten.cat.default"([%a, %b], -1) facts <pure> : (!t, !t) -> tensor<8xf32>
  // CHECK: torch "aten.index_put.default"(%{{.*}}, [none, %{{.*}}], %{{.*}}, true) facts <pure>
  %1 = torch "aten.index_put.default"(%0, [none, %n], %a, true) facts <pure> : (tensor<8xf32>, !i, !t) -> !t
  // Keyword arguments are printed in the order of their names.
  // CHECK: torch "aten.empty.memory_format"([4], device = #piper.device<rank>, dtype = f32, memory_format = #piper.const<"torch.contiguous_format">) facts <pure>
  %2 = torch "aten.empty.memory_format"([4], dtype = f32, device = #piper.device<rank>, memory_format = #piper.const<"torch.contiguous_format">) facts <pure> : () -> !t
  // CHECK: torch "aten.gelu.default"(%[[A]], arg "approximate" = "tanh") facts <pure>
  %3 = torch "aten.gelu.default"(%a, arg "approximate" = "tanh") facts <pure> : (!t) -> !t
  // CHECK: torch "my.op"(%[[A]], {{\[}}[1, [%[[B]]]], []], 1.000000e-05, -0.000000e+00, false, bf16, arg "other" = %{{.*}}) facts <pure>
  %4 = torch "my.op"(%a, [[1, [%b]], []], 1.0e-5, -0.0, false, bf16, arg "other" = %n) facts <pure> : (!t, !t, !i) -> !t
  // A number shows its type unless it is an i64 or f64 in decimal.
  // CHECK: torch "my.numbers"(3, 3 : i32, 255 : ui8, 7 : index, true, 1.500000e+00, 1.500000e+00 : f32, 0x7FF0000000000000 : f64, 0xFFF0000000000000 : f64, 0x7FF8000000000000 : f64, 0x7F800000 : f32, 1.000000e+300)
  %8 = torch "my.numbers"(3, 3 : i32, 255 : ui8, 7 : index, true, 1.5, 1.5 : f32, 0x7FF0000000000000 : f64, 0xFFF0000000000000 : f64, 0x7FF8000000000000 : f64, 0x7F800000 : f32, 1.0e300) facts <pure> : () -> !t
  // CHECK: torch "my.quotes"("a\22b", arg "a\22b" = none) facts <pure>
  %9 = torch "my.quotes"("a\22b", arg "a\22b" = none) facts <pure> : () -> !t
  // Several results, or none.
  // CHECK: %{{.*}}:2 = torch "aten.topk.default"(%{{.*}}, 2) facts <pure, strided>
  // CHECK: torch "aten._assert_async.msg"(%{{.*}}, "must hold") facts <host_sync> : (!i64_scalar) -> ()
  %5, %6 = torch "aten.topk.default"(%4, 2) facts <pure, strided> : (!t) -> (!t, !t)
  torch "aten._assert_async.msg"(%n, "must hold") facts <host_sync> : (!i) -> ()
  // CHECK: torch "piper.dropout.default"(%{{.*}}, %{{.*}}, 1.000000e-01) facts <random>
  // CHECK: torch "my.add_"(%{{.*}}) facts <mutating>
  %7 = torch "piper.dropout.default"(%a, %n, 0.1) facts <random> : (!t, !i) -> !t
  torch "my.add_"(%7) facts <mutating> : (!t) -> ()
  return %1, %2, %3, %7 : !t, !t, !t, !t
}
// CHECK: piper.kernel @nothing() {
// CHECK-NEXT: return
// CHECK-NEXT: } cost <flops = 0, bytes = 0>
piper.kernel @nothing() {
  return
} cost <flops = 0, bytes = 0>

//===----------------------------------------------------------------------===//
// Chunks
//===----------------------------------------------------------------------===//

piper.kernel @square(%x: !t) -> !t {
  %0 = torch "aten.mul.Tensor"(%x, %x) facts <pure> : (!t, !t) -> !t
  return %0 : !t
}

// Until bucketing, states are named inside a chunk, and nothing has a layout.
// CHECK-LABEL: piper.chunk @outlined$F pass = F (
piper.chunk @outlined$F pass = F (%x: !t) -> !t {
  // CHECK: read @w : !f32_4
  // CHECK: launch @square(%{{.*}}) : (!f32_4) -> !f32_4
  %w = read @w : !t
  %y = launch @square(%w) : (!t) -> !t
  return %y : !t
}
// CHECK-LABEL: piper.chunk @outlined$B pass = B of @outlined$F dual [0] -> [] (
piper.chunk @outlined$B pass = B of @outlined$F dual [0] -> [] (%dy: !t) {
  // CHECK: grad @w %{{.*}} : !f32_4
  // CHECK-NEXT: return{{ loc|$}}
  grad @w %dy : !t
  return
}

// Local data movement: nothing is sent.
// CHECK-LABEL: piper.chunk @local$F
piper.chunk @local$F pass = F stage = 3 (%r: !tR, %v: !tV) -> (!tS, tensor<i64, #V>, tensor<4xbf16, #V>, !tP) {
  // CHECK: slice %{{.*}} dim 0 over "dp" : !f32_4_dpR -> !f32_2_dpS0
  // CHECK: axis_index "dp" : !i64_scalar_dpV
  // CHECK: convert %{{.*}} : !f32_4_dpV -> !bf16_4_dpV
  // CHECK: relabel %{{.*}} : !f32_4_dpV -> !f32_4_dpP
  %0 = slice %r dim 0 over "dp" : !tR -> !tS
  %1 = axis_index "dp" : tensor<i64, #V>
  %2 = convert %v : !tV -> tensor<4xbf16, #V>
  %3 = relabel %v : !tV -> !tP
  return %0, %1, %2, %3 : !tS, tensor<i64, #V>, tensor<4xbf16, #V>, !tP
}

// Collectives of a chunk have neither coordinate nor microbatch.
// CHECK-LABEL: piper.chunk @collectives$F
piper.chunk @collectives$F pass = F (%p: !tP, %s: !tS, %v: !tV) -> (!tR, !tR, !tS, !tV, !tV, !tR) {
  // CHECK: all_reduce %{{.*}} over ["dp"] as "sum" on @comm : !f32_4_dpP -> !f32_4_dpR
  // CHECK: all_gather %{{.*}} dim 0 over ["dp"] : !f32_2_dpS0 -> !f32_4_dpR
  // CHECK: reduce_scatter %{{.*}} dim 0 over ["dp"] on @comm : !f32_4_dpP -> !f32_2_dpS0
  // CHECK: all_to_all %{{.*}} dim 0 over ["dp"] : !f32_4_dpV -> !f32_4_dpV
  // CHECK: permute %{{.*}} shift -1 over ["dp"] as "ring" : !f32_4_dpV -> !f32_4_dpV
  // CHECK: broadcast %{{.*}} root 1 over ["dp"] : !f32_4_dpV -> !f32_4_dpR
  %0 = all_reduce %p over ["dp"] as "sum" on @comm : !tP -> !tR
  %1 = all_gather %s dim 0 over ["dp"] : !tS -> !tR
  %2 = reduce_scatter %p dim 0 over ["dp"] on @comm : !tP -> !tS
  %3 = all_to_all %v dim 0 over ["dp"] : !tV -> !tV
  %4 = permute %v shift -1 over ["dp"] as "ring" : !tV -> !tV
  %5 = broadcast %v root 1 over ["dp"] : !tV -> !tR
  return %0, %1, %2, %3, %4, %5 : !tR, !tR, !tS, !tV, !tV, !tR
}

// Names of axes in types are quoted like those of a mesh; an axis may even have
// the name of a bound.
// CHECK-LABEL: piper.chunk @axes$F
// CHECK: all_to_all %{{.*}} dim 0 over ["c-p"] : ![[CP:.*]] -> ![[CP]]{{ loc|$}}
piper.chunk @axes$F pass = F (%a: tensor<4xf32, #piper.layout<"c-p" = varying>>, %b: tensor<?xf32, #piper.layout<bound = varying, bound = 4>>) {
  %0 = all_to_all %a dim 0 over ["c-p"] : tensor<4xf32, #piper.layout<"c-p" = varying>> -> tensor<4xf32, #piper.layout<"c-p" = varying>>
  return
}

// Rows that the host does not know yet: a bound, and perhaps an expectation.
// CHECK-LABEL: piper.chunk @bounds$F
// CHECK-SAME: !f32_qx4{{.*}}, {{.*}}: !f32_qx4_dpV
piper.chunk @bounds$F pass = F (%a: tensor<?x4xf32, #piper.layout<bound = 8>>, %b: tensor<?x4xf32, #piper.layout<dp = varying, bound = 8, expect = 4>>) {
  return
}

//===----------------------------------------------------------------------===//
// Clusters
//===----------------------------------------------------------------------===//

piper.chunk @chunk$F pass = F (%x: !tV) -> (!tV, !tP) {
  %y = launch @square(%x) : (!tV) -> !tV
  %l = relabel %y : !tV -> !tP
  return %y, %l : !tV, !tP
}

// CHECK-LABEL: piper.cluster @cluster of @captured phase = unrolled mesh = @mesh microbatches = 1 {
piper.cluster @cluster of @captured phase = unrolled mesh = @mesh microbatches = 1 {
  %x = input "x" mb 0 at 0 : !tV
  // CHECK: transfer %{{.*}} from 0 to 1 mb 0 : !f32_4_dpV
  %y = transfer %x from 0 to 1 mb 0 : !tV
  // CHECK: all_to_all %{{.*}} at [1] dim 0 over ["dp"] as "swap" mb 0 : !f32_4_dpV -> !f32_4_dpV
  // CHECK: permute %{{.*}} at [1] shift 1 over ["dp"] as "ring" mb 0 on @comm : !f32_4_dpV -> !f32_4_dpV
  // CHECK: broadcast %{{.*}} at [1] root 0 over ["dp"] mb 0 : !f32_4_dpV -> !f32_4_dpR
  // CHECK: slice %{{.*}} dim 0 over "dp" at 1 : !f32_4_dpR -> !f32_2_dpS0
  // CHECK: axis_index "dp" at 1 : !i64_scalar_dpV
  %a = all_to_all %y at [1] dim 0 over ["dp"] as "swap" mb 0 : !tV -> !tV
  %b = permute %a at [1] shift 1 over ["dp"] as "ring" mb 0 on @comm : !tV -> !tV
  %c = broadcast %b at [1] root 0 over ["dp"] mb 0 : !tV -> !tR
  %d = slice %c dim 0 over "dp" at 1 : !tR -> !tS
  %e = axis_index "dp" at 1 : tensor<i64, #V>
  // CHECK: %[[L:.*]]:2 = run @chunk$F
  // CHECK: sum %[[L]]#1 at 1 : !f32_4_dpP -> !f32_4_dpP
  // CHECK: sum bucket @v$b %[[L]]#1, %[[L]]#1 at 1 : !f32_4_dpP -> !f64_4_dpP
  %f, %l = run @chunk$F(%y) mb 0 at 1 : (!tV) -> (!tV, !tP)
  %g = sum %l at 1 : !tP -> !tP
  %h = sum bucket @v$b %l, %l at 1 : !tP -> tensor<4xf64, #P>
  // With ZeRO a coordinate still holds shards; the norm of shards is partial.
  // CHECK: %[[R:.*]]:2 = reduce_scatter %{{.*}}, %{{.*}} at [0, 1] dim 0 over ["dp"] across "pp" : !f32_4_dpP, !f32_4_dpP -> !f32_2_dpS0, !f32_2_dpS0
  // CHECK: sumsq %[[R]]#0, %[[R]]#0 at 0 : (!f32_2_dpS0, !f32_2_dpS0) -> !f32_scalar_dpP
  %i0, %i1 = reduce_scatter %l, %g at [0, 1] dim 0 over ["dp"] across "pp" : !tP, !tP -> !tS, !tS
  %j = sumsq %i0, %i0 at 0 : (!tS, !tS) -> !sP
  %k = all_reduce %j at [0] over ["dp"] : !sP -> !sR
  // An update may be skipped, after an overflow for instance.
  // CHECK: %[[K:.*]] = nonfinite %[[N:.*]] at 0 : !f32_scalar_dpR -> !i1_scalar_dpR
  // CHECK: update @w$b %{{.*}} norm %[[N]] : !f32_scalar_dpR skip %[[K]] : !i1_scalar_dpR at 0 optimizer "train:sgd" clip 5.000000e-01 : !f32_2_dpS0 -> !f32_2_dpS0
  // CHECK: update @w$b %{{.*}} skip %{{.*}} : !i1_scalar_dpR at 1 optimizer "train:sgd" : !f32_2_dpS0 -> !f32_2_dpS0
  %n = nonfinite %k at 0 : !sR -> tensor<i1, #R>
  %u = update @w$b %i0 norm %k : !sR skip %n : tensor<i1, #R> at 0 optimizer "train:sgd" clip 0.5 : !tS -> !tS
  %v = update @w$b %i1 skip %n : tensor<i1, #R> at 1 optimizer "train:sgd" : !tS -> !tS
  // CHECK: read @w$b slot grad at 1 : !f32_4_dpP
  // CHECK: write @bn.running_mean %{{.*}} at 1 : !f32_4_dpR
  %w = read @w$b slot grad at 1 : !tP
  write @bn.running_mean %c at 1 : !tR
}

//===----------------------------------------------------------------------===//
// Programs
//===----------------------------------------------------------------------===//

// Values are named after what makes them.
// CHECK-LABEL: piper.program @names of @cluster at 1 {
piper.program @names of @cluster at 1 {
  // CHECK: %w_b = read @w$b slot compute
  // CHECK: %x_0 = input "x" mb 0
  // CHECK: %e = record
  // CHECK: %x, %e_[[N:.*]] = recv from 0 mb 0 on @comm
  // CHECK: %chunk_F0:2 = run @chunk$F(%x_0) mb 0
  // CHECK: %x_[[M:.*]], %e_[[O:.*]] = permute %x shift 1
  // CHECK: %e_[[P:.*]] = send %x to 0
  %0 = read @w$b slot compute : tensor<4xbf16, #R>
  %1 = input "x" mb 0 : !tV
  %2 = record
  %3, %4 = recv from 0 mb 0 on @comm : !tV
  %5, %6 = run @chunk$F(%1) mb 0 : (!tV) -> (!tV, !tP)
  %7, %8 = permute %3 shift 1 over ["dp"] on @comm : !tV -> !tV, !piper.event
  %9 = send %3 to 0 mb 0 on @comm : !tV
}

// Every instruction may wait for events.
// CHECK-LABEL: piper.program @program of @cluster at 1 {
piper.program @program of @cluster at 1 {
  // CHECK: %[[E:.*]] = record
  %e = record
  // CHECK: %[[X:.*]], %[[F:.*]] = recv from 0 mb 0 on @comm : !f32_4_dpV
  // CHECK: launch @square(%[[X]]) as "piece" on @plain mb 0 after %[[E]], %[[F]] : (!f32_4_dpV) -> !f32_4_dpV
  %x, %f = recv from 0 mb 0 on @comm : !tV
  %y = launch @square(%x) as "piece" on @plain mb 0 after %e, %f : (!tV) -> !tV
  %z, %l = run @chunk$F(%y) mb 0 after %e : (!tV) -> (!tV, !tP)
  // CHECK: %[[A:.*]], %[[AE:.*]] = all_to_all %{{.*}} dim 0 over ["dp"] as "swap" mb 0 on @comm after %[[E]] : !f32_4_dpV -> !f32_4_dpV, !piper.event
  // CHECK: permute %[[A]] shift 1 over ["dp"] on @comm after %[[AE]] : !f32_4_dpV -> !f32_4_dpV, !piper.event
  // CHECK: broadcast %{{.*}} root 0 over ["dp"] on @comm : !f32_4_dpV -> !f32_4_dpR, !piper.event
  %a, %g = all_to_all %z dim 0 over ["dp"] as "swap" mb 0 on @comm after %e : !tV -> !tV, !piper.event
  %b, %h = permute %a shift 1 over ["dp"] on @comm after %g : !tV -> !tV, !piper.event
  %c, %i = broadcast %b root 0 over ["dp"] on @comm : !tV -> !tR, !piper.event
  // CHECK: input "counts" mb 0 : !i64_2_dpV
  // CHECK: host_wait %{{.*}} after %{{.*}}, %{{.*}} : !i64_2_dpV -> !piper.sizes
  // CHECK: all_to_all %{{.*}} dim 0 sizes %{{.*}}, %{{.*}} over ["dp"] : !f32_4_dpV -> !f32_4_dpV, !piper.event
  %counts = input "counts" mb 0 : !cV
  %n = host_wait %counts after %h, %i : !cV -> !piper.sizes
  %j, %k = all_to_all %a dim 0 sizes %n, %n over ["dp"] : !tV -> !tV, !piper.event
  // CHECK: sum %{{.*}}, %{{.*}} after %{{.*}} : !f32_4_dpP -> !f32_4_dpP
  // CHECK: %[[G:.*]] = accumulate @w$b %{{.*}} after %{{.*}} : !f32_4_dpP -> !f32_4_dpP
  // CHECK: accumulate @w$b %{{.*}} onto %[[G]] after %{{.*}} : !f32_4_dpP -> !f32_4_dpP
  %o = sum %l, %l after %k : !tP -> !tP
  %p = accumulate @w$b %o after %k : !tP -> !tP
  %q = accumulate @w$b %o onto %p after %k : !tP -> !tP
  %r, %r1 = reduce_scatter %q dim 0 over ["dp"] on @all$0.1 after %e : !tP -> !tS, !piper.event
  // CHECK: sumsq %{{.*}} after %{{.*}} : (!f32_2_dpS0) -> !f32_scalar_dpP
  // CHECK: sumsq : () -> !f32_scalar_dpR
  %s = sumsq %r after %r1 : (!tS) -> !sP
  %s1 = sumsq : () -> !sR
  // CHECK: update @w$b %{{.*}} norm %{{.*}} : !f32_scalar_dpR optimizer "train:sgd" clip 5.000000e-01 after %{{.*}} : !f32_2_dpS0 -> !f32_2_dpS0
  %u = update @w$b %r norm %s1 : !sR optimizer "train:sgd" clip 0.5 after %r1 : !tS -> !tS
  // CHECK: tangent "loss" coeff 1.000000e+00 after %{{.*}} -> !f32_scalar_dpR
  // CHECK: output "loss" %{{.*}} scale %{{.*}} after %{{.*}} : !f32_scalar_dpR, !f32_scalar_dpR
  // CHECK: output "seen" %{{.*}} : !f32_scalar_dpR{{ loc|$}}
  %t = tangent "loss" coeff 1.0 after %r1 -> !sR
  output "loss" %s1 scale %t after %r1 : !sR, !sR
  output "seen" %s1 : !sR
  // A message may wait for nothing; sizes are freed like tensors.
  // CHECK: %[[S:.*]] = send %{{.*}} to 0 mb 0 on @comm : !f32_4_dpV
  // CHECK: free %{{.*}}, %{{.*}} after %[[S]] : !f32_4_dpV, !piper.sizes
  %v = send %x to 0 mb 0 on @comm : !tV
  free %x, %n after %v : !tV, !piper.sizes
}

// CHECK: [[$LINE]] = loc("train.py":8:5)
