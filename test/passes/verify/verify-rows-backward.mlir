// Rows of a forward pass and gradients of rows, each where it belongs: rows are
// sent, multiplied twice with a nonlinear op between, and sent back; then the
// backward pass sends gradients the same two ways.
// DEFINE: %{edit} = sed -e '/^\/\//d'
// DEFINE: %{verify} = piper-opt --piper-verify | FileCheck %s
// RUN: piper-opt --piper-verify %s | FileCheck %s --check-prefix=WHOLE
// WHOLE: piper.step @train

// Of what the forward pass has not made nothing is known: a rounded copy of rows,
// gradients to which a backward function of the user's adds rows, or which it makes
// of nothing.
// RUN: %{edit} -e '/%du = torch/{h; s/.*/  %z = torch "aten.round.default"(%g) facts <pure> : (!k) -> !k/; p; g; s/%g/%z/}' %s | %{verify} --check-prefix=ROUNDED
// ROUNDED: torch "aten.round.default"
// RUN: %{edit} -e '/%ds = torch/{s/%ds/%dz/; p; s/.*/  %ds = torch "aten.add.Tensor"(%dz, %v) facts <pure> : (!k, !k) -> !k/}' %s | %{verify} --check-prefix=ADDED
// ADDED: torch "aten.add.Tensor"
// RUN: %{edit} -e '/%dy = torch/{s/.*/  %z = torch "aten.zeros_like.default"(%g) facts <pure> : (!k) -> !k/; p; s/.*/  %dy = torch "aten.atan2.default"(%z, %g) facts <pure> : (!k, !k) -> !k/}' %s | %{verify} --check-prefix=ZEROS
// ZEROS: torch "aten.atan2.default"

// A sum of rows that stands in the forward pass, as no gradient.
// RUN: %{edit} -e 's/"piper.moe_unpermute.default"(%r, %n, %m) facts <pure> : (!r, !n, !p)/"piper.moe_permute_backward.default"(%r, %n, 2) facts <pure> : (!r, !n)/' %s | %{verify} --check-prefix=SUMMED
// SUMMED-COUNT-2: torch "piper.moe_permute_backward.default"

// Rows that the forward pass has kept otherwise, and no weight multiplies.
// RUN: %{edit} -e '/%f = run/s/%e#0/%e#1/' %s | %{verify} --check-prefix=OTHERWISE
// OTHERWISE: run @a.0$B1(%{{[^,]*}}, %{{[^,]*}}, %[[H:.*]], %[[H]],

// What stands for a gradient in a forward pass, and is computed again.
// RUN: %{edit} -e 's/"aten.silu.default"(%h) facts <pure> : (!k)/"aten.silu_backward.default"(%h, %h) facts <pure> : (!k, !k)/' \
// RUN:     -e '/%dd = torch/{h; s/.*/  %v2 = torch "aten.silu_backward.default"(%h, %h) facts <pure> : (!k, !k) -> !k/; p; g; s/%v/%v2/}' %s | %{verify} --check-prefix=AGAIN
// AGAIN-COUNT-3: torch "aten.silu_backward.default"

// Experts add rows to what they make of them: gradients may go back by that alone.
// RUN: %{edit} -e '/%o = torch .*(%y/{h; s/.*/  %a = torch "aten.add.Tensor"(%y, %g) facts <pure> : (!k, !k) -> !k/; p; g; s/%y/%a/}' \
// RUN:     -e '/%do = all_to_all/s/%f/%dr/' %s | %{verify} --check-prefix=EXPERTS
// EXPERTS: torch "aten.add.Tensor"

// So does whoever sends them, to what came back: gradients may stay.
// RUN: %{edit} -e 's/@join(%r: !r,/@join(%o: !r, %a: !r,/; s/@a.0$F2 pass = F (%r: !r,/@a.0$F2 pass = F (%r: !r, %a: !r,/' \
// RUN:     -e '/moe_unpermute.default/{h; s/.*/  %r = torch "aten.add.Tensor"(%o, %a) facts <pure> : (!r, !r) -> !r/; p; g}' \
// RUN:     -e 's/@join(%r, %n, %m) on @compute : (!r,/@join(%r, %a, %n, %m) on @compute : (!r, !r,/' \
// RUN:     -e 's/@a.0$F2(%o, %a#1, %m) : (!r,/@a.0$F2(%o, %a#0, %a#1, %m) : (!r, !r,/; /%dx:2 = run/s/%do/%b#0/' %s | %{verify} --check-prefix=SENDER
// SENDER: torch "aten.add.Tensor"

