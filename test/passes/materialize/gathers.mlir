// When the states of ZeRO-3 are gathered: so many runs before their use, but not
// more than fits, and once for uses that follow each other. One stage of three
// layers, whose buckets are 256 bytes each, 1F1B, two microbatches, dp 2.
// DEFINE: %{compile} = piper-opt --piper-remat --piper-outline-chunks --piper-record --piper-materialize
// RUN: sed 's/ZERO/3/; s/OPTIONS/gather = "each" prefetch = 0/' %s | %{compile} | FileCheck %s --check-prefix=NEEDED
// RUN: sed 's/ZERO/3/; s/OPTIONS/gather = "each" prefetch = 1/' %s | %{compile} | FileCheck %s --check-prefix=AHEAD
// RUN: sed 's/ZERO/3/; s/OPTIONS/gather = "each" prefetch = 9 limit = 256/' %s | %{compile} | FileCheck %s --check-prefix=NEEDED
// RUN: sed 's/ZERO/3/; s/OPTIONS/gather = "each" prefetch = 9 limit = 512/' %s | %{compile} | FileCheck %s --check-prefix=TWO
// RUN: sed 's/ZERO/3/; s/OPTIONS/gather = "group" prefetch = 0/' %s | %{compile} | FileCheck %s --check-prefix=GROUP
// RUN: sed 's/ZERO/1/; s/OPTIONS/gather = "step" prefetch = 1/' %s | %{compile} | FileCheck %s --check-prefix=STEP

// Nothing is gathered before the run that needs it is next.
// NEEDED-LABEL: piper.cluster
// NEEDED: all_gather
// NEEDED-NOT: all_gather
// NEEDED: run @layer.0$F
// NEEDED: all_gather
// NEEDED-NOT: all_gather
// NEEDED: run @layer.1$F
// NEEDED: all_gather
// NEEDED-NOT: all_gather
// NEEDED: run @layer.2$F
// NEEDED: all_gather
// NEEDED-NOT: all_gather
// NEEDED: run @layer.2$B
// NEEDED: all_gather
// NEEDED-NOT: all_gather
// NEEDED: run @layer.1$B

// One run ahead, so that it travels beside the run before. The bucket of layer 2
// is whole for its forward run and is not gathered again meanwhile.
// AHEAD-LABEL: piper.cluster
// AHEAD: all_gather
// AHEAD: all_gather
// AHEAD-NOT: all_gather
// AHEAD: run @layer.0$F
// AHEAD: all_gather
// AHEAD-NOT: all_gather
// AHEAD: run @layer.1$F
// AHEAD-NOT: all_gather
// AHEAD: run @layer.2$F
// AHEAD: all_gather
// AHEAD: all_gather
// AHEAD-NOT: all_gather
// AHEAD: run @layer.2$B

// Two buckets fit.
// TWO-LABEL: piper.cluster
// TWO: all_gather
// TWO: all_gather
// TWO-NOT: all_gather
// TWO: run @layer.0$F
// TWO: all_gather
// TWO-NOT: all_gather
// TWO: run @layer.1$F

// Both runs of layer 2 use one gather, and so do layer 0's last backward run and
// first forward run of the next microbatch.
// GROUP-LABEL: piper.cluster
// GROUP: run @layer.2$F(%{{.*}}, %[[L2:[a-z_0-9]+]]) mb 0
// GROUP-NOT: all_gather
// GROUP: run @layer.2$B(%{{.*}}, %{{.*}}, %[[L2]])
// GROUP: all_gather
// GROUP: run @layer.1$B
// GROUP: all_gather
// GROUP: run @layer.0$B(%{{.*}}, %{{.*}}, %{{.*}}, %[[L0:[a-z_0-9]+]]) mb 0
// GROUP-NOT: all_gather
// GROUP: run @layer.0$F(%{{.*}}, %[[L0]]) mb 1

// Stage 1 may gather in the next step what it has updated. Each bucket travels
// beside the first run that does not need it, and stays whole for the step.
// STEP: piper.bucket @l0$b [@l0] value : !f32_32_dpS0 grad : !f32_64_dpP
// STEP-LABEL: piper.cluster
// STEP: all_gather
// STEP: all_gather
// STEP: run @layer.0$F
// STEP: all_gather
// STEP: run @layer.1$F
// STEP-NOT: all_gather
// STEP: update
// STEP-NOT: all_gather
// STEP-NOT: write

