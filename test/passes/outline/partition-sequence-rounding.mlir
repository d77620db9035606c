// Terms of a sum over positions are rounded from a floating dtype to another, each on its rank,
// before ranks sum them: the gradient of a weight that a norm uses in float32, and a loss.

// RUN: piper-opt %s --piper-partition | FileCheck %s

!x = tensor<3x4x8xbf16>
!x32 = tensor<3x4x8xf32>
!w = tensor<8xbf16>
!w32 = tensor<8xf32>
piper.mesh @mesh [pp = 1 unrolled, cp = 2 manual]
piper.state @weight parameter : !w
piper.schedule @order axis = "pp" stages = 1 microbatches = 1 ["0F0 0B0"]
piper.strategy @strategy mesh = @mesh {
  piper.do.place <all> stages = 1 axis = "pp"
  piper.do.split microbatches = 1 dims = {x = 0}
  piper.do.sequence axis = "cp" dims = {x = 1}
  piper.do.replicate <all> axes = ["cp"] zero = 0 bucket = 25000000 reduce = "last"
  piper.do.order @order
}

// CHECK-LABEL: piper.step @train
piper.step @train phase = captured mesh = @mesh inputs ["x"] dims [0] (%x: !x) {
  %w = read @weight : !w
  %t = tangent "loss" coeff 1.0 examples 6 -> tensor<f32>
  %x32 = torch "aten._to_copy.default"(%x, dtype = f32) facts <pure, rule = "a b c -> a b c; linear"> tag <"a.0" F> : (!x) -> !x32
  %w32 = torch "aten._to_copy.default"(%w, dtype = f32) facts <pure, rule = "a -> a; linear"> tag <"a.0" F> : (!w) -> !w32
  %y = torch "aten.mul.Tensor"(%x32, %w32) facts <pure, rule = "a b c, c -> a b c"> tag <"a.0" F> : (!x32, !w32) -> !x32

  // The loss, in 16 bits and back.
  // CHECK: %[[SUM:.*]] = torch "aten.sum.default"
  // CHECK-NEXT: %[[NARROW:.*]] = torch "aten._to_copy.default"(%[[SUM]], dtype = bf16)
  // CHECK-NEXT: %[[WIDE:.*]] = torch "aten._to_copy.default"(%[[NARROW]], dtype = f32)
  // CHECK-NEXT: output "loss" %[[WIDE]]
  %sum = torch "aten.sum.default"(%y) facts <pure, rule = "a b c -> ; linear, sum a, sum b, sum c"> tag <"a.0" F> : (!x32) -> tensor<f32>
  %narrow = torch "aten._to_copy.default"(%sum, dtype = bf16) facts <pure, rule = " -> "> tag <"a.0" F> : (tensor<f32>) -> tensor<bf16>
  %wide = torch "aten._to_copy.default"(%narrow, dtype = f32) facts <pure, rule = " -> ; linear"> tag <"a.0" F> : (tensor<bf16>) -> tensor<f32>
  output "loss" %wide scale %t : tensor<f32>, tensor<f32>

  // The gradient, summed over positions of the rank in float32; the sum over ranks comes later.
  // CHECK: %[[TERM:.*]] = torch "aten.sum.dim_IntList"
  // CHECK-NEXT: %[[ROUNDED:.*]] = torch "aten._to_copy.default"(%[[TERM]], dtype = bf16)
  // CHECK-NEXT: grad @weight %[[ROUNDED]]
  %dy = torch "aten.expand.default"(%t, [3, 4, 8]) facts <view, strided, rule = " -> a b c; linear, 1.0 = a, 1.1 = b, 1.2 = c"> tag <"a.0" B> : (tensor<f32>) -> !x32
  %dw = torch "aten.mul.Tensor"(%dy, %x32) facts <pure, rule = "a b c, a b c -> a b c"> tag <"a.0" B> : (!x32, !x32) -> !x32
  %term = torch "aten.sum.dim_IntList"(%dw, [0, 1]) facts <pure, rule = "a b c -> c; linear, sum a, sum b"> tag <"a.0" B> : (!x32) -> !w32
  %rounded = torch "aten._to_copy.default"(%term, dtype = bf16) facts <pure, rule = "a -> a"> tag <"a.0" B> : (!w32) -> !w
  grad @weight %rounded tag <"a.0" B> : !w
}
