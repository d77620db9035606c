// Exchanges of what ranks do not hold.
// RUN: piper-opt %s -split-input-file -verify-diagnostics --piper-assign-kinds

// Along a manual axis what was gathered is gathered again.

!x = tensor<4xf32>
piper.mesh @mesh [cp = 2 manual]
piper.stream @compute
piper.stream @cp
piper.kernel @relu(%x: !x) -> !x {
  %0 = torch "aten.relu.default"(%x) facts <pure> : (!x) -> !x
  return %0 : !x
}
piper.chunk @a.0$F pass = F (%x: !x) -> !x {
  %0 = launch @relu(%x) on @compute : (!x) -> !x
  return %0 : !x
}
piper.step @train phase = outlined mesh = @mesh inputs ["x"] dims [0] axes ["cp"] (%x: !x) {
  %a = run @a.0$F(%x) : (!x) -> !x
  %b = all_reduce %a over ["cp"] as "a.0 reduce" on @cp : !x -> !x
  // expected-error @+1 {{expected an operand that is varying on axis 'cp', got replicated}}
  %c = all_reduce %b over ["cp"] as "a.0 reduce" on @cp : !x -> !x
}

// -----

// Nobody says that an input is a sum.

!x = tensor<4xf32>
piper.mesh @mesh [cp = 2 manual]
piper.stream @cp
piper.step @train phase = outlined mesh = @mesh inputs ["x"] dims [0] axes ["cp"] (%x: !x) {
  // expected-error @+1 {{expected to exchange what a chunk makes}}
  %b = all_reduce %x over ["cp"] as "a.0 reduce" on @cp : !x -> !x
}

// -----

// Along an auto axis what is gathered is no part.

!x = tensor<4xf32>
piper.mesh @mesh [tp = 2 auto]
piper.stream @tp
piper.step @train phase = outlined mesh = @mesh inputs ["x"] dims [0] (%x: !x) {
  // expected-error @+1 {{expected an operand that is shard(0) on axis 'tp', got replicated}}
  %b = all_gather %x dim 0 over ["tp"] as "a.0 gather" on @tp : !x -> tensor<8xf32>
}
