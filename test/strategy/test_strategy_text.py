"""Numbers that directives write are read back from the IR as the very same."""

from __future__ import annotations

import math
import sys
from typing import Any

import pytest
import torch
from piper.mlir import ir
from piper.strategy import Directive, Strategy, annotate, replicate, shard, update
from piper.strategy.text import number
from piper_runtime import LossScale
from torch import nn

SMALL = [1e-6, 5e-324, 0.1, 1 / 3]
LARGE = [1, 3, 1.25, math.pi * 1e22, 1e300, sys.float_info.max]


def make_sgd(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.1)


def read_back(directive: Directive, name: str) -> Any:
    """An attribute of the op of a directive that stands last, after a second print."""
    mesh = {"dp": 1, "ep": 2}
    text = Strategy(mesh=mesh, directives=[replicate(axis=("dp", "ep")), directive]).ir()
    with ir.Context():
        module = ir.Module.parse(str(ir.Module.parse(text)))
        strategy = module.body.operations[1]
        *_, op = strategy.regions[0].blocks[0].operations
        attribute: Any = op.attributes[name]
        if name == "loss_scale":
            return [ir.FloatAttr(number).value for number in attribute]
        return attribute.value


def test_path_of_the_model_itself() -> None:
    """An attribute must have a name, so that it has one there that no module has."""
    text = Strategy(mesh={}, directives=[annotate({"": "model", "fc": "part"})]).ir()
    assert 'piper.do.annotate {"." = "model", "fc" = "part"}' in text
    with ir.Context():
        assert ir.Module.parse(text).operation.verify()


@pytest.mark.parametrize("value", [*SMALL, *LARGE, math.inf])
def test_clip(value: float) -> None:
    assert read_back(update(make_sgd, clip=value), "clip") == value


@pytest.mark.parametrize("value", LARGE)
def test_capacity(value: float) -> None:
    assert read_back(shard("*.experts.*", axis="ep", capacity=value), "capacity") == value


@pytest.mark.parametrize("value", [*SMALL, *LARGE])
def test_loss_scale(value: float) -> None:
    assert read_back(update(make_sgd, loss_scale=value), "loss_scale") == [value]


def test_loss_scale_that_changes() -> None:
    scale = LossScale(initial=1e22, growth=1e16, backoff=1e-7, interval=1000)
    found = read_back(update(make_sgd, loss_scale=scale), "loss_scale")
    assert found == [1e22, 1e16, 1e-7, 1000.0]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (8, "8.0"),
        (1.25, "1.25"),
        (1e-6, "1.0e-06"),
        (1.5e300, "1.5e+300"),
        (-0.0, "-0.0"),
        (math.inf, "0x7FF0000000000000"),
    ],
)
def test_text_of_a_number(value: float, text: str) -> None:
    assert number(value) == text