// Beside what experts make of them rows go back as they came: gradients may do so alone.
// RUN: %{edit} -e '/%o = all_to_all/{p; s/%o/%q/; s/%e#3/%in/}' -e '/%do = all_to_all/s/%f/%dr/' %s | %{verify} --check-prefix=COLLECTED
// COLLECTED-COUNT-3: as "a.0 collect"

// So are tokens joined from rows that were sent, beside those that came back.
// RUN: %{edit} -e '/%y = run/{p; s/%y/%q/; s/%o/%a#0/}' -e '/%dx:2 = run/{s/%do/%b#0/; s/%o)/%a#0)/}' %s | %{verify} --check-prefix=SORTED
// SORTED-COUNT-2: run @a.0$F2(

// An op of torch's whose first operand is no gradient.
// RUN: %{edit} -e 's/"aten.silu_backward.default"(%ds, %h)/"aten.linear_backward.default"(%h, %ds)/' %s | %{verify} --check-prefix=LINEAR
// LINEAR: torch "aten.linear_backward.default"

!x = tensor<6x8xf32>
!r = tensor<12x8xf32>
!q = tensor<?x8xf32, #piper.layout<bound = 24, expect = 12>>
!k = tensor<?x8xf32>
!w = tensor<2x8x8xf32>
!i = tensor<6x2xi64>
!n = tensor<12xi64>
!c = tensor<2x2xi64>
!p = tensor<6x2xf32>
piper.mesh @mesh [ep = 2 manual]
piper.stream @compute
piper.stream @ep
piper.state @up parameter : !w
piper.state @down parameter : !w
piper.kernel @sort(%x: !x, %i: !i) -> (!r, !n, !c) {
  %order, %c = torch "piper.moe_sort.default"(%i, 4, 2) facts <pure> : (!i) -> (!n, !c)
  %r = torch "piper.moe_permute.default"(%x, %order, 2) facts <pure> : (!x, !n) -> !r
  return %r, %order, %c : !r, !n, !c
}
piper.chunk @a.0$F pass = F (%x: !x, %i: !i) -> (!r, !n, !c) {
  %0:3 = launch @sort(%x, %i) on @compute : (!x, !i) -> (!r, !n, !c)
  return %0#0, %0#1, %0#2 : !r, !n, !c
}
piper.kernel @experts(%r: !k, %u: !w, %d: !w, %c: !c) -> (!k, !k, !k, !k) {
  %g = torch "piper.moe_group.default"(%r, %c) facts <pure> : (!k, !c) -> !k
  %h = torch "piper.moe_linear.default"(%g, %u, %c) facts <pure> : (!k, !w, !c) -> !k
  %v = torch "aten.silu.default"(%h) facts <pure> : (!k) -> !k
  %y = torch "piper.moe_linear.default"(%v, %d, %c) facts <pure> : (!k, !w, !c) -> !k
  %o = torch "piper.moe_ungroup.default"(%y, %c) facts <pure> : (!k, !c) -> !k
  return %g, %h, %v, %o : !k, !k, !k, !k
}
piper.chunk @a.0$F1 pass = F (%r: !q, %c: !c) -> (!q, !q, !q, !q) {
  %u = read @up : !w
  %d = read @down : !w
  %0:4 = launch @experts(%r, %u, %d, %c) on @compute : (!q, !w, !w, !c) -> (!q, !q, !q, !q)
  return %0#0, %0#1, %0#2, %0#3 : !q, !q, !q, !q
}
piper.kernel @join(%r: !r, %n: !n, %m: !p) -> !x {
  %0 = torch "piper.moe_unpermute.default"(%r, %n, %m) facts <pure> : (!r, !n, !p) -> !x
  return %0 : !x
}
piper.chunk @a.0$F2 pass = F (%r: !r, %n: !n, %m: !p) -> !x {
  %0 = launch @join(%r, %n, %m) on @compute : (!r, !n, !p) -> !x
  return %0 : !x
}
piper.kernel @scale(%t: tensor<f32>, %n: !n, %m: !p) -> (!r, !x) {
  %0 = torch "aten.expand.default"(%t, [6, 8]) facts <view> : (tensor<f32>) -> !x
  %1 = torch "aten.clone.default"(%0) facts <pure> : (!x) -> !x
  %2 = torch "piper.moe_unpermute_rows.default"(%1, %n, %m) facts <pure> : (!x, !n, !p) -> !r
  return %2, %1 : !r, !x
}
piper.chunk @a.0$B pass = B of @a.0$F2 (%t: tensor<f32>, %n: !n, %m: !p) -> (!r, !x) {
  %0:2 = launch @scale(%t, %n, %m) on @compute : (tensor<f32>, !n, !p) -> (!r, !x)
  return %0#0, %0#1 : !r, !x
}
piper.kernel @back(%dr: !k, %r: !k, %g: !k, %h: !k, %v: !k, %u: !w, %d: !w, %c: !c) -> (!k, !w, !w) {
  %dy = torch "piper.moe_group.default"(%dr, %c) facts <pure> : (!k, !c) -> !k
  %ds = torch "piper.moe_linear_input.default"(%dy, %d, %c) facts <pure> : (!k, !w, !c) -> !k
  %dd = torch "piper.moe_linear_weight.default"(%dy, %v, %c) facts <pure> : (!k, !k, !c) -> !w
  %dh = torch "aten.silu_backward.default"(%ds, %h) facts <pure> : (!k, !k) -> !k
  %dg = torch "piper.moe_linear_input.default"(%dh, %u, %c) facts <pure> : (!k, !w, !c) -> !k
  %du = torch "piper.moe_linear_weight.default"(%dh, %g, %c) facts <pure> : (!k, !k, !c) -> !w
  %o = torch "piper.moe_ungroup.default"(%dg, %c) facts <pure> : (!k, !c) -> !k
  return %o, %du, %dd : !k, !w, !w
}
piper.chunk @a.0$B1 pass = B of @a.0$F1 (%dr: !q, %r: !q, %g: !q, %h: !q, %v: !q, %c: !c) -> !q {
  %u = read @up : !w
  %d = read @down : !w
  %0:3 = launch @back(%dr, %r, %g, %h, %v, %u, %d, %c) on @compute : (!q, !q, !q, !q, !q, !w, !w, !c) -> (!q, !w, !w)
  grad @up %0#1 : !w
  grad @down %0#2 : !w
  return %0#0 : !q
}
piper.kernel @unsort(%dr: !r, %n: !n, %dy: !x, %r: !r) -> (!x, !p) {
  %0 = torch "piper.moe_permute_backward.default"(%dr, %n, 2) facts <pure> : (!r, !n) -> !x
  %1 = torch "piper.moe_unpermute_weights.default"(%dy, %r, %n, 2) facts <pure> : (!x, !r, !n) -> !p
  return %0, %1 : !x, !p
}
piper.chunk @a.0$B2 pass = B of @a.0$F (%dr: !r, %n: !n, %dy: !x, %r: !r) -> (!x, !p) {
  %0:2 = launch @unsort(%dr, %n, %dy, %r) on @compute : (!r, !n, !x, !r) -> (!x, !p)
  return %0#0, %0#1 : !x, !p
}
piper.step @train phase = outlined mesh = @mesh inputs ["x", "i", "p"] dims [0, 0, 0] (%x: !x, %i: !i, %m: !p) {
  %a:3 = run @a.0$F(%x, %i) : (!x, !i) -> (!r, !n, !c)
  %c = all_to_all %a#2 dim 0 over ["ep"] as "a.0 counts" on @ep : !c -> !c
  %z:2 = host_wait %a#2, %c : !c, !c -> !piper.sizes, !piper.sizes
  %in = all_to_all %a#0 dim 0 sizes %z#0, %z#1 over ["ep"] as "a.0 dispatch" on @ep : !r -> !q
  %e:4 = run @a.0$F1(%in, %c) : (!q, !c) -> (!q, !q, !q, !q)
  %o = all_to_all %e#3 dim 0 sizes %z#1, %z#0 over ["ep"] as "a.0 collect" on @ep : !q -> !r
  %y = run @a.0$F2(%o, %a#1, %m) : (!r, !n, !p) -> !x
  output "y" %y : !x
  %t = tangent "y" coeff 1.0 examples 6 -> tensor<f32>
  %b:2 = run @a.0$B(%t, %a#1, %m) : (tensor<f32>, !n, !p) -> (!r, !x)
  %dr = all_to_all %b#0 dim 0 sizes %z#0, %z#1 over ["ep"] as "a.0 dispatch" on @ep : !r -> !q
  %f = run @a.0$B1(%dr, %in, %e#0, %e#1, %e#2, %c) : (!q, !q, !q, !q, !q, !c) -> !q
  %do = all_to_all %f dim 0 sizes %z#1, %z#0 over ["ep"] as "a.0 collect" on @ep : !q -> !r
  %dx:2 = run @a.0$B2(%do, %a#1, %b#1, %o) : (!r, !n, !x, !r) -> (!x, !p)
}
