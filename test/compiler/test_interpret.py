"""What check mode's plain reading of a step refuses."""

from __future__ import annotations

import pytest
from piper.mlir import ir
from piper.reference.interpret import read_steps
from piper_runtime.checking.places import Places
from piper_runtime.mesh import Mesh

MODULE = """
piper.mesh @mesh [pp = 1 unrolled]
piper.chunk @layer.0$F pass = F stage = 0 (%x: tensor<4xf32>) -> tensor<4xf32> {{
  {chunk}
  return %x : tensor<4xf32>
}}
piper.step @train phase = bucketed mesh = @mesh inputs ["x"] dims [0] (%x: tensor<4xf32>) {{
  %y = run @layer.0$F(%x) : (tensor<4xf32>) -> tensor<4xf32>
  {step}
}}
"""


@pytest.mark.parametrize(
    ("chunk", "step", "message"),
    [
        (
            "%0 = convert %x : tensor<4xf32> -> tensor<4xbf16>",
            "",
            r"expected unpack, launch, .* in @layer.0\$F, got piper.convert",
        ),
        (
            "",
            "%z = sumsq %y : (tensor<4xf32>) -> tensor<f32>",
            "sum, output, host_wait and collectives in a step, got piper.sumsq",
        ),
    ],
)
def test_ops_that_it_does_not_know(chunk: str, step: str, message: str) -> None:
    with ir.Context(), pytest.raises(ValueError, match=message):
        read_steps(
            MODULE.format(chunk=chunk, step=step),
            microbatches=1,
            places=Places(Mesh(()), ()),
            summed={},
        )
