// Gradients where rows of the forward pass belong, and rows where gradients do.
// The layer is that of verify-rows-backward.mlir.
// DEFINE: %{input} = %S/verify-rows-backward.mlir
// DEFINE: %{edit} = sed -e '/^\/\//d'
// DEFINE: %{refuse} = not piper-opt --piper-verify 2>&1 | FileCheck %s

// Rows of the forward pass, which the backward pass sends to experts instead of
// gradients: the first product wants gradients.
// RUN: %{edit} -e '/%dr = all_to_all/s/%b#0/%a#0/' %{input} | %{refuse} --check-prefix=SENT
// SENT: piper.moe_linear_input.default expected a gradient as operand 0, got a value of the forward pass

// A product of gradients.
// RUN: %{edit} -e '/%ds = torch/{s/%ds/%dz/; p; s/.*/  %ds = torch "aten.mul.Tensor"(%dz, %dz) facts <pure> : (!k, !k) -> !k/}' %{input} | %{refuse} --check-prefix=PRODUCT
// PRODUCT: aten.silu_backward.default expected a gradient as operand 0, got a product of gradients

// Gradients instead of rows that were kept.
// RUN: %{edit} -e '/%f = run/s/%e#0/%dr/' %{input} | %{refuse} --check-prefix=KEPT
// KEPT: piper.moe_linear_weight.default expected a value of the forward pass as operand 1, got a gradient

// Experts are skipped: rows that went to them go back,
// RUN: %{edit} -e '/%o = all_to_all/s/%e#3/%in/' %{input} | %{refuse} --check-prefix=SKIPPED
// SKIPPED: 'piper.all_to_all' op expected rows that experts multiplied, got rows as they came, which go to them: collect what {{moe_linear|moe_linear_input}} makes of these, alone or beside them
// SKIPPED: note: experts multiply them here

// or gradients do.
// RUN: %{edit} -e '/%do = all_to_all/s/%f/%dr/' %{input} | %{refuse} --check-prefix=SKIPPED

// Tokens are joined from rows that were never sent,
// RUN: %{edit} -e '/%y = run/s/%o/%a#0/' %{input} | %{refuse} --check-prefix=UNSENT
// UNSENT: piper.moe_unpermute{{.*}}.default expected rows that came back, got rows as they are sorted before they are sent: join what moe_collect gives, alone or beside these

// which no forward pass has done, either, when weights get their gradients.
// RUN: %{edit} -e '/%dx:2 = run/s/%o)/%a#0)/' %{input} | %{refuse} --check-prefix=UNSENT

// from rows of the forward pass instead of gradients,
// RUN: %{edit} -e '/%dx:2 = run/s/%do/%o/' %{input} | %{refuse} --check-prefix=JOINED
// JOINED: piper.moe_permute_backward.default expected a gradient as operand 0, got a value of the forward pass

// or weights from gradients instead of rows.
// RUN: %{edit} -e '/%dx:2 = run/s/%o)/%do)/' %{input} | %{refuse} --check-prefix=WEIGHTS
// WEIGHTS: piper.moe_unpermute_weights.default expected a value of the forward pass as operand 1, got a gradient

// Rows that another weight multiplied.
// RUN: %{edit} -e '/%f = run/s/%e#0/%e#2/' %{input} | %{refuse} --check-prefix=ROWS
// ROWS: 'piper.grad' op expected a sum over rows that the state multiplied, got one over those of other states
// ROWS: note: it is made here

// Gradients of what another weight made.
// RUN: %{edit} -e '/%du = torch/s/%dh/%dy/' %{input} | %{refuse} --check-prefix=OTHERS
// OTHERS: 'piper.grad' op expected a sum over gradients of what the state made, got one over those of other states
// OTHERS: note: it is made here
