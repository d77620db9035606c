// A tied embedding and head of seven words: each of two ranks has four rows of the table, the last of
// which is padding. Rules name the ops that take parts where others need the whole.

// RUN: piper-opt %s -split-input-file --piper-shard --piper-partition | FileCheck %s

!i = tensor<6xi64>
!x = tensor<6x8xf32>
!e = tensor<7x8xf32>
!l = tensor<6x7xf32>
piper.mesh @mesh [tp = 2 auto]
// CHECK: piper.state @embed.weight parameter : !f32_7x8 layout <tp = shard(0)>
piper.state @embed.weight parameter : !e
piper.strategy @strategy mesh = @mesh {
  piper.do.shard <state = "embed.weight"> axis = "tp" dim = 0
}
// CHECK-LABEL: piper.step @train
piper.step @train phase = captured mesh = @mesh inputs ["ids"] dims [0] (%ids: !i) {
  // CHECK-DAG: %[[INDEX:.*]] = read @tp$index : !i64_1
  // CHECK-DAG: %[[TABLE:.*]] = read @embed.weight : !f32_4x8
  %e = read @embed.weight : !e
  %t = tangent "loss" coeff 1.0 examples 6 -> tensor<f32>
  // Rows of other parts are zeros, so that what is looked up are terms.
  // CHECK: %[[ROWS:.*]] = torch "piper.embedding_part.default"(%[[TABLE]], %ids, arg "index" = %[[INDEX]], arg "parts" = 2, arg "size" = 7) facts <pure, flops = 48, rule = "v w, a, 1 -> a w; sum v, v at 2"> {{.*}} -> !f32_6x8
  // CHECK: %[[X:.*]] = all_reduce %[[ROWS]] over ["tp"] as "embed.0 reduce" on @tp
  // CHECK-NOT: all_gather
  // CHECK: %[[LOGITS:.*]] = torch "aten.mm.default"(%[[X]], {{.*}} -> !f32_6x4
  %x = torch "aten.embedding.default"(%e, %ids) facts <pure, flops = 48, rule = "v w, a -> a w; v by piper.embedding_part.default"> tag <"embed.0" F> : (!e, !i) -> !x
  %et = torch "aten.t.default"(%e) facts <view, rule = "a b -> b a; linear"> tag <"head.0" F> : (!e) -> tensor<8x7xf32>
  %y = torch "aten.mm.default"(%x, %et) facts <pure, flops = 1536, heavy, rule = "m k, k n -> m n; sum k"> tag <"head.0" F> : (!x, tensor<8x7xf32>) -> !l
  // A number of each row and rank is gathered, of fp32.
  // CHECK-NEXT: %[[STATS:.*]] = torch "piper.log_sum_exp_part.default"(%[[LOGITS]], 1, false, arg "index" = %[[INDEX]], {{.*}} rule = "a c, 1 -> a c; c at 1"> {{.*}} -> !f32_6x1
  // CHECK-NEXT: %[[ALL:.*]] = all_gather %[[STATS]] dim 1 over ["tp"] as "head.0 gather" on @tp {{.*}} -> !f32_6x2
  // CHECK-NEXT: %[[P:.*]] = torch "piper.log_softmax_part.default"(%[[LOGITS]], 1, false, arg "index" = %[[INDEX]], arg "parts" = 2, arg "size" = 7, arg "stats" = %[[ALL]]) {{.*}} rule = "a c, 1, a cs -> a c; c at 1"> {{.*}} -> !f32_6x4
  %p = torch "aten._log_softmax.default"(%y, 1, false) facts <pure, flops = 42, rule = "a c -> a d; c d by piper.log_softmax_part.default after piper.log_sum_exp_part.default"> tag <"head.0" F> : (!l) -> !l
  // The loss is a term. How many labels count all ranks know.
  // CHECK: %[[LOSS:.*]]:2 = torch "piper.nll_loss_part.default"(%[[P]], %ids, {{.*}} rule = "a c, a, 1 -> , ; sum a, sum c but 1, c at 2">
  // CHECK-NEXT: all_reduce %[[LOSS]]#0 over ["tp"] as "head.0 reduce"
  // CHECK-NOT: all_reduce
  %l:2 = torch "aten.nll_loss_forward.default"(%p, %ids, #piper.const<"None">, 2, -100) facts <pure, flops = 6, rule = "a c, a -> , ; sum a, c by piper.nll_loss_part.default same 1"> tag <"head.0" F> : (!l, !i) -> (tensor<f32>, tensor<f32>)
  output "loss" %l#0 scale %t : tensor<f32>, tensor<f32>
  // CHECK: %[[DP:.*]] = torch "piper.nll_loss_backward_part.default"({{.*}}%[[P]], %ids, {{.*}}%[[LOSS]]#1, {{.*}} -> !f32_6x4
  %dp = torch "aten.nll_loss_backward.default"(%t, %p, %ids, #piper.const<"None">, 2, -100, %l#1) facts <pure, flops = 6, rule = ", a c, a,  -> a d; c d by piper.nll_loss_backward_part.default"> tag <"head.0" B> : (tensor<f32>, !l, !i, tensor<f32>) -> !l
  // CHECK: torch "piper.sum_part.default"(%[[DP]], %[[P]],
  // CHECK-NEXT: all_gather {{.*}} dim 1 {{.*}} -> !f32_6x2
  // CHECK-NEXT: %[[DY:.*]] = torch "piper.log_softmax_backward_part.default"(%[[DP]], %[[P]],
  %dy = torch "aten._log_softmax_backward_data.default"(%dp, %p, 1, f32) facts <pure, flops = 42, rule = "a c, a d -> a e; c d e by piper.log_softmax_backward_part.default after piper.sum_part.default"> tag <"head.0" B> : (!l, !l) -> !l
  %dyt = torch "aten.t.default"(%dy) facts <view, rule = "a b -> b a; linear"> tag <"head.0" B> : (!l) -> tensor<7x6xf32>
  // A gradient has zeros for padding.
  // CHECK: %[[DW:.*]] = torch "aten.mm.default"({{.*}} -> !f32_4x8
  // CHECK-NEXT: %[[CLEAR:.*]] = torch "piper.clear_padding.default"(%[[DW]], 0, arg "index" = %[[INDEX]], arg "parts" = 2, arg "size" = 7) {{.*}} rule = "p d1, 1 -> p d1; p at 1">
  // CHECK-NEXT: grad @embed.weight %[[CLEAR]] {{.*}} : !f32_4x8
  %dw = torch "aten.mm.default"(%dyt, %x) facts <pure, flops = 1536, heavy, rule = "m k, k n -> m n; sum k"> tag <"head.0" B> : (tensor<7x6xf32>, !x) -> !e
  grad @embed.weight %dw tag <"head.0" B> : !e
  // So have both operands of this product, which sums over it.
  // CHECK-NEXT: %[[TERMS:.*]] = torch "aten.mm.default"(%[[DY]], %[[TABLE]]) {{.*}} -> !f32_6x8
  // CHECK-NEXT: %[[DX:.*]] = all_reduce %[[TERMS]]
  %dx = torch "aten.mm.default"(%dy, %e) facts <pure, flops = 1536, heavy, rule = "m k, k n -> m n; sum k"> tag <"head.0" B> : (!l, !e) -> !x
  // Its size is that of the part.
  // CHECK-NEXT: %[[DE:.*]] = torch "piper.embedding_backward_part.default"(%[[DX]], %ids, 4, -1, false, {{.*}} rule = "a w, a, 1 -> v w; 2 = v, sum a, v at 2"> {{.*}} -> !f32_4x8
  // CHECK-NEXT: grad @embed.weight %[[DE]]
  %de = torch "aten.embedding_dense_backward.default"(%dx, %ids, 7, -1, false) facts <pure, flops = 256, rule = "a w, a -> v w; sum a, 2 = v, v by piper.embedding_backward_part.default"> tag <"embed.0" B> : (!x, !i) -> !e
  grad @embed.weight %de tag <"embed.0" B> : !e
}

// -----

// With a sequence directive what is looked up is scattered.
!i = tensor<6xi64>
!x = tensor<6x8xf32>
!e = tensor<8x8xf32>
piper.mesh @mesh [tp = 2 auto]
piper.state @embed.weight parameter : !e
piper.strategy @strategy mesh = @mesh {
  piper.do.shard <state = "embed.weight"> axis = "tp" dim = 0
  piper.do.sequence axis = "tp" dims = {ids = 0}
}
// CHECK-LABEL: piper.step @train
piper.step @train phase = captured mesh = @mesh inputs ["ids"] dims [0] (%ids: !i) {
  %e = read @embed.weight : !e
  // CHECK: %[[ROWS:.*]] = torch "piper.embedding_part.default"
  // CHECK: %[[X:.*]] = reduce_scatter %[[ROWS]] dim 0 over ["tp"] as "embed.0 scatter" {{.*}} -> !f32_3x8
  // CHECK: torch "aten.relu.default"(%[[X]])
  %x = torch "aten.embedding.default"(%e, %ids) facts <pure, flops = 48, rule = "v w, a -> a w; v by piper.embedding_part.default"> tag <"embed.0" F> : (!e, !i) -> !x
  %y = torch "aten.relu.default"(%x) facts <pure, rule = "a b -> a b"> tag <"layer.0" F> : (!x) -> !x
  output "y" %y : !x
}

// -----

// A loss of each label is a term of each: a number per row is summed before what is not linear.
!i = tensor<6xi64>
!n = tensor<6xf32>
!x = tensor<6x8xf32>
!l = tensor<6x7xf32>
piper.mesh @mesh [tp = 2 auto]
piper.state @head parameter : tensor<8x7xf32>
piper.strategy @strategy mesh = @mesh {
  piper.do.shard <state = "head"> axis = "tp" dim = 1
}
// CHECK-LABEL: piper.step @train
piper.step @train phase = captured mesh = @mesh inputs ["x", "labels"] dims [0, 0] (%x: !x, %labels: !i) {
  %w = read @head : tensor<8x7xf32>
  %t = tangent "loss" coeff 1.0 examples 6 -> tensor<f32>
  // CHECK: %[[LOGITS:.*]] = torch "aten.mm.default"{{.*}} -> !f32_6x4
  // CHECK-NEXT: %[[LOSS:.*]]:2 = torch "piper.nll_loss_part.default"(%[[LOGITS]], %labels, {{.*}}, 0, -100, {{.*}} -> (!f32_6, !f32_scalar)
  // CHECK-NEXT: %[[SUM:.*]] = all_reduce %[[LOSS]]#0 over ["tp"] as "head.0 reduce"
  // CHECK-NEXT: torch "aten.relu.default"(%[[SUM]])
  %y = torch "aten.mm.default"(%x, %w) facts <pure, rule = "m k, k n -> m n; sum k"> tag <"head.0" F> : (!x, tensor<8x7xf32>) -> !l
  %l:2 = torch "aten.nll_loss_forward.default"(%y, %labels, #piper.const<"None">, 0, -100) facts <pure, rule = "a c, a -> a, ; c by piper.nll_loss_part.default same 1"> tag <"head.0" F> : (!l, !i) -> (!n, tensor<f32>)
  %r = torch "aten.relu.default"(%l#0) facts <pure, rule = "a -> a"> tag <"head.0" F> : (!n) -> !n
  %s = torch "aten.sum.default"(%r) facts <pure, rule = "a -> ; linear, sum a"> tag <"head.0" F> : (!n) -> tensor<f32>
  output "loss" %s scale %t : tensor<f32>, tensor<f32>
  // CHECK: %[[DY:.*]] = torch "piper.nll_loss_backward_part.default"({{.*}}%[[LOGITS]], %labels, {{.*}}, 0, -100, %[[LOSS]]#1, {{.*}} -> !f32_6x4
  // CHECK: torch "aten.mm.default"({{.*}}, %[[DY]]) {{.*}} -> !f32_8x4
  %dn = torch "aten.expand.default"(%t, [6]) facts <view, strided, rule = " -> a; linear, 1.0 = a"> tag <"head.0" B> : (tensor<f32>) -> !n
  %dr = torch "aten.threshold_backward.default"(%dn, %r, 0) facts <pure, rule = "a, a -> a"> tag <"head.0" B> : (!n, !n) -> !n
  %dy = torch "aten.nll_loss_backward.default"(%dr, %y, %labels, #piper.const<"None">, 0, -100, %l#1) facts <pure, rule = "a, a c, a,  -> a d; c d by piper.nll_loss_backward_part.default"> tag <"head.0" B> : (!n, !l, !i, tensor<f32>) -> !l
  %xt = torch "aten.t.default"(%x) facts <view, rule = "a b -> b a; linear"> tag <"head.0" B> : (!x) -> tensor<8x6xf32>
  %dw = torch "aten.mm.default"(%xt, %dy) facts <pure, rule = "m k, k n -> m n; sum k"> tag <"head.0" B> : (tensor<8x6xf32>, !l) -> tensor<8x7xf32>
  grad @head %dw tag <"head.0" B> : tensor<8x7xf32>
}

// -----

// Seven features of which ranks have four: what a nonlinearity makes of padding is cleared before a
// sum over it, and cut off behind a gather.
!x = tensor<6x8xf32>
!h = tensor<6x7xf32>
piper.mesh @mesh [tp = 2 auto]
piper.state @up parameter : tensor<8x7xf32>
piper.state @down parameter : tensor<7x8xf32>
piper.strategy @strategy mesh = @mesh {
  piper.do.shard <state = "up"> axis = "tp" dim = 1
  piper.do.shard <state = "down"> axis = "tp" dim = 0
}
// CHECK-LABEL: piper.step @train
piper.step @train phase = captured mesh = @mesh inputs ["x"] dims [0] (%x: !x) {
  // CHECK-DAG: %[[DOWN:.*]] = read @down : !f32_4x8
  %up = read @up : tensor<8x7xf32>
  %down = read @down : tensor<7x8xf32>
  %h = torch "aten.mm.default"(%x, %up) facts <pure, rule = "m k, k n -> m n; sum k"> tag <"layer.0" F> : (!x, tensor<8x7xf32>) -> !h
  // CHECK: %[[COS:.*]] = torch "aten.cos.default"{{.*}} -> !f32_6x4
  // CHECK-NEXT: %[[CLEAR:.*]] = torch "piper.clear_padding.default"(%[[COS]], 1,
  // CHECK-NEXT: %[[TERM:.*]] = torch "aten.mm.default"(%[[CLEAR]], %[[DOWN]]) {{.*}} -> !f32_6x8
  %c = torch "aten.cos.default"(%h) facts <pure, rule = "a b -> a b"> tag <"layer.0" F> : (!h) -> !h
  %y = torch "aten.mm.default"(%c, %down) facts <pure, rule = "m k, k n -> m n; sum k"> tag <"layer.0" F> : (!h, tensor<7x8xf32>) -> !x
  // CHECK-NEXT: %[[ALL:.*]] = all_gather %[[COS]] dim 1 {{.*}} -> !f32_6x8
  // CHECK-NEXT: %[[CUT:.*]] = torch "aten.slice.Tensor"(%[[ALL]], 1, 0, 7) facts <view, strided, rule = "d0 d1 -> d0 w; linear"> {{.*}} -> !f32_6x7
  // CHECK-NEXT: torch "aten.cumsum.default"(%[[CUT]], 1)
  %s = torch "aten.cumsum.default"(%c, 1) facts <pure, rule = "a c -> a d"> tag <"layer.0" F> : (!h) -> !h
  output "s" %s : !h
  output "y" %y : !x
}
