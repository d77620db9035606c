"""What is read of kernels and chunks."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from piper.emit.symbols import Symbols, name_of
from piper.mlir import ir
from piper.simulate.facts import ChunkFacts, KernelFacts, read_chunks, read_kernels
from piper.simulate.sizes import Size

# Sizes are 16 bytes per tensor<4xf32>, 8 per tensor<4xbf16>.
MODULE = """
!x = tensor<4xf32>
piper.kernel @chain$1(%x: !x, %h: tensor<4xbf16>) -> !x {
  %0 = torch "aten.relu.default"(%x) facts <pure, flops = 4> : (!x) -> !x
  %1 = torch "aten.view.default"(%0, [4]) facts <view> : (!x) -> !x
  %2 = torch "aten.neg.default"(%1) facts <pure, flops = 4> : (!x) -> !x
  %3 = torch "aten.neg.default"(%2) facts <pure, flops = 4> : (!x) -> !x
  %4 = torch "aten.neg.default"(%3) facts <pure, flops = 4> : (!x) -> !x
  return %4 : !x
} cost <flops = 16, bytes = 40>
piper.kernel @fork$2(%x: !x) -> !x {
  %0 = torch "aten.neg.default"(%x) facts <pure, flops = 4> : (!x) -> !x
  %1 = torch "aten.neg.default"(%x) facts <pure, flops = 4> : (!x) -> !x
  %2 = torch "aten.neg.default"(%x) facts <pure, flops = 4> : (!x) -> !x
  %3 = torch "aten.add.Tensor"(%0, %1) facts <pure, flops = 4> : (!x, !x) -> !x
  %4 = torch "aten.add.Tensor"(%3, %2) facts <pure, flops = 4> : (!x, !x) -> !x
  return %4 : !x
} cost <flops = 20, bytes = 32>
piper.kernel @count$3(%x: tensor<4xi64>) -> tensor<i64> {
  %0 = torch "aten.sum.default"(%x) facts <pure, flops = 4> : (tensor<4xi64>) -> tensor<i64>
  return %0 : tensor<i64>
}
piper.stream @compute
piper.chunk @a.0$F pass = F stage = 1 (%x: !x) -> !x {
  %0 = launch @fork$2(%x) on @compute : (!x) -> !x
  %1 = launch @fork$2(%0) on @compute : (!x) -> !x
  return %1 : !x
}
piper.chunk @count$P0 pass = P (%x: tensor<4xi64>) -> tensor<i64> {
  %0 = launch @count$3(%x) on @compute : (tensor<4xi64>) -> tensor<i64>
  return %0 : tensor<i64>
}
"""


@pytest.fixture
def symbols() -> Iterator[Symbols]:
    with ir.Context():
        yield Symbols(ir.Module.parse(MODULE))


def test_kernels(symbols: Symbols) -> None:
    kernels = read_kernels(symbols)
    assert list(kernels) == [name_of(kernel) for kernel in symbols.all("kernel")]
    # Two tensors are alive at each op of the chain, one of them the result at the end.
    assert kernels["chain$1"] == KernelFacts(16, 40, "float32", temporaries=16, results=16)
    # Three made from the argument, and their sum while two are still needed.
    assert kernels["fork$2"] == KernelFacts(20, 32, "float32", temporaries=48, results=16)
    # Without a cost, bytes are those of arguments and results; integers have no dtype here.
    assert kernels["count$3"] == KernelFacts(0, 40, "", temporaries=0, results=8)


FLAT = """
piper.mesh @mesh [pp = 1 unrolled, dp = 2 manual]
piper.state @w parameter : tensor<4xf32>
piper.state @b parameter : tensor<4xf32>
piper.bucket @w$b [@w, @b] value : tensor<4xf32, #piper.layout<dp = shard(0)>> grad : tensor<{grad}>
piper.kernel @pair$4(%x: tensor<4xf32>) -> (tensor<4xf32>, tensor<4xf32>) {{
  %0 = torch "aten.neg.default"(%x) facts <pure, flops = 4> : (tensor<4xf32>) -> tensor<4xf32>
  %1 = torch "aten.relu.default"(%x) facts <pure, flops = 4> : (tensor<4xf32>) -> tensor<4xf32>
  return %0, %1 : tensor<4xf32>, tensor<4xf32>
}} cost <flops = 8, bytes = 48>
piper.stream @compute
!v = tensor<4xf32, #piper.layout<dp = varying>>
!p = tensor<8xf32, #piper.layout<dp = partial>>
piper.chunk @a.0$F pass = F stage = 0 (%x: !v) -> !p {{
  %0:2 = launch @pair$4(%x) on @compute : (!v) -> (!v, !v)
  %1 = pack @w$b %0#0, %0#1 : !v, !v -> !p
  return %1 : !p
}}
"""


@pytest.mark.parametrize(
    ("grad", "temporaries"),
    [
        pytest.param("8xf32, #piper.layout<dp = partial>", 0, id="a tuple is what it holds"),
        pytest.param("4xf32, #piper.layout<dp = shard(0)>", 32, id="a flat tensor is a copy"),
    ],
)
def test_gradients_for_a_collective_are_there_twice(grad: str, temporaries: int) -> None:
    with ir.Context():
        module = ir.Module.parse(FLAT.format(grad=grad))  # which owns the ops
        symbols = Symbols(module)
        [chunk] = read_chunks(symbols, read_kernels(symbols)).values()
    assert chunk.results == (Size.of(32),)
    assert chunk.temporaries == temporaries


def test_chunks(symbols: Symbols) -> None:
    chunks = read_chunks(symbols, read_kernels(symbols))
    # What the first launch returns lives as long as the chunk.
    assert chunks["a.0$F"] == ChunkFacts("a.0$F", 1, "F", ("fork$2", "fork$2"), (Size.of(16),), 64)
    assert str(chunks["a.0$F"].action(3)) == "1F3"
    assert chunks["count$P0"] == ChunkFacts("count$P0", None, "P", ("count$3",), (Size.of(8),), 0)
    assert chunks["count$P0"].action(3) is None
