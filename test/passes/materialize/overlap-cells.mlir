// Pieces of cells that may overlap, with more of them than the layer of overlap.mlir has.
// What a run makes for exchanges and for gradients of weights is one value here.

// RUN: piper-opt %s -split-input-file --piper-order-cells | FileCheck %s

// By the default policy. In the first pair of cells the backward one has one piece more, in the
// second the forward one. What follows each other without an exchange between is issued in one
// go, such as a.0$F1 and b.0$F. Gradients of weights go behind the first exchange behind which
// all is there that they use, in whatever order they come: so c.0$W1 is behind d.0$W. All that
// c.0$W2 uses is there before c.0$I2, of the same chunk, but it comes behind that. a.0$W1 waits
// for what a.0$W makes.

!x = tensor<4xf32, #piper.layout<ep = varying>>

piper.mesh @mesh [pp = 1 unrolled, ep = 2 manual]
piper.stream @ep
piper.schedule @order axis = "pp" stages = 2 microbatches = 2 ["0F0 1F0 (0F1;1I0)OVERLAP_F_B 1W0 (1F1;0I0)OVERLAP_F_B 0W0 1I1 1W1 0I1 0W1"]
piper.chunk @a.0$F pass = F stage = 0 (%x: !x) -> !x { return %x : !x }
piper.chunk @a.0$F1 pass = F stage = 0 (%x: !x) -> !x { return %x : !x }
piper.chunk @b.0$F pass = F stage = 0 (%x: !x) -> !x { return %x : !x }
piper.chunk @c.0$F pass = F stage = 1 (%x: !x) -> !x { return %x : !x }
piper.chunk @c.0$F1 pass = F stage = 1 (%x: !x) -> !x { return %x : !x }
piper.chunk @c.0$F2 pass = F stage = 1 (%x: !x) -> !x { return %x : !x }
piper.chunk @d.0$F pass = F stage = 1 (%x: !x) -> !x { return %x : !x }
piper.chunk @d.0$I pass = I of @d.0$F stage = 1 (%x: !x) -> !x { return %x : !x }
piper.chunk @c.0$I pass = I of @c.0$F2 stage = 1 (%x: !x) -> !x { return %x : !x }
piper.chunk @c.0$I1 pass = I of @c.0$F1 stage = 1 (%x: !x) -> !x { return %x : !x }
piper.chunk @c.0$I2 pass = I of @c.0$F stage = 1 (%x: !x) -> !x { return %x : !x }
piper.chunk @b.0$I pass = I of @b.0$F stage = 0 (%x: !x) -> !x { return %x : !x }
piper.chunk @a.0$I pass = I of @a.0$F1 stage = 0 (%x: !x) -> !x { return %x : !x }
piper.chunk @a.0$I1 pass = I of @a.0$F stage = 0 (%x: !x) -> !x { return %x : !x }
piper.chunk @d.0$W pass = W of @d.0$F stage = 1 (%x: !x) -> !x { return %x : !x }
piper.chunk @c.0$W pass = W of @c.0$F2 stage = 1 (%x: !x) -> !x { return %x : !x }
piper.chunk @c.0$W1 pass = W of @c.0$F1 stage = 1 (%x: !x) -> !x { return %x : !x }
piper.chunk @c.0$W2 pass = W of @c.0$F stage = 1 (%x: !x) -> !x { return %x : !x }
piper.chunk @b.0$W pass = W of @b.0$F stage = 0 (%x: !x) -> !x { return %x : !x }
piper.chunk @a.0$W pass = W of @a.0$F1 stage = 0 (%x: !x) -> !x { return %x : !x }
piper.chunk @a.0$W1 pass = W of @a.0$F stage = 0 (%x: !x) -> !x { return %x : !x }
// CHECK-LABEL: piper.cluster @train$cluster of @train phase = ordered
// CHECK: run @d.0$F({{.*}}) mb 0
// CHECK-NEXT: run @d.0$I({{.*}}) mb 0
// CHECK-NEXT: run @c.0$I({{.*}}) mb 0
// CHECK-NEXT: all_to_all {{.*}} as "c.0 third" mb 0
// CHECK-NEXT: run @d.0$W({{.*}}) mb 0
// CHECK-NEXT: run @c.0$W({{.*}}) mb 0
// CHECK-NEXT: input "x" mb 1
// CHECK-NEXT: run @a.0$F({{.*}}) mb 1
// CHECK-NEXT: all_to_all {{.*}} as "a.0 there" mb 1
// CHECK-NEXT: run @c.0$I1({{.*}}) mb 0
// CHECK-NEXT: all_to_all {{.*}} as "c.0 fourth" mb 0
// CHECK-NEXT: run @c.0$W1({{.*}}) mb 0
// CHECK-NEXT: run @a.0$F1({{.*}}) mb 1
// CHECK-NEXT: run @b.0$F({{.*}}) mb 1
// CHECK-NEXT: run @c.0$I2({{.*}}) mb 0
// CHECK-NEXT: run @c.0$W2({{.*}}) mb 0
//
// CHECK-NEXT: run @b.0$I({{.*}}) mb 0
// CHECK-NEXT: run @a.0$I({{.*}}) mb 0
// CHECK-NEXT: all_to_all {{.*}} as "a.0 back" mb 0
// CHECK-NEXT: run @b.0$W({{.*}}) mb 0
// CHECK-NEXT: run @c.0$F({{.*}}) mb 1
// CHECK-NEXT: all_to_all {{.*}} as "c.0 first" mb 1
// CHECK-NEXT: run @a.0$I1({{.*}}) mb 0
// CHECK-NEXT: run @a.0$W({{.*}}) mb 0
// CHECK-NEXT: all_to_all {{.*}} as "a.0 more" mb 0
// CHECK-NEXT: run @a.0$W1({{.*}}) mb 0
// CHECK-NEXT: run @c.0$F1({{.*}}) mb 1
// CHECK-NEXT: all_to_all {{.*}} as "c.0 second" mb 1
// CHECK-NEXT: run @c.0$F2({{.*}}) mb 1
// CHECK-NEXT: run @d.0$F({{.*}}) mb 1
// CHECK-NEXT: run @d.0$I({{.*}}) mb 1
piper.cluster @train$cluster of @train phase = reduced mesh = @mesh order = @order microbatches = 2 {
  %x_0 = input "x" mb 0 at 0 : !x
  %a0F_0 = run @a.0$F(%x_0) mb 0 at 0 : (!x) -> !x
  %a0there_0 = all_to_all %a0F_0 at [0] dim 0 over ["ep"] as "a.0 there" mb 0 on @ep : !x -> !x
  %a0F1_0 = run @a.0$F1(%a0there_0) mb 0 at 0 : (!x) -> !x
  %b0F_0 = run @b.0$F(%a0F1_0) mb 0 at 0 : (!x) -> !x
  %c0F_0 = run @c.0$F(%b0F_0) mb 0 at 0 : (!x) -> !x
  %c0first_0 = all_to_all %c0F_0 at [0] dim 0 over ["ep"] as "c.0 first" mb 0 on @ep : !x -> !x
  %c0F1_0 = run @c.0$F1(%c0first_0) mb 0 at 0 : (!x) -> !x
  %c0second_0 = all_to_all %c0F1_0 at [0] dim 0 over ["ep"] as "c.0 second" mb 0 on @ep : !x -> !x
  %c0F2_0 = run @c.0$F2(%c0second_0) mb 0 at 0 : (!x) -> !x
  %d0F_0 = run @d.0$F(%c0F2_0) mb 0 at 0 : (!x) -> !x
  %d0I_0 = run @d.0$I(%d0F_0) mb 0 at 0 : (!x) -> !x
  %c0I_0 = run @c.0$I(%d0I_0) mb 0 at 0 : (!x) -> !x
  %c0third_0 = all_to_all %c0I_0 at [0] dim 0 over ["ep"] as "c.0 third" mb 0 on @ep : !x -> !x
  %c0I1_0 = run @c.0$I1(%c0third_0) mb 0 at 0 : (!x) -> !x
  %c0fourth_0 = all_to_all %c0I1_0 at [0] dim 0 over ["ep"] as "c.0 fourth" mb 0 on @ep : !x -> !x
  %c0I2_0 = run @c.0$I2(%c0fourth_0) mb 0 at 0 : (!x) -> !x
  %c0W1_0 = run @c.0$W1(%c0I1_0) mb 0 at 0 : (!x) -> !x
  %d0W_0 = run @d.0$W(%d0I_0) mb 0 at 0 : (!x) -> !x
  %c0W_0 = run @c.0$W(%d0I_0) mb 0 at 0 : (!x) -> !x
  %c0W2_0 = run @c.0$W2(%c0third_0) mb 0 at 0 : (!x) -> !x
  %b0I_0 = run @b.0$I(%c0I2_0) mb 0 at 0 : (!x) -> !x
  %a0I_0 = run @a.0$I(%b0I_0) mb 0 at 0 : (!x) -> !x
  %a0back_0 = all_to_all %a0I_0 at [0] dim 0 over ["ep"] as "a.0 back" mb 0 on @ep : !x -> !x
  %a0I1_0 = run @a.0$I1(%a0back_0) mb 0 at 0 : (!x) -> !x
  %a0W_0 = run @a.0$W(%a0I1_0) mb 0 at 0 : (!x) -> !x
  %a0more_0 = all_to_all %a0W_0 at [0] dim 0 over ["ep"] as "a.0 more" mb 0 on @ep : !x -> !x
  %a0W1_0 = run @a.0$W1(%a0more_0) mb 0 at 0 : (!x) -> !x
  %b0W_0 = run @b.0$W(%b0I_0) mb 0 at 0 : (!x) -> !x
  %x_1 = input "x" mb 1 at 0 : !x
  %a0F_1 = run @a.0$F(%x_1) mb 1 at 0 : (!x) -> !x
  %a0there_1 = all_to_all %a0F_1 at [0] dim 0 over ["ep"] as "a.0 there" mb 1 on @ep : !x -> !x
  %a0F1_1 = run @a.0$F1(%a0there_1) mb 1 at 0 : (!x) -> !x
  %b0F_1 = run @b.0$F(%a0F1_1) mb 1 at 0 : (!x) -> !x
  %c0F_1 = run @c.0$F(%b0F_1) mb 1 at 0 : (!x) -> !x
  %c0first_1 = all_to_all %c0F_1 at [0] dim 0 over ["ep"] as "c.0 first" mb 1 on @ep : !x -> !x
  %c0F1_1 = run @c.0$F1(%c0first_1) mb 1 at 0 : (!x) -> !x
  %c0second_1 = all_to_all %c0F1_1 at [0] dim 0 over ["ep"] as "c.0 second" mb 1 on @ep : !x -> !x
  %c0F2_1 = run @c.0$F2(%c0second_1) mb 1 at 0 : (!x) -> !x
  %d0F_1 = run @d.0$F(%c0F2_1) mb 1 at 0 : (!x) -> !x
  %d0I_1 = run @d.0$I(%d0F_1) mb 1 at 0 : (!x) -> !x
  %c0I_1 = run @c.0$I(%d0I_1) mb 1 at 0 : (!x) -> !x
  %c0third_1 = all_to_all %c0I_1 at [0] dim 0 over ["ep"] as "c.0 third" mb 1 on @ep : !x -> !x
  %c0I1_1 = run @c.0$I1(%c0third_1) mb 1 at 0 : (!x) -> !x
  %c0fourth_1 = all_to_all %c0I1_1 at [0] dim 0 over ["ep"] as "c.0 fourth" mb 1 on @ep : !x -> !x
  %c0I2_1 = run @c.0$I2(%c0fourth_1) mb 1 at 0 : (!x) -> !x
  %c0W1_1 = run @c.0$W1(%c0I1_1) mb 1 at 0 : (!x) -> !x
  %d0W_1 = run @d.0$W(%d0I_1) mb 1 at 0 : (!x) -> !x
  %c0W_1 = run @c.0$W(%d0I_1) mb 1 at 0 : (!x) -> !x
  %c0W2_1 = run @c.0$W2(%c0third_1) mb 1 at 0 : (!x) -> !x
  %b0I_1 = run @b.0$I(%c0I2_1) mb 1 at 0 : (!x) -> !x
  %a0I_1 = run @a.0$I(%b0I_1) mb 1 at 0 : (!x) -> !x
  %a0back_1 = all_to_all %a0I_1 at [0] dim 0 over ["ep"] as "a.0 back" mb 1 on @ep : !x -> !x
  %a0I1_1 = run @a.0$I1(%a0back_1) mb 1 at 0 : (!x) -> !x
  %a0W_1 = run @a.0$W(%a0I1_1) mb 1 at 0 : (!x) -> !x
  %a0more_1 = all_to_all %a0W_1 at [0] dim 0 over ["ep"] as "a.0 more" mb 1 on @ep : !x -> !x
  %a0W1_1 = run @a.0$W1(%a0more_1) mb 1 at 0 : (!x) -> !x
  %b0W_1 = run @b.0$W(%b0I_1) mb 1 at 0 : (!x) -> !x
}

