// What ranks exchange belongs to chunks, also if it depends on inputs only.

// RUN: piper-opt %s -split-input-file --piper-shard --piper-partition | FileCheck %s
// RUN: piper-opt %s -split-input-file --piper-shard --piper-partition --piper-outline-chunks --piper-verify | FileCheck %s --check-prefix=L2

// Experts that the batch chooses: what sorts for an exchange goes with it, and
// so does what is made of what ranks exchange.
!x = tensor<6x8xf32>
!r = tensor<12x8xf32>
!i = tensor<6x2xi64>
!n = tensor<12xi64>
!c = tensor<1x4xi64>
!w = tensor<4x8x8xf32>
piper.mesh @mesh [ep = 2 manual]
piper.state @embed parameter : tensor<8x8xf32>
piper.state @experts.w parameter : !w
piper.strategy @strategy mesh = @mesh {
  piper.do.shard <state = "experts.*"> axis = "ep" dim = 0
}
// CHECK-LABEL: piper.step @train
// L2-LABEL: piper.step @train
piper.step @train phase = captured mesh = @mesh inputs ["x", "index"] dims [0, 0] (%x: !x, %index: !i) {
  %e = read @embed : tensor<8x8xf32>
  %w = read @experts.w : !w
  // CHECK: %[[I:.*]] = torch "aten.remainder.Scalar"{{.*}} tag <"preamble" P>
  // L2: %[[P:.*]] = run @preamble$P0(%index)
  %i = torch "aten.remainder.Scalar"(%index, 4) facts <pure, rule = "a b -> a b"> tag <"preamble" P> : (!i) -> !i
  // CHECK: torch "piper.moe_sort.default"(%[[I]], 4, 2) {{.*}} tag <"a.0" F>
  %order, %counts = torch "piper.moe_sort.default"(%i, 4, 1) facts <pure, rule = "t k -> n, r e; 2 = r"> tag <"preamble" P> : (!i) -> (!n, !c)
  // CHECK: %[[R:.*]] = all_to_all %[[C:.*]] dim 0 over ["ep"] as "a.0 counts" on @ep {tag = #piper.tag<"a.0" F>}
  // L2: %[[F:.*]]:2 = run @a.0$F(
  // L2: %[[R:.*]] = all_to_all %[[F]]#[[C:.]] dim 0 over ["ep"] as "a.0 counts"
  // L2: host_wait %[[F]]#[[C]], %[[R]]
  %received = torch "piper.moe_exchange_counts.default"(%counts) facts <pure, rule = "r e -> r e"> tag <"preamble" P> : (!c) -> !c
  // CHECK: torch "aten.gt.Scalar"(%[[R]], 0) {{.*}} tag <"a.0" F>
  %some = torch "aten.gt.Scalar"(%received, 0) facts <pure, rule = "a b -> a b"> tag <"preamble" P> : (!c) -> tensor<1x4xi1>
  %h = torch "aten.mm.default"(%x, %e) facts <pure> tag <"a.0" F> : (!x, tensor<8x8xf32>) -> !x
  %rows = torch "piper.moe_permute.default"(%h, %order, 2) facts <pure, rule = "t d, n -> n d"> tag <"a.0" F> : (!x, !n) -> !r
  %in = torch "piper.moe_dispatch.default"(%rows, %counts, %received) facts <pure, rule = "n d, r e, r e -> m d"> tag <"a.0" F> : (!r, !c, !c) -> !r
  %g = torch "piper.moe_group.default"(%in, %received) facts <pure, rule = "m d, r e -> m d"> tag <"a.0" F> : (!r, !c) -> !r
  %l = torch "piper.moe_linear.default"(%g, %w, %received) facts <pure, rule = "m i, e o i, r e -> m o; sum i"> tag <"a.0" F> : (!r, !w, !c) -> !r
  %u = torch "piper.moe_ungroup.default"(%l, %received) facts <pure, rule = "m d, r e -> m d"> tag <"a.0" F> : (!r, !c) -> !r
  %back = torch "piper.moe_collect.default"(%u, %counts, %received) facts <pure, rule = "m d, r e, r e -> n d"> tag <"a.0" F> : (!r, !c, !c) -> !r
  %any = torch "aten.logical_not.default"(%some) facts <pure, rule = "a b -> a b"> tag <"a.0" F> : (tensor<1x4xi1>) -> tensor<1x4xi1>
  output "any" %any : tensor<1x4xi1>
  output "y" %back : !r
}

// -----

