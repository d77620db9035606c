"""A small model, compiled."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import piper
import torch
from piper.strategy import Directive
from piper.strategy.order import Order
from piper_runtime import Program
from torch import nn


class Mlp(nn.Module):
    """Layers of one width, so that a stage is any number of them."""

    def __init__(self, width: int = 8, layers: int = 4) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(layers))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x).relu()
        return x


def sgd(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    """Plain SGD."""
    return torch.optim.SGD(parameters, lr=0.1)


def adamw(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    """AdamW, whose state has two values per parameter."""
    return torch.optim.AdamW(parameters, lr=0.1)


def square_loss(model: nn.Module, batch: Mapping[str, torch.Tensor]) -> torch.Tensor:
    """The sum of the outputs' squares."""
    loss: torch.Tensor = model(batch["x"]).square().sum()
    return loss


def compiled(
    order: str | Order,
    *,
    pp: int,
    microbatches: int,
    dp: int = 1,
    width: int = 8,
    layers: int = 4,
    v: bool = False,
    replicate: Directive | None = None,
    update: Directive | None = None,
    more: Sequence[Directive] = (),
) -> Program:
    """A pipeline of as many stages as ranks, or of twice as many in a V."""
    place = piper.place(stages=2 * pp, coordinates="v") if v else piper.place(stages=pp)
    strategy = piper.Strategy(
        mesh={"pp": pp, "dp": dp},
        directives=[
            piper.annotate({"layers.*": "layer"}),
            piper.split(microbatches=microbatches),
            place,
            replicate or piper.replicate(axis="dp"),
            order if isinstance(order, Order) else piper.order(order),
            update or piper.update(adamw),
            *more,
        ],
    )
    batch = {"x": torch.randn(4 * microbatches * dp, width)}
    return piper.compile(Mlp(width, layers), square_loss, strategy, batch)
