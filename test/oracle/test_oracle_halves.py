"""Backward chunks are cut in two: norms and convolutions by their masks, products of experts."""

from __future__ import annotations

import re
from importlib import import_module

import piper
import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from oracle import adamw, check_steps, piper_steps, plain_steps, randomize
from piper.simulate import ProgramFacts
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


class Experts(nn.Module):
    """Rows in groups, each multiplied by a matrix of its own, in bf16: the product of experts."""

    ends: Tensor

    def __init__(self) -> None:
        """Two matrices; half of the rows of a microbatch for each."""
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(2, LENGTH, LENGTH))
        rows = ROWS * CHANNELS
        self.register_buffer("ends", torch.tensor([rows // 2, rows], dtype=torch.int32))

    def forward(self, x: Tensor) -> Tensor:
        """Return values of the shape of `x`; each example takes both matrices in turn."""
        rows = x.reshape(len(x) // ROWS, ROWS, CHANNELS, LENGTH).transpose(1, 2)
        parts = rows.flatten(1, 2).bfloat16().unbind(0)
        weight = self.weight.bfloat16()
        products = [torch._grouped_mm(part, weight, offs=self.ends) for part in parts]
        y = torch.stack(products).to(x.dtype).reshape(rows.shape).transpose(1, 2).reshape(x.shape)
        return x + torch.tanh(y)


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


@pytest.fixture
def any_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets capture take the loop of `Experts` over microbatches.

    It is as long as there are microbatches, which is refused otherwise. Here each microbatch has
    rows of its own in it, whatever their number.
    """
    module = import_module("piper.frontend.capture")
    monkeypatch.setattr(module, "refuse_coupling", lambda *_: None)


@pytest.mark.usefixtures("any_loop")
@pytest.mark.parametrize(("block", "bound"), [(Convolution, 1e-10), (Experts, 1e-2)])
def test_halves_train_as_plain_pytorch(block: type[nn.Module], bound: float) -> None:
    """Losses, gradients and weights, when inputs and weights get their gradients apart.

    The gradient of the experts is rounded to bf16 in each microbatch.
    """
    model = Chain(block(), block(), block()).double()
    randomize(model)
    batches = make_batches()
    program = compiled(model, batches[0])
    expected = plain_steps(model, squares, batches, adamw, clip=1.0)
    check_steps(piper_steps(program, model, batches), expected, bound=bound)


@pytest.mark.usefixtures("any_loop")
def test_grouped_products_are_shared_out() -> None:
    """Forward, input and weight gradients of an expert layer are one product each.

    Only the first layer has no product for the gradient of its input, which nobody needs.
    """
    model = Chain(Experts(), Experts(), Experts()).double()
    program = compiled(model, make_batches()[0])
    bodies = program.texts["kernels.py"].split("\ndef ")[1:]
    products = {body.partition("(")[0]: body.count("._grouped_mm(") for body in bodies}
    counts = {
        name: sum(products[kernel.replace("$", "_")] for kernel in chunk.kernels)
        for name, chunk in ProgramFacts.read(program).chunks.items()
        if name.startswith("block.")
    }
    assert counts == {
        **{f"block.{layer}$F": 1 for layer in range(3)},
        **{f"block.{layer}$F.eval": 1 for layer in range(3)},
        **{f"block.{layer}$B": 2 for layer in (1, 2)},
        **{f"block.{layer}$I": 1 for layer in (1, 2)},
        **{f"block.{layer}$W": 1 for layer in range(3)},
        "block.0$B": 1,
    }
    assert max(products.values()) == 1


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
        masks = set(re.findall(rf"{name}\w*\(.*(\[\w+, \w+, \w+\])\)", kernels))
        assert {inputs, weights} <= masks, name