// -----

// A template pairs the chunks that it selects, a, in the order in which both cells run them. What
// lies between, the chunks e and h, stays in front of the next one, and what has no partner is
// issued in one go. The gradients of a pair's weights are where the template says, all others at
// the end. In the first pair of cells the backward one has one chunk more, in the second the
// forward one.

!x = tensor<4xf32, #piper.layout<ep = varying>>

piper.mesh @mesh [pp = 1 unrolled, ep = 2 manual]
piper.stream @ep
piper.schedule @order axis = "pp" stages = 2 microbatches = 2 ["0F0 1F0 (0F1;1I0)OVERLAP_F_B 1W0 (1F1;0I0)OVERLAP_F_B 0W0 1I1 1W1 0I1 0W1"]
piper.strategy @strategy mesh = @mesh {
  piper.do.overlap <tag = "a"> order = ["I", "F", "I.back", "F.there", "W", "F1", "I1"]
}
piper.chunk @e.0$F pass = F stage = 0 (%x: !x) -> !x { return %x : !x }
piper.chunk @a.0$F pass = F stage = 0 (%x: !x) -> !x { return %x : !x }
piper.chunk @a.0$F1 pass = F stage = 0 (%x: !x) -> !x { return %x : !x }
piper.chunk @a.1$F pass = F stage = 1 (%x: !x) -> !x { return %x : !x }
piper.chunk @a.1$F1 pass = F stage = 1 (%x: !x) -> !x { return %x : !x }
piper.chunk @a.2$F pass = F stage = 1 (%x: !x) -> !x { return %x : !x }
piper.chunk @a.2$F1 pass = F stage = 1 (%x: !x) -> !x { return %x : !x }
piper.chunk @h.0$F pass = F stage = 1 (%x: !x) -> !x { return %x : !x }
piper.chunk @h.0$I pass = I of @h.0$F stage = 1 (%x: !x) -> !x { return %x : !x }
piper.chunk @a.2$I pass = I of @a.2$F1 stage = 1 (%x: !x) -> !x { return %x : !x }
piper.chunk @a.2$I1 pass = I of @a.2$F stage = 1 (%x: !x) -> !x { return %x : !x }
piper.chunk @a.1$I pass = I of @a.1$F1 stage = 1 (%x: !x) -> !x { return %x : !x }
piper.chunk @a.1$I1 pass = I of @a.1$F stage = 1 (%x: !x) -> !x { return %x : !x }
piper.chunk @a.0$I pass = I of @a.0$F1 stage = 0 (%x: !x) -> !x { return %x : !x }
piper.chunk @a.0$I1 pass = I of @a.0$F stage = 0 (%x: !x) -> !x { return %x : !x }
piper.chunk @e.0$I pass = I of @e.0$F stage = 0 (%x: !x) -> !x { return %x : !x }
piper.chunk @h.0$W pass = W of @h.0$F stage = 1 (%x: !x) -> !x { return %x : !x }
piper.chunk @a.2$W pass = W of @a.2$F1 stage = 1 (%x: !x) -> !x { return %x : !x }
piper.chunk @a.1$W pass = W of @a.1$F1 stage = 1 (%x: !x) -> !x { return %x : !x }
piper.chunk @a.0$W pass = W of @a.0$F1 stage = 0 (%x: !x) -> !x { return %x : !x }
piper.chunk @e.0$W pass = W of @e.0$F stage = 0 (%x: !x) -> !x { return %x : !x }
// CHECK-LABEL: piper.cluster @train$cluster of @train phase = ordered
// CHECK: run @a.2$F1({{.*}}) mb 0
// CHECK-NEXT: input "x" mb 1
// CHECK-NEXT: run @e.0$F({{.*}}) mb 1
// CHECK-NEXT: run @a.2$I({{.*}}) mb 0
// CHECK-NEXT: run @a.0$F({{.*}}) mb 1
// CHECK-NEXT: as "a.2 back" mb 0
// CHECK-NEXT: as "a.0 there" mb 1
// CHECK-NEXT: run @a.2$W({{.*}}) mb 0
// CHECK-NEXT: run @a.0$F1({{.*}}) mb 1
// CHECK-NEXT: run @a.2$I1({{.*}}) mb 0
// CHECK-NEXT: run @h.0$I({{.*}}) mb 0
// CHECK-NEXT: run @a.1$I({{.*}}) mb 0
// CHECK-NEXT: as "a.1 back" mb 0
// CHECK-NEXT: run @a.1$I1({{.*}}) mb 0
// CHECK-NEXT: run @h.0$W({{.*}}) mb 0
// CHECK-NEXT: run @a.1$W({{.*}}) mb 0
// CHECK-NEXT: run @a.0$I({{.*}}) mb 0
// CHECK-NEXT: run @a.1$F({{.*}}) mb 1
// CHECK-NEXT: as "a.0 back" mb 0
// CHECK-NEXT: as "a.1 there" mb 1
// CHECK-NEXT: run @a.0$W({{.*}}) mb 0
// CHECK-NEXT: run @a.1$F1({{.*}}) mb 1
// CHECK-NEXT: run @a.0$I1({{.*}}) mb 0
// CHECK-NEXT: run @e.0$I({{.*}}) mb 0
// CHECK-NEXT: run @h.0$F({{.*}}) mb 1
// CHECK-NEXT: run @a.2$F({{.*}}) mb 1
// CHECK-NEXT: as "a.2 there" mb 1
// CHECK-NEXT: run @a.2$F1({{.*}}) mb 1
// CHECK-NEXT: run @e.0$W({{.*}}) mb 0
// CHECK-NEXT: run @a.2$I({{.*}}) mb 1
piper.cluster @train$cluster of @train phase = reduced mesh = @mesh order = @order microbatches = 2 {
  %x_0 = input "x" mb 0 at 0 : !x
  %e0F_0 = run @e.0$F(%x_0) mb 0 at 0 : (!x) -> !x
  %a0F_0 = run @a.0$F(%e0F_0) mb 0 at 0 : (!x) -> !x
  %a0there_0 = all_to_all %a0F_0 at [0] dim 0 over ["ep"] as "a.0 there" mb 0 on @ep : !x -> !x
  %a0F1_0 = run @a.0$F1(%a0there_0) mb 0 at 0 : (!x) -> !x
  %a1F_0 = run @a.1$F(%a0F1_0) mb 0 at 0 : (!x) -> !x
  %a1there_0 = all_to_all %a1F_0 at [0] dim 0 over ["ep"] as "a.1 there" mb 0 on @ep : !x -> !x
  %a1F1_0 = run @a.1$F1(%a1there_0) mb 0 at 0 : (!x) -> !x
  %h0F_0 = run @h.0$F(%a1F1_0) mb 0 at 0 : (!x) -> !x
  %a2F_0 = run @a.2$F(%h0F_0) mb 0 at 0 : (!x) -> !x
  %a2there_0 = all_to_all %a2F_0 at [0] dim 0 over ["ep"] as "a.2 there" mb 0 on @ep : !x -> !x
  %a2F1_0 = run @a.2$F1(%a2there_0) mb 0 at 0 : (!x) -> !x
  %a2I_0 = run @a.2$I(%a2F1_0) mb 0 at 0 : (!x) -> !x
  %a2back_0 = all_to_all %a2I_0 at [0] dim 0 over ["ep"] as "a.2 back" mb 0 on @ep : !x -> !x
  %a2I1_0 = run @a.2$I1(%a2back_0) mb 0 at 0 : (!x) -> !x
  %h0I_0 = run @h.0$I(%a2I1_0) mb 0 at 0 : (!x) -> !x
  %a1I_0 = run @a.1$I(%h0I_0) mb 0 at 0 : (!x) -> !x
  %a1back_0 = all_to_all %a1I_0 at [0] dim 0 over ["ep"] as "a.1 back" mb 0 on @ep : !x -> !x
  %a1I1_0 = run @a.1$I1(%a1back_0) mb 0 at 0 : (!x) -> !x
  %a0I_0 = run @a.0$I(%a1I1_0) mb 0 at 0 : (!x) -> !x
  %a0back_0 = all_to_all %a0I_0 at [0] dim 0 over ["ep"] as "a.0 back" mb 0 on @ep : !x -> !x
  %a0I1_0 = run @a.0$I1(%a0back_0) mb 0 at 0 : (!x) -> !x
  %e0I_0 = run @e.0$I(%a0I1_0) mb 0 at 0 : (!x) -> !x
  %a2W_0 = run @a.2$W(%a2I_0) mb 0 at 0 : (!x) -> !x
  %h0W_0 = run @h.0$W(%h0I_0) mb 0 at 0 : (!x) -> !x
  %a1W_0 = run @a.1$W(%a1I_0) mb 0 at 0 : (!x) -> !x
  %a0W_0 = run @a.0$W(%a0I_0) mb 0 at 0 : (!x) -> !x
  %e0W_0 = run @e.0$W(%e0I_0) mb 0 at 0 : (!x) -> !x
  %x_1 = input "x" mb 1 at 0 : !x
  %e0F_1 = run @e.0$F(%x_1) mb 1 at 0 : (!x) -> !x
  %a0F_1 = run @a.0$F(%e0F_1) mb 1 at 0 : (!x) -> !x
  %a0there_1 = all_to_all %a0F_1 at [0] dim 0 over ["ep"] as "a.0 there" mb 1 on @ep : !x -> !x
  %a0F1_1 = run @a.0$F1(%a0there_1) mb 1 at 0 : (!x) -> !x
  %a1F_1 = run @a.1$F(%a0F1_1) mb 1 at 0 : (!x) -> !x
  %a1there_1 = all_to_all %a1F_1 at [0] dim 0 over ["ep"] as "a.1 there" mb 1 on @ep : !x -> !x
  %a1F1_1 = run @a.1$F1(%a1there_1) mb 1 at 0 : (!x) -> !x
  %h0F_1 = run @h.0$F(%a1F1_1) mb 1 at 0 : (!x) -> !x
  %a2F_1 = run @a.2$F(%h0F_1) mb 1 at 0 : (!x) -> !x
  %a2there_1 = all_to_all %a2F_1 at [0] dim 0 over ["ep"] as "a.2 there" mb 1 on @ep : !x -> !x
  %a2F1_1 = run @a.2$F1(%a2there_1) mb 1 at 0 : (!x) -> !x
  %a2I_1 = run @a.2$I(%a2F1_1) mb 1 at 0 : (!x) -> !x
  %a2back_1 = all_to_all %a2I_1 at [0] dim 0 over ["ep"] as "a.2 back" mb 1 on @ep : !x -> !x
  %a2I1_1 = run @a.2$I1(%a2back_1) mb 1 at 0 : (!x) -> !x
  %h0I_1 = run @h.0$I(%a2I1_1) mb 1 at 0 : (!x) -> !x
  %a1I_1 = run @a.1$I(%h0I_1) mb 1 at 0 : (!x) -> !x
  %a1back_1 = all_to_all %a1I_1 at [0] dim 0 over ["ep"] as "a.1 back" mb 1 on @ep : !x -> !x
  %a1I1_1 = run @a.1$I1(%a1back_1) mb 1 at 0 : (!x) -> !x
  %a0I_1 = run @a.0$I(%a1I1_1) mb 1 at 0 : (!x) -> !x
  %a0back_1 = all_to_all %a0I_1 at [0] dim 0 over ["ep"] as "a.0 back" mb 1 on @ep : !x -> !x
  %a0I1_1 = run @a.0$I1(%a0back_1) mb 1 at 0 : (!x) -> !x
  %e0I_1 = run @e.0$I(%a0I1_1) mb 1 at 0 : (!x) -> !x
  %a2W_1 = run @a.2$W(%a2I_1) mb 1 at 0 : (!x) -> !x
  %h0W_1 = run @h.0$W(%h0I_1) mb 1 at 0 : (!x) -> !x
  %a1W_1 = run @a.1$W(%a1I_1) mb 1 at 0 : (!x) -> !x
  %a0W_1 = run @a.0$W(%a0I_1) mb 1 at 0 : (!x) -> !x
  %e0W_1 = run @e.0$W(%e0I_1) mb 1 at 0 : (!x) -> !x
}
