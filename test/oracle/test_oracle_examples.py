"""What each example has for itself, written so that it looks like a batch: against plain PyTorch."""

# mypy: disable-error-code="no-any-return,no-untyped-call,unused-ignore"

from __future__ import annotations

from typing import Any

import piper
import torch
from oracle import check_steps, piper_steps, plain_steps, randomize, sgd
from torch import Tensor, nn
from torch.nn import functional

ROWS, WIDTH = 8, 4
Batch = dict[str, Tensor]


class Softened(torch.autograd.Function):
    """A rounding whose backward computes with what the forward saw."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x.round(decimals=1)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        (x,) = ctx.saved_tensors
        return grad * x.cos()


class Model(nn.Module):
    """Two layers; both versions of an example go through the second side by side."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(WIDTH, WIDTH)
        self.last = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        hidden: Tensor = Softened.apply(self.first(x))  # type: ignore[no-untyped-call]
        one, other = self.last(torch.cat([hidden, -2 * hidden])).chunk(2)
        rows: Tensor = one.sigmoid() - other
        return rows + functional.avg_pool2d(hidden.view(-1, 1, 2, 2), 2).flatten(1)


def loss_fn(model: nn.Module, batch: Batch) -> Tensor:
    """The entry that a label names, less that of the neighbour."""
    rows = model(batch["x"]).log_softmax(-1)
    picked = rows[torch.arange(len(rows)), batch["y"]]
    return (picked[0::2] - picked[1::2]).square().mean()


def batches(count: int) -> list[Batch]:
    generator = torch.Generator().manual_seed(1)
    return [
        {
            "x": torch.randn(ROWS, WIDTH, generator=generator, dtype=torch.float64),
            "y": torch.randint(WIDTH, (ROWS,), generator=generator),
        }
        for _ in range(count)
    ]


def test_examples_apart_are_those_of_one_process() -> None:
    model = Model().double()
    randomize(model)
    steps = batches(3)
    strategy = piper.Strategy(
        mesh={"pp": 2, "dp": 2},
        directives=[
            piper.annotate({"first": "first", "last": "last"}),
            piper.split(microbatches=2),
            piper.place(stages=2),
            piper.order("1F1B"),
            piper.replicate(axis="dp"),
            piper.update(sgd),
        ],
    )
    program = piper.compile(model, loss_fn, strategy, steps[0])
    check_steps(piper_steps(program, model, steps, sgd), plain_steps(model, loss_fn, steps, sgd))
