"""Chunks as functions: how they name the states that they read."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from piper.emit.chunks import emit_chunk
from piper.emit.symbols import Symbols
from piper.mlir import ir

MODULE = """
piper.mesh @mesh [pp = 1 unrolled]
piper.stream @compute
piper.state @fc.weight parameter : tensor<4x2xf32>
piper.state @fc.bias parameter : tensor<4xf32>
piper.state @scale parameter : tensor<f32>
piper.bucket @whole$b [@fc.weight, @fc.bias, @scale] value : tensor<13xf32> grad : tensor<13xf32>
piper.state @bias parameter : tensor<4xf32>
piper.bucket @alone$b [@bias] value : tensor<4xf32> grad : tensor<4xf32>
piper.kernel @one$0({types}) -> tensor<f32> {{
  %0 = torch "aten.full.default"([], 1.0) facts <pure> : () -> tensor<f32>
  return %0 : tensor<f32>
}}
piper.chunk @layer.0$F pass = F stage = 0 (%x: {flat}) -> tensor<f32> {{
  %0:{count} = unpack @{bucket} %x : {flat} -> {members}
  %1 = launch @one$0({used}) on @compute : ({used_types}) -> tensor<f32>
  return %1 : tensor<f32>
}}
"""


@pytest.fixture(autouse=True)
def context() -> Iterator[None]:
    with ir.Context():
        yield


def lines(bucket: str, *used: int) -> list[str]:
    """Return the body of a chunk that passes some members of a bucket to a kernel."""
    shapes = ["4x2xf32", "4xf32", "f32"] if bucket == "whole$b" else ["4xf32"]
    types = [f"tensor<{shape}>" for shape in shapes]
    text = MODULE.format(
        bucket=bucket,
        count=len(types),
        flat="tensor<13xf32>" if len(types) > 1 else types[0],
        members=", ".join(types),
        types=", ".join(f"%a{i}: {types[i]}" for i in used),
        used=", ".join(f"%0#{i}" for i in used),
        used_types=", ".join(types[i] for i in used),
    )
    symbols = Symbols(ir.Module.parse(text))
    emitted = emit_chunk(symbols.chunks["layer.0$F"], symbols)
    return [line.strip() for line in emitted.splitlines()[2:]]


def test_several_members_are_made_by_one_split_and_shaped_where_they_are_read() -> None:
    assert lines("whole$b", 0, 1, 2) == [
        "fc_weight, fc_bias, scale = x.split_with_sizes([8, 4, 1])",
        "y = k.one_0(fc_weight.view(4, 2), fc_bias, scale.view(()))",
        "return y",
    ]


def test_members_that_nothing_reads_have_no_name() -> None:
    assert lines("whole$b", 0, 2)[0] == "fc_weight, _, scale = x.split_with_sizes([8, 4, 1])"


def test_one_member_is_a_slice() -> None:
    assert lines("whole$b", 0)[0] == "fc_weight = x[0:8].view(4, 2)"
    assert lines("whole$b", 1)[0] == "fc_bias = x[8:12]"


def test_one_member_of_one_is_the_flat_tensor() -> None:
    assert lines("alone$b", 0)[0] == "bias = x"
    assert lines("alone$b") == ["y = k.one_0()", "return y"]


def test_an_op_that_rank_programs_cannot_hold_is_refused() -> None:
    text = """
    piper.chunk @layer.0$F pass = F (%x: tensor<4xf32>) -> tensor<4xbf16> {
      %0 = convert %x : tensor<4xf32> -> tensor<4xbf16>
      return %0 : tensor<4xbf16>
    }
    """
    symbols = Symbols(ir.Module.parse(text))
    message = r"@layer.0\$F expected unpack, .* which rank programs can hold, got piper.convert"
    with pytest.raises(ValueError, match=message):
        emit_chunk(symbols.chunks["layer.0$F"], symbols)