// Attention to inputs gathers copies: of an input, and of what another op of the
// preamble needs as well.
!q = tensor<2x4x8x16xf32>
!w = tensor<16x16xf32>
piper.mesh @mesh [cp = 2 manual]
piper.state @w parameter : !w
piper.strategy @strategy mesh = @mesh {
  piper.do.sequence axis = "cp" dims = {x = 2}
}
// CHECK-LABEL: piper.step @train
// L2-LABEL: piper.step @train
piper.step @train phase = captured mesh = @mesh inputs ["x"] dims [0] (%x: !q) {
  %w = read @w : !w
  %k = torch "aten.neg.default"(%x) facts <pure, rule = "b h s d -> b h s d"> tag <"preamble" P> : (!q) -> !q
  // CHECK: %[[K:.*]] = torch "aten.neg.default"(%x) {{.*}} tag <"preamble" P>
  // CHECK: %[[COPY:.*]] = torch "aten.clone.default"(%[[K]]{{.*}} tag <"a.0" F>
  // CHECK: all_gather %[[COPY]] dim 2 over ["cp"] as "a.0 keys" on @cp {tag = #piper.tag<"a.0" F>}
  // CHECK: %[[INPUT:.*]] = torch "aten.clone.default"(%x{{.*}} tag <"a.0" F>
  // CHECK: all_gather %[[INPUT]] dim 2 over ["cp"] as "a.0 values" on @cp {tag = #piper.tag<"a.0" F>}
  // CHECK: torch "piper.attention_part.default"{{.*}} tag <"a.0" F>
  // CHECK: torch "aten.relu.default"(%[[K]]) {{.*}} tag <"preamble" P>
  // L2: run @a.0$F(
  // L2: all_gather
  // L2: run @a.0$F1(
  %a, %lse = torch "piper.attention.default"(%x, %k, %x, none, true, none, 0) facts <pure, heavy, rule = "b h s d, b h t d, b h t e -> b h s e, b h s"> tag <"preamble" P> : (!q, !q, !q) -> (!q, tensor<2x4x8xf32>)
  %y = torch "aten.matmul.default"(%a, %w) facts <pure, rule = "b h s d, d e -> b h s e; sum d"> tag <"a.0" F> : (!q, !w) -> !q
  %p = torch "aten.relu.default"(%k) facts <pure, rule = "b h s d -> b h s d"> tag <"preamble" P> : (!q) -> !q
  %m = torch "mine.mask.default"(%y, %p) facts <pure, rule = "b h s d, b h s d -> b h s d"> tag <"a.0" F> : (!q, !q) -> !q
  %s = torch "aten.sum.default"(%m) facts <pure, rule = "b h s d -> ; linear, sum b, sum h, sum s, sum d"> tag <"a.0" F> : (!q) -> tensor<f32>
  output "y" %s : tensor<f32>
}

// -----

// A table of which ranks have parts is gathered by the chunk that uses it.
!x = tensor<4x8xf32>
!t = tensor<8x8xf32>
piper.mesh @mesh [tp = 2 auto]
piper.state @table buffer : !t
piper.strategy @strategy mesh = @mesh {
  piper.do.shard <state = "table"> axis = "tp" dim = 0
}
// CHECK-LABEL: piper.step @train
// L2-LABEL: piper.step @train
piper.step @train phase = captured mesh = @mesh inputs ["x"] dims [0] (%x: !x) {
  %t = read @table : !t
  // CHECK: torch "aten.neg.default"{{.*}} tag <"a.0" F>
  // CHECK: all_gather %{{.*}} dim 0 over ["tp"] as "a.0 gather" on @tp {tag = #piper.tag<"a.0" F>}
  // L2: run @a.0$F(
  // L2: all_gather
  %n = torch "aten.neg.default"(%t) facts <pure, rule = "a b -> a b"> tag <"preamble" P> : (!t) -> !t
  %f = torch "aten.flip.default"(%n, [0]) facts <pure, rule = "a b -> c b"> tag <"preamble" P> : (!t) -> !t
  %y = torch "mine.lookup.default"(%x, %f) facts <pure, rule = "m k, c b -> m k"> tag <"a.0" F> : (!x, !t) -> !x
  output "y" %y : !x
}

// -----

