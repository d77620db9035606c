"""A small model, compiled."""

from __future__ import annotations

import piper
import torch
from piper.strategy.order import Order
from piper_runtime import Program
from torch import nn


class Mlp(nn.Module):
    """Four layers of one width, so that a stage is any number of them."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x).relu()
        return x


def compiled(
    order: str | Order, *, pp: int, microbatches: int, width: int = 8, v: bool = False
) -> Program:
    """A pipeline of as many stages as ranks, or of twice as many in a V."""
    place = piper.place(stages=2 * pp, coordinates="v") if v else piper.place(stages=pp)
    strategy = piper.Strategy(
        mesh={"pp": pp, "dp": 1},
        directives=[
            piper.annotate({"layers.*": "layer"}),
            piper.split(microbatches=microbatches),
            place,
            piper.replicate(axis="dp"),
            order if isinstance(order, Order) else piper.order(order),
            piper.update(lambda parameters: torch.optim.AdamW(parameters)),
        ],
    )
    batch = {"x": torch.randn(4 * microbatches, width)}
    return piper.compile(Mlp(width), lambda model, b: model(b["x"]).square().sum(), strategy, batch)
