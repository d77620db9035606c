"""Python literals as parts of argument templates."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from piper.frontend.attributes import decode_argument, encode_argument, facts_attribute
from piper.frontend.op_facts import OpFacts
from piper.mlir import ir
from piper.mlir.dialects import piper


@pytest.fixture(autouse=True)
def context() -> Iterator[None]:
    with ir.Context():
        yield


LITERALS: list[Any] = [
    None,
    True,
    0,
    -(2**63),
    2**63 - 1,
    0.0,
    -0.0,
    0.1,
    1e300,
    123456789.0,
    5e-324,
    math.inf,
    -math.inf,
    torch.finfo(torch.float32).min,
    'a "quoted" text',
    torch.bfloat16,
    torch.bool,
    torch.uint8,
    torch.complex64,
    torch.strided,
    torch.contiguous_format,
    torch.device("cpu"),
    [1, [2.5, None], []],
]


@pytest.mark.parametrize("value", LITERALS, ids=repr)
def test_literals_are_lossless(value: Any) -> None:
    def never(_: object) -> int:
        raise AssertionError("not an operand")

    with ir.Location.unknown():
        module = ir.Module.create()
        with ir.InsertionPoint(module.body):
            piper.TorchOp(
                results_=[],
                inputs=[],
                op_name="a.b.c",
                args=ir.ArrayAttr.get([encode_argument(value, never)]),
                kwargs=ir.DictAttr.get({}),
                facts=ir.Attribute.parse("#piper.facts<pure>"),
            )
    again = ir.Module.parse(str(module))
    [op] = again.body
    found = decode_argument(ir.ArrayAttr(op.attributes["args"])[0], never)
    assert type(found) is type(value)
    assert repr(found) == repr(value)


def test_nan_is_lossless() -> None:
    with ir.Location.unknown():
        assert math.isnan(decode_argument(encode_argument(math.nan, id), id))


@pytest.mark.parametrize(
    ("facts", "text"),
    [
        (OpFacts("view", 0, False), "view"),
        (
            OpFacts("pure", 64, True, heavy=True, mask=2),
            "pure, flops = 64, strided, heavy, mask = 2",
        ),
        (
            OpFacts("pure", 8, False, rule="m i, e o i, r e -> m o"),
            'pure, flops = 8, rule = "m i, e o i, r e -> m o"',
        ),
        (OpFacts("pure", 8, False, rule=",  -> "), 'pure, flops = 8, rule = ",  -> "'),
    ],
)
def test_facts_are_lossless(facts: OpFacts, text: str) -> None:
    assert str(facts_attribute(facts)) == f"#piper.facts<{text}>"
