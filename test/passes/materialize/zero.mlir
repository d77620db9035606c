// ZeRO: what ranks share out of each bucket, and the collectives that follow from
// it. Two layers on two stages, 1F1B, two microbatches, dp 2.
// DEFINE: %{compile} = piper-opt --piper-remat --piper-outline-chunks --piper-record --piper-materialize
// RUN: sed 's/ZERO/1/; s/REDUCE/last/; s/OPTIONS//' %s | %{compile} | FileCheck %s --check-prefix=ONE
// RUN: sed 's/ZERO/1/; s/REDUCE/each/; s/OPTIONS//' %s | %{compile} | FileCheck %s --check-prefix=ONE-EACH
// RUN: sed 's/ZERO/2/; s/REDUCE/each/; s/OPTIONS//' %s | %{compile} | FileCheck %s --check-prefix=TWO
// RUN: sed 's/ZERO/3/; s/REDUCE/each/; s/OPTIONS/gather = "each"/' %s | %{compile} | FileCheck %s --check-prefix=THREE
// RUN: sed 's/ZERO/3/; s/REDUCE/last/; s/OPTIONS/gather = "step"/' %s | %{compile} | FileCheck %s --check-prefix=STEP
// RUN: sed 's/ZERO/3/; s/REDUCE/each/; s/OPTIONS/gather = "group"/' %s | %{compile} | FileCheck %s --check-prefix=GROUP

// Stage 1 keeps gradients whole until the last microbatch is done. Ranks update
// their shards and gather the new values, each behind the next update.
// ONE: piper.bucket @l0$b [@l0] value : !f32_32_dpS0 compute : !f32_64_dpR grad : !f32_64_dpP
// ONE-LABEL: piper.cluster
// ONE: read @l1$b slot compute at 1 : !f32_64_dpR
// ONE: %[[A:.*]] = accumulate @l1$b %{{.*}} at 1 : !f32_64_dpP
// ONE: %[[B:.*]] = accumulate @l1$b %{{.*}} onto %[[A]] at 1 : !f32_64_dpP
// ONE: %[[G:.*]] = reduce_scatter %[[B]] at [1] dim 0 over ["dp"] on @dp : !f32_64_dpP -> !f32_32_dpS0
// ONE: %[[S0:.*]] = sumsq %{{.*}} at 0 : (!f32_32_dpS0) -> !f32_scalar_dpP
// ONE: %[[S1:.*]] = sumsq %[[G]] at 1 : (!f32_32_dpS0) -> !f32_scalar_dpP
// ONE: %[[N:.*]]:2 = all_reduce %[[S0]], %[[S1]] at [0, 1] over ["dp"] across "pp"
// ONE: %[[U1:.*]] = update @l1$b %[[G]] norm %[[N]]#1
// ONE-NEXT: %[[W1:.*]] = all_gather %[[U1]] at [1] dim 0 over ["dp"] on @dp.gather : !f32_32_dpS0 -> !f32_64_dpR
// ONE-NEXT: %[[U0:.*]] = update @l0$b
// ONE-NEXT: %[[W0:.*]] = all_gather %[[U0]] at [0]
// ONE-NEXT: write @l1$b slot compute %[[W1]] at 1
// ONE-NEXT: write @l0$b slot compute %[[W0]] at 0

// With every contribution reduced, stage 1 still has whole gradients: a rank
// slices its shard out. What was reduced is added behind the next run.
// ONE-EACH: piper.bucket @l1$b [@l1] value : !f32_32_dpS0 compute : !f32_64_dpR grad : !f32_64_dpR
// ONE-EACH-LABEL: piper.cluster
// ONE-EACH: %[[B:.*]]:2 = run @layer.1$B{{.*}} mb 0 at 1
// ONE-EACH: %[[R:.*]] = all_reduce %[[B]]#1 at [1] over ["dp"] mb 0 on @dp : !f32_64_dpP -> !f32_64_dpR
// ONE-EACH: run @layer.1$F{{.*}} mb 1 at 1
// ONE-EACH-NEXT: accumulate @l1$b %[[R]] at 1 : !f32_64_dpR
// ONE-EACH: slice %{{.*}} dim 0 over "dp" at 1 : !f32_64_dpR -> !f32_32_dpS0

// Stage 2 shares out gradients.
// TWO: piper.bucket @l1$b [@l1] value : !f32_32_dpS0 compute : !f32_64_dpR grad : !f32_32_dpS0
// TWO-LABEL: piper.step
// TWO: %[[B:.*]]:2 = run @layer.1$B
// TWO-NEXT: %[[R:.*]] = reduce_scatter %[[B]]#1 dim 0 over ["dp"] on @dp : !f32_64_dpP -> !f32_32_dpS0
// TWO-NEXT: sum bucket @l1$b %[[R]]
// TWO-LABEL: piper.cluster
// TWO: reduce_scatter %{{.*}} at [1] dim 0 over ["dp"] mb 0
// TWO: update @l1$b
// TWO-NEXT: all_gather