piper.mesh @mesh [dp = 2 manual]
piper.state @l0 parameter : tensor<8x8xf32>
piper.state @l1 parameter : tensor<8x8xf32>
piper.state @l2 parameter : tensor<8x8xf32>
piper.strategy @strategy mesh = @mesh {
  piper.do.split microbatches = 2 dims = {x = 0}
  piper.do.replicate <all> axes = ["dp"] zero = ZERO bucket = 256 reduce = "last" OPTIONS
  piper.do.update <all> optimizer = "sgd"
}
piper.step @train phase = captured mesh = @mesh inputs ["x"] dims [0]
    (%x0: tensor<4x8xf32>) {
  %w0 = read @l0 : tensor<8x8xf32>
  %w1 = read @l1 : tensor<8x8xf32>
  %w2 = read @l2 : tensor<8x8xf32>
  %t = tangent "loss" coeff 1.0 -> tensor<f32>
  %x1 = torch "aten.mm.default"(%x0, %w0) facts <pure, flops = 512> tag <"layer.0" F> : (tensor<4x8xf32>, tensor<8x8xf32>) -> tensor<4x8xf32>
  %x2 = torch "aten.mm.default"(%x1, %w1) facts <pure, flops = 512> tag <"layer.1" F> : (tensor<4x8xf32>, tensor<8x8xf32>) -> tensor<4x8xf32>
  %x3 = torch "aten.mm.default"(%x2, %w2) facts <pure, flops = 512> tag <"layer.2" F> : (tensor<4x8xf32>, tensor<8x8xf32>) -> tensor<4x8xf32>
  %l = torch "aten.sum.default"(%x3) facts <pure, flops = 512> tag <"layer.2" F> : (tensor<4x8xf32>) -> tensor<f32>
  output "loss" %l scale %t : tensor<f32>, tensor<f32>
  %d3 = torch "aten.mul.Tensor"(%x3, %t) facts <pure, flops = 512> tag <"layer.2" B> : (tensor<4x8xf32>, tensor<f32>) -> tensor<4x8xf32>
  %d2 = torch "aten.mm.default"(%d3, %w2) facts <pure, flops = 512> tag <"layer.2" B> : (tensor<4x8xf32>, tensor<8x8xf32>) -> tensor<4x8xf32>
  %y2 = torch "aten.t.default"(%x2) facts <view> tag <"layer.2" B> : (tensor<4x8xf32>) -> tensor<8x4xf32>
  %g2 = torch "aten.mm.default"(%y2, %d3) facts <pure, flops = 512> tag <"layer.2" B> : (tensor<8x4xf32>, tensor<4x8xf32>) -> tensor<8x8xf32>
  grad @l2 %g2 tag <"layer.2" B> : tensor<8x8xf32>
  %d1 = torch "aten.mm.default"(%d2, %w1) facts <pure, flops = 512> tag <"layer.1" B> : (tensor<4x8xf32>, tensor<8x8xf32>) -> tensor<4x8xf32>
  %y1 = torch "aten.t.default"(%x1) facts <view> tag <"layer.1" B> : (tensor<4x8xf32>) -> tensor<8x4xf32>
  %g1 = torch "aten.mm.default"(%y1, %d2) facts <pure, flops = 512> tag <"layer.1" B> : (tensor<8x4xf32>, tensor<4x8xf32>) -> tensor<8x8xf32>
  grad @l1 %g1 tag <"layer.1" B> : tensor<8x8xf32>
  %d0 = torch "aten.mm.default"(%d1, %w0) facts <pure, flops = 512> tag <"layer.0" B> : (tensor<4x8xf32>, tensor<8x8xf32>) -> tensor<4x8xf32>
  %y0 = torch "aten.t.default"(%x0) facts <view> tag <"layer.0" B> : (tensor<4x8xf32>) -> tensor<8x4xf32>
  %g00 = torch "aten.mm.default"(%y0, %d1) facts <pure, flops = 512> tag <"layer.0" B> : (tensor<8x4xf32>, tensor<4x8xf32>) -> tensor<8x8xf32>
  %s0 = torch "aten.mul.Tensor"(%w0, %t) facts <pure, flops = 512> tag <"layer.0" B> : (tensor<8x8xf32>, tensor<f32>) -> tensor<8x8xf32>
  %g0 = torch "aten.add.Tensor"(%g00, %s0) facts <pure, flops = 512> tag <"layer.0" B> : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
  grad @l0 %g0 tag <"layer.0" B> : tensor<8x8xf32>
}
