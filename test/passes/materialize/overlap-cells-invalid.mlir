// Templates of cells that they cannot order.
// RUN: piper-opt %s -split-input-file -verify-diagnostics --piper-order-cells

// A directive that selects chunks of one cell of each pair alone has no effect: with an exchange
// in both cells, of which the chunk h is in the backward one first, and in the forward one then.

!x = tensor<4xf32, #piper.layout<ep = varying>>

piper.mesh @mesh [pp = 1 unrolled, ep = 2 manual]
piper.stream @ep
piper.schedule @order axis = "pp" stages = 2 microbatches = 2 ["0F0 1F0 (0F1;1B0)OVERLAP_F_B (1F1;0B0)OVERLAP_F_B 1B1 0B1"]
piper.strategy @strategy mesh = @mesh {
  // expected-error @+1 {{selects no chunks that may overlap: expected a pair of cells such as (0F1;0B0)OVERLAP_F_B in the schedule and chunks in both, between whose pieces ranks exchange values, got #piper.select<tag = "h">}}
  piper.do.overlap <tag = "h"> order = ["B", "F"]
}
piper.chunk @a.0$F pass = F stage = 0 (%x: !x) -> !x { return %x : !x }
piper.chunk @a.0$F1 pass = F stage = 0 (%x: !x) -> !x { return %x : !x }
piper.chunk @h.0$F pass = F stage = 1 (%x: !x) -> !x { return %x : !x }
piper.chunk @h.0$F1 pass = F stage = 1 (%x: !x) -> !x { return %x : !x }
piper.chunk @h.0$B pass = B of @h.0$F1 stage = 1 (%x: !x) -> !x { return %x : !x }
piper.chunk @h.0$B1 pass = B of @h.0$F stage = 1 (%x: !x) -> !x { return %x : !x }
piper.chunk @a.0$B pass = B of @a.0$F1 stage = 0 (%x: !x) -> !x { return %x : !x }
piper.chunk @a.0$B1 pass = B of @a.0$F stage = 0 (%x: !x) -> !x { return %x : !x }
piper.cluster @train$cluster of @train phase = reduced mesh = @mesh order = @order microbatches = 2 {
  %x_0 = input "x" mb 0 at 0 : !x
  %a0F_0 = run @a.0$F(%x_0) mb 0 at 0 : (!x) -> !x
  %a0Fx_0 = all_to_all %a0F_0 at [0] dim 0 over ["ep"] as "a.0 there" mb 0 on @ep : !x -> !x
  %a0F1_0 = run @a.0$F1(%a0Fx_0) mb 0 at 0 : (!x) -> !x
  %h0F_0 = run @h.0$F(%a0F1_0) mb 0 at 0 : (!x) -> !x
  %h0Fx_0 = all_to_all %h0F_0 at [0] dim 0 over ["ep"] as "h.0 there" mb 0 on @ep : !x -> !x
  %h0F1_0 = run @h.0$F1(%h0Fx_0) mb 0 at 0 : (!x) -> !x
  %h0B_0 = run @h.0$B(%h0F1_0) mb 0 at 0 : (!x) -> !x
  %h0Bx_0 = all_to_all %h0B_0 at [0] dim 0 over ["ep"] as "h.0 back" mb 0 on @ep : !x -> !x
  %h0B1_0 = run @h.0$B1(%h0Bx_0) mb 0 at 0 : (!x) -> !x
  %a0B_0 = run @a.0$B(%h0B1_0) mb 0 at 0 : (!x) -> !x
  %a0Bx_0 = all_to_all %a0B_0 at [0] dim 0 over ["ep"] as "a.0 back" mb 0 on @ep : !x -> !x
  %a0B1_0 = run @a.0$B1(%a0Bx_0) mb 0 at 0 : (!x) -> !x
  %x_1 = input "x" mb 1 at 0 : !x
  %a0F_1 = run @a.0$F(%x_1) mb 1 at 0 : (!x) -> !x
  %a0Fx_1 = all_to_all %a0F_1 at [0] dim 0 over ["ep"] as "a.0 there" mb 1 on @ep : !x -> !x
  %a0F1_1 = run @a.0$F1(%a0Fx_1) mb 1 at 0 : (!x) -> !x
  %h0F_1 = run @h.0$F(%a0F1_1) mb 1 at 0 : (!x) -> !x
  %h0Fx_1 = all_to_all %h0F_1 at [0] dim 0 over ["ep"] as "h.0 there" mb 1 on @ep : !x -> !x
  %h0F1_1 = run @h.0$F1(%h0Fx_1) mb 1 at 0 : (!x) -> !x
  %h0B_1 = run @h.0$B(%h0F1_1) mb 1 at 0 : (!x) -> !x
  %h0Bx_1 = all_to_all %h0B_1 at [0] dim 0 over ["ep"] as "h.0 back" mb 1 on @ep : !x -> !x
  %h0B1_1 = run @h.0$B1(%h0Bx_1) mb 1 at 0 : (!x) -> !x
  %a0B_1 = run @a.0$B(%h0B1_1) mb 1 at 0 : (!x) -> !x
  %a0Bx_1 = all_to_all %a0B_1 at [0] dim 0 over ["ep"] as "a.0 back" mb 1 on @ep : !x -> !x
  %a0B1_1 = run @a.0$B1(%a0Bx_1) mb 1 at 0 : (!x) -> !x
}