// Stage 3 shares out the states, too. A gather for each use, a cell early, but
// not while the bucket is still whole for the cell before.
// THREE: piper.bucket @l1$b [@l1] value : !f32_32_dpS0 grad : !f32_32_dpS0
// THREE-LABEL: piper.cluster
// THREE: %[[S:.*]] = read @l1$b slot value at 1 : !f32_32_dpS0
// THREE: %[[F:.*]] = all_gather %[[S]] at [1] dim 0 over ["dp"] mb 0 on @dp.gather : !f32_32_dpS0 -> !f32_64_dpR
// THREE: run @layer.1$F(%{{.*}}, %[[F]]) mb 0 at 1
// THREE: %[[B:.*]] = all_gather %[[S]] at [1]
// THREE: run @layer.1$B(%{{.*}}, %{{.*}}, %[[B]]) mb 0 at 1
// THREE-NOT: write

// One gather for the step: of both coordinates, two.
// STEP-LABEL: piper.cluster
// STEP-COUNT-2: all_gather
// STEP-NOT: all_gather

// One gather for cells in a row that use one bucket: here, all of a coordinate.
// GROUP-LABEL: piper.cluster
// GROUP-COUNT-2: all_gather
// GROUP-NOT: all_gather

piper.mesh @mesh [pp = 2 unrolled, dp = 2 manual]
piper.state @l0 parameter : tensor<8x8xf32>
piper.state @l1 parameter : tensor<8x8xf32>
piper.schedule @order axis = "pp" stages = 2
  microbatches = 2 ["0F0 0F1 0B0 0B1", "1F0 1B0 1F1 1B1"]
piper.strategy @strategy mesh = @mesh {
  piper.do.place <all> stages = 2 axis = "pp" coordinates [0, 1]
  piper.do.split microbatches = 2 dims = {x = 0}
  piper.do.replicate <all> axes = ["dp"] zero = ZERO bucket = 25000000 reduce = "REDUCE" OPTIONS
  piper.do.order @order
  piper.do.update <all> optimizer = "sgd" clip = 1.0
}
piper.step @train phase = captured mesh = @mesh inputs ["x"] dims [0]
    (%x0: tensor<4x8xf32>) {
  %w0 = read @l0 : tensor<8x8xf32>
  %w1 = read @l1 : tensor<8x8xf32>
  %t = tangent "loss" coeff 1.0 -> tensor<f32>
  %a0 = torch "aten.mm.default"(%x0, %w0) facts <pure, flops = 512> tag <"layer.0" F> : (tensor<4x8xf32>, tensor<8x8xf32>) -> tensor<4x8xf32>
  %x1 = torch "aten.tanh.default"(%a0) facts <pure, flops = 512> tag <"layer.0" F> : (tensor<4x8xf32>) -> tensor<4x8xf32>
  %a1 = torch "aten.mm.default"(%x1, %w1) facts <pure, flops = 512> tag <"layer.1" F> : (tensor<4x8xf32>, tensor<8x8xf32>) -> tensor<4x8xf32>
  %x2 = torch "aten.tanh.default"(%a1) facts <pure, flops = 512> tag <"layer.1" F> : (tensor<4x8xf32>) -> tensor<4x8xf32>
  %l = torch "aten.sum.default"(%x2) facts <pure, flops = 512> tag <"layer.1" F> : (tensor<4x8xf32>) -> tensor<f32>
  output "loss" %l scale %t : tensor<f32>, tensor<f32>
  %d2 = torch "aten.mul.Tensor"(%x2, %t) facts <pure, flops = 512> tag <"layer.1" B> : (tensor<4x8xf32>, tensor<f32>) -> tensor<4x8xf32>
  %e1 = torch "aten.tanh_backward.default"(%d2, %x2) facts <pure, flops = 512> tag <"layer.1" B> : (tensor<4x8xf32>, tensor<4x8xf32>) -> tensor<4x8xf32>
  %d1 = torch "aten.mm.default"(%e1, %w1) facts <pure, flops = 512> tag <"layer.1" B> : (tensor<4x8xf32>, tensor<8x8xf32>) -> tensor<4x8xf32>
  %y1 = torch "aten.t.default"(%x1) facts <view> tag <"layer.1" B> : (tensor<4x8xf32>) -> tensor<8x4xf32>
  %g1 = torch "aten.mm.default"(%y1, %e1) facts <pure, flops = 512> tag <"layer.1" B> : (tensor<8x4xf32>, tensor<4x8xf32>) -> tensor<8x8xf32>
  grad @l1 %g1 tag <"layer.1" B> : tensor<8x8xf32>
  %e0 = torch "aten.tanh_backward.default"(%d1, %x1) facts <pure, flops = 512> tag <"layer.0" B> : (tensor<4x8xf32>, tensor<4x8xf32>) -> tensor<4x8xf32>
  %d0 = torch "aten.mm.default"(%e0, %w0) facts <pure, flops = 512> tag <"layer.0" B> : (tensor<4x8xf32>, tensor<8x8xf32>) -> tensor<4x8xf32>
  %y0 = torch "aten.t.default"(%x0) facts <view> tag <"layer.0" B> : (tensor<4x8xf32>) -> tensor<8x4xf32>
  %g0 = torch "aten.mm.default"(%y0, %e0) facts <pure, flops = 512> tag <"layer.0" B> : (tensor<8x4xf32>, tensor<4x8xf32>) -> tensor<8x8xf32>
  grad @l0 %g0 tag <"layer.0" B> : tensor<8x8xf32>
}
