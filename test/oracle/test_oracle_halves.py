"""Backward ops of several results are cut by their rules: norms and convolutions."""

from __future__ import annotations

import re

import piper
import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from oracle import adamw, check_steps, piper_steps, plain_steps, randomize
from piper_runtime import Program
from torch import Tensor, nn

MICROBATCHES, ROWS, CHANNELS, LENGTH = 4, 2, 6, 8
Batch = dict[str, Tensor]


class Convolution(nn.Module):
    """A residual block whose backward ops are all of several results."""

    def __init__(self) -> None:
        """Small, with affine norms and biases."""
        super().__init__()
        self.conv = nn.Conv1d(CHANNELS, CHANNELS, 3, padding=1)
        self.group = nn.GroupNorm(2, CHANNELS)
        self.norm = nn.LayerNorm(LENGTH)

    def forward(self, x: Tensor) -> Tensor:
        """Return values of the shape of `x`, (rows, channels, length)."""
        y: Tensor = self.norm(F.silu(self.group(self.conv(x))))
        return x + y


class Grouped(nn.Module):
    """Channels in groups, each multiplied by a matrix of its own."""

    def __init__(self) -> None:
        """Three matrices."""
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(3, LENGTH, LENGTH))

    def forward(self, x: Tensor) -> Tensor:
        """Return values of the shape of `x`, (rows, channels, length)."""
        groups = x.reshape(len(x), 3, -1, LENGTH).transpose(0, 1).flatten(1, 2)
        y = torch.bmm(groups, self.weight).reshape(3, len(x), -1, LENGTH)
        return x + torch.tanh(y.transpose(0, 1).flatten(1, 2))


class Chain(nn.Module):
    """Blocks, each a chunk, and a head."""

    def __init__(self, *blocks: nn.Module) -> None:
        """A chain."""
        super().__init__()
        self.blocks = nn.ModuleList(blocks)
        self.head = nn.Linear(LENGTH, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Return a number per row and channel."""
        for block in self.blocks:
            x = block(x)
        y: Tensor = self.head(x)
        return y


def squares(model: nn.Module, batch: Batch) -> Tensor:
    """A mean over all elements."""
    return F.mse_loss(model(batch["x"]), batch["y"])


def make_batches() -> list[Batch]:
    """Two batches of random values."""
    generator = torch.Generator().manual_seed(0)
    rows = MICROBATCHES * ROWS

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    return [{"x": normal(rows, CHANNELS, LENGTH), "y": normal(rows, CHANNELS, 1)} for _ in range(2)]


def compiled(model: nn.Module, batch: Batch) -> Program:
    """Under ZBH1 on two ranks."""
    strategy = piper.Strategy(
        mesh={"pp": 2},
        directives=[
            piper.annotate({"blocks.*": "block", "head": "head"}),
            piper.split(microbatches=MICROBATCHES),
            piper.place(stages=2),
            piper.order("ZBH1"),
            piper.update(adamw, clip=1.0),
        ],
    )
    return piper.compile(model, squares, strategy, batch)


@pytest.mark.parametrize("block", [Convolution, Grouped])
def test_halves_train_as_plain_pytorch(block: type[nn.Module]) -> None:
    """Losses, gradients and weights, when inputs and weights get their gradients apart."""
    model = Chain(block(), block(), block()).double()
    randomize(model)
    batches = make_batches()
    program = compiled(model, batches[0])
    expected = plain_steps(model, squares, batches, adamw, clip=1.0)
    check_steps(piper_steps(program, model, batches), expected)


def test_masks_share_out_the_work() -> None:
    """Each op with a mask is called once per half, for what the half needs.

    Only the first block calls them once for all: nobody needs the gradient of its input.
    """
    model = Chain(Convolution(), Convolution(), Convolution()).double()
    kernels = compiled(model, make_batches()[0]).texts["kernels.py"]
    for name, inputs, weights in (
        ("convolution_backward", "[True, False, False]", "[False, True, True]"),
        ("native_layer_norm_backward", "[True, False, False]", "[False, True, True]"),
        ("native_group_norm_backward", "[True, False, False]", "[False, True, True]"),
    ):
        masks = set(re.findall(rf"{name}\.default\(.*(\[\w+, \w+, \w+\])\)", kernels))
        assert {inputs, weights} <= masks, name