// The first chunk is the one that others take values of, also if these begin before.
!x = tensor<6x8xf32>
!r = tensor<12x8xf32>
!i = tensor<6x2xi64>
!n = tensor<12xi64>
!c = tensor<1x4xi64>
!w = tensor<4x8x8xf32>
piper.mesh @mesh [ep = 2 manual]
piper.state @embed parameter : tensor<8x8xf32>
piper.state @experts.w parameter : !w
piper.strategy @strategy mesh = @mesh {
  piper.do.shard <state = "experts.*"> axis = "ep" dim = 0
}
// CHECK-LABEL: piper.step @train
// L2-LABEL: piper.step @train
piper.step @train phase = captured mesh = @mesh inputs ["x", "index"] dims [0, 0] (%x: !x, %index: !i) {
  %e = read @embed : tensor<8x8xf32>
  %w = read @experts.w : !w
  %order, %counts = torch "piper.moe_sort.default"(%index, 4, 1) facts <pure, rule = "t k -> n, r e; 2 = r"> tag <"preamble" P> : (!i) -> (!n, !c)
  %received = torch "piper.moe_exchange_counts.default"(%counts) facts <pure, rule = "r e -> r e"> tag <"preamble" P> : (!c) -> !c
  // CHECK: all_to_all %{{.*}} as "a.0 counts" on @ep {tag = #piper.tag<"a.0" F>}
  // L2: run @a.0$F(
  // L2: all_to_all {{.*}} as "a.0 counts"
  // L2: run @a.0$F1(
  // L2: run @b.0$F(
  %early = torch "aten.neg.default"(%received) facts <pure, rule = "a b -> a b"> tag <"b.0" F> : (!c) -> !c
  %h = torch "aten.mm.default"(%x, %e) facts <pure> tag <"a.0" F> : (!x, tensor<8x8xf32>) -> !x
  %arows = torch "piper.moe_permute.default"(%h, %order, 2) facts <pure, rule = "t d, n -> n d"> tag <"a.0" F> : (!x, !n) -> !r
  %ain = torch "piper.moe_dispatch.default"(%arows, %counts, %received) facts <pure, rule = "n d, r e, r e -> m d"> tag <"a.0" F> : (!r, !c, !c) -> !r
  %ag = torch "piper.moe_group.default"(%ain, %received) facts <pure, rule = "m d, r e -> m d"> tag <"a.0" F> : (!r, !c) -> !r
  %al = torch "piper.moe_linear.default"(%ag, %w, %received) facts <pure, rule = "m i, e o i, r e -> m o; sum i"> tag <"a.0" F> : (!r, !w, !c) -> !r
  %aungrouped = torch "piper.moe_ungroup.default"(%al, %received) facts <pure, rule = "m d, r e -> m d"> tag <"a.0" F> : (!r, !c) -> !r
  %aback = torch "piper.moe_collect.default"(%aungrouped, %counts, %received) facts <pure, rule = "m d, r e, r e -> n d"> tag <"a.0" F> : (!r, !c, !c) -> !r
  %y = torch "piper.moe_permute_backward.default"(%aback, %order, 2) facts <pure, rule = "n d, n -> t d"> tag <"a.0" F> : (!r, !n) -> !x
  %z = torch "mine.x.default"(%y) facts <pure, rule = "t d -> t d"> tag <"b.0" F> : (!x) -> !x
  output "early" %early : !c
  output "z" %z : !x
}

// -----