// -----

// Gradients of weights come behind those of the inputs of the same chunk, though they use nothing
// that these make.

!x = tensor<4xf32, #piper.layout<ep = varying>>

piper.mesh @mesh [pp = 1 unrolled, ep = 2 manual]
piper.stream @ep
piper.schedule @order axis = "pp" stages = 1 microbatches = 2 ["0F0 (0F1;0I0)OVERLAP_F_B 0W0 0I1 0W1"]
piper.strategy @strategy mesh = @mesh {
  // expected-error @+1 {{expected "W" behind the gradients of inputs of its chunk, which come later}}
  piper.do.overlap <tag = "a"> order = ["I", "I.back", "W", "F", "F.there", "I1", "F1"]
}
piper.chunk @a.0$F pass = F stage = 0 (%x: !x) -> !x { return %x : !x }
piper.chunk @a.0$F1 pass = F stage = 0 (%x: !x) -> !x { return %x : !x }
piper.chunk @a.0$I pass = I of @a.0$F1 stage = 0 (%x: !x) -> !x { return %x : !x }
piper.chunk @a.0$I1 pass = I of @a.0$F stage = 0 (%x: !x) -> !x { return %x : !x }
piper.chunk @a.0$W pass = W of @a.0$F stage = 0 (%x: !x) -> !x { return %x : !x }
piper.cluster @train$cluster of @train phase = reduced mesh = @mesh order = @order microbatches = 2 {
  %x_0 = input "x" mb 0 at 0 : !x
  %F_0 = run @a.0$F(%x_0) mb 0 at 0 : (!x) -> !x
  %there_0 = all_to_all %F_0 at [0] dim 0 over ["ep"] as "a.0 there" mb 0 on @ep : !x -> !x
  %F1_0 = run @a.0$F1(%there_0) mb 0 at 0 : (!x) -> !x
  %I_0 = run @a.0$I(%F1_0) mb 0 at 0 : (!x) -> !x
  %back_0 = all_to_all %I_0 at [0] dim 0 over ["ep"] as "a.0 back" mb 0 on @ep : !x -> !x
  %I1_0 = run @a.0$I1(%back_0) mb 0 at 0 : (!x) -> !x
  %W_0 = run @a.0$W(%back_0) mb 0 at 0 : (!x) -> !x
  %x_1 = input "x" mb 1 at 0 : !x
  %F_1 = run @a.0$F(%x_1) mb 1 at 0 : (!x) -> !x
  %there_1 = all_to_all %F_1 at [0] dim 0 over ["ep"] as "a.0 there" mb 1 on @ep : !x -> !x
  %F1_1 = run @a.0$F1(%there_1) mb 1 at 0 : (!x) -> !x
  %I_1 = run @a.0$I(%F1_1) mb 1 at 0 : (!x) -> !x
  %back_1 = all_to_all %I_1 at [0] dim 0 over ["ep"] as "a.0 back" mb 1 on @ep : !x -> !x
  %I1_1 = run @a.0$I1(%back_1) mb 1 at 0 : (!x) -> !x
  %W_1 = run @a.0$W(%back_1) mb 1 at 0 : (!x) -> !x
}