// Of two layers that share a sort, which may be elsewhere, each asks its host for
// sizes, once for both ways, of counts that it has.
!x = tensor<6x8xf32>
!r = tensor<12x8xf32>
!i = tensor<6x2xi64>
!n = tensor<12xi64>
!c = tensor<1x4xi64>
!w = tensor<4x8x8xf32>
piper.mesh @mesh [ep = 2 manual]
piper.state @embed parameter : tensor<8x8xf32>
piper.state @experts.w parameter : !w
piper.strategy @strategy mesh = @mesh {
  piper.do.shard <state = "experts.*"> axis = "ep" dim = 0
}
// CHECK-LABEL: piper.step @train
// L2-LABEL: piper.step @train
piper.step @train phase = captured mesh = @mesh inputs ["x", "index"] dims [0, 0] (%x: !x, %index: !i) {
  %e = read @embed : tensor<8x8xf32>
  %w = read @experts.w : !w
  %order, %counts = torch "piper.moe_sort.default"(%index, 4, 1) facts <pure, rule = "t k -> n, r e; 2 = r"> tag <"preamble" P> : (!i) -> (!n, !c)
  %received = torch "piper.moe_exchange_counts.default"(%counts) facts <pure, rule = "r e -> r e"> tag <"preamble" P> : (!c) -> !c
  // CHECK: %[[C:.*]] = torch "piper.moe_sort.default"{{.*}} tag <"a.0" F>
  // CHECK: %[[R:.*]] = all_to_all {{.*}} as "a.0 counts" on @ep {tag = #piper.tag<"a.0" F>}
  // CHECK: host_wait %{{.*}}, %[[R]] {tag = #piper.tag<"a.0" F>}
  // CHECK: all_to_all {{.*}} as "a.0 dispatch"
  // CHECK: all_to_all {{.*}} as "a.0 collect"
  // CHECK: %[[SENT:.*]] = torch "aten.clone.default"(%{{.*}} tag <"b.0" F>
  // CHECK: %[[CAME:.*]] = torch "aten.clone.default"(%[[R]], {{.*}} tag <"b.0" F>
  // CHECK: %[[S:.*]]:2 = host_wait %[[SENT]], %[[CAME]] {tag = #piper.tag<"b.0" F>}
  // CHECK: all_to_all %{{.*}} dim 0 sizes %[[S]]#0, %[[S]]#1 over ["ep"] as "b.0 dispatch"
  // CHECK-NOT: host_wait
  // CHECK: all_to_all %{{.*}} dim 0 sizes %[[S]]#1, %[[S]]#0 over ["ep"] as "b.0 collect"
  // L2: %[[B:.*]]:2 = run @b.0$F(
  // L2-NEXT: run @b.0$F1(
  // L2-NEXT: host_wait %[[B]]#{{.}}, %[[B]]#{{.}} :
  %h = torch "aten.mm.default"(%x, %e) facts <pure> tag <"a.0" F> : (!x, tensor<8x8xf32>) -> !x
  %arows = torch "piper.moe_permute.default"(%h, %order, 2) facts <pure, rule = "t d, n -> n d"> tag <"a.0" F> : (!x, !n) -> !r
  %ain = torch "piper.moe_dispatch.default"(%arows, %counts, %received) facts <pure, rule = "n d, r e, r e -> m d"> tag <"a.0" F> : (!r, !c, !c) -> !r
  %ag = torch "piper.moe_group.default"(%ain, %received) facts <pure, rule = "m d, r e -> m d"> tag <"a.0" F> : (!r, !c) -> !r
  %al = torch "piper.moe_linear.default"(%ag, %w, %received) facts <pure, rule = "m i, e o i, r e -> m o; sum i"> tag <"a.0" F> : (!r, !w, !c) -> !r
  %aungrouped = torch "piper.moe_ungroup.default"(%al, %received) facts <pure, rule = "m d, r e -> m d"> tag <"a.0" F> : (!r, !c) -> !r
  %aback = torch "piper.moe_collect.default"(%aungrouped, %counts, %received) facts <pure, rule = "m d, r e, r e -> n d"> tag <"a.0" F> : (!r, !c, !c) -> !r
  %y = torch "piper.moe_permute_backward.default"(%aback, %order, 2) facts <pure, rule = "n d, n -> t d"> tag <"a.0" F> : (!r, !n) -> !x
  %brows = torch "piper.moe_permute.default"(%y, %order, 2) facts <pure, rule = "t d, n -> n d"> tag <"b.0" F> : (!x, !n) -> !r
  %bin = torch "piper.moe_dispatch.default"(%brows, %counts, %received) facts <pure, rule = "n d, r e, r e -> m d"> tag <"b.0" F> : (!r, !c, !c) -> !r
  %bg = torch "piper.moe_group.default"(%bin, %received) facts <pure, rule = "m d, r e -> m d"> tag <"b.0" F> : (!r, !c) -> !r
  %bl = torch "piper.moe_linear.default"(%bg, %w, %received) facts <pure, rule = "m i, e o i, r e -> m o; sum i"> tag <"b.0" F> : (!r, !w, !c) -> !r
  %bungrouped = torch "piper.moe_ungroup.default"(%bl, %received) facts <pure, rule = "m d, r e -> m d"> tag <"b.0" F> : (!r, !c) -> !r
  %bback = torch "piper.moe_collect.default"(%bungrouped, %counts, %received) facts <pure, rule = "m d, r e, r e -> n d"> tag <"b.0" F> : (!r, !c, !c) -> !r
  %z = torch "piper.moe_permute_backward.default"(%bback, %order, 2) facts <pure, rule = "n d, n -> t d"> tag <"b.0" F> : (!r, !n) -> !x
  output "z" %z : !x
}

// -----

// An exchange that is there already keeps a label which does not name its chunk.
!x = tensor<4x8xf32>
piper.mesh @mesh [ep = 2 manual]
piper.stream @ep
// CHECK-LABEL: piper.step @train
// L2-LABEL: piper.step @train
piper.step @train phase = captured mesh = @mesh inputs ["x"] dims [0] (%x: !x) {
  // CHECK: all_to_all %{{.*}} as "mine" on @ep {tag = #piper.tag<"a.0" F>}
  // CHECK: all_to_all %{{.*}} as "a.0 mine" on @ep {tag = #piper.tag<"a.0" F>}
  // L2: all_to_all %{{.*}} as "mine"
  // L2: all_to_all %{{.*}} as "a.0 mine"
  %n = torch "aten.neg.default"(%x) facts <pure, rule = "a b -> a b"> tag <"preamble" P> : (!x) -> !x
  %a = all_to_all %n dim 0 over ["ep"] as "mine" on @ep {tag = #piper.tag<"preamble" P>} : !x -> !x
  %b = all_to_all %n dim 1 over ["ep"] as "preamble mine" on @ep {tag = #piper.tag<"preamble" P>} : !x -> !x
  %y = torch "aten.add.Tensor"(%a, %b) facts <pure, rule = "a b, a b -> a b"> tag <"a.0" F> : (!x, !x) -> !x
  output "y" %y : !x
}
