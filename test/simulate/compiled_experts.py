"""A small model whose experts ranks share out, compiled."""

from __future__ import annotations

from collections.abc import Mapping

import piper
import torch
from compiled_mlp import sgd
from piper import ops
from piper_runtime import Program
from torch import Tensor, nn

WIDTH, HIDDEN, EXPERTS, CHOICES, TOKENS = 16, 8, 4, 2, 8


class Experts(nn.Module):
    """Weights of the experts, which `shard` finds by this name."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Parameter(torch.randn(EXPERTS, HIDDEN, WIDTH) / WIDTH)
        self.down = nn.Parameter(torch.randn(EXPERTS, WIDTH, HIDDEN) / HIDDEN)

    def forward(self, rows: Tensor, received: Tensor) -> Tensor:
        hidden = ops.moe_linear(rows, self.up, received).relu()
        return ops.moe_linear(hidden, self.down, received)


class Layer(nn.Module):
    """Two of four experts for each token."""

    def __init__(self) -> None:
        super().__init__()
        self.router = nn.Linear(WIDTH, EXPERTS)
        self.experts = Experts()

    def forward(self, x: Tensor) -> Tensor:
        weights, index = self.router(x).softmax(-1).topk(CHOICES, -1)
        y: Tensor = x + ops.moe_experts(x, index, weights, self.experts, experts=EXPERTS)
        return y


class Model(nn.Module):
    """Layers of experts."""

    def __init__(self, layers: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer() for _ in range(layers))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


def square_loss(model: nn.Module, batch: Mapping[str, Tensor]) -> Tensor:
    """The sum of the outputs' squares."""
    loss: Tensor = model(batch["x"]).square().sum()
    return loss


def make_batch(*, ep: int, microbatches: int) -> dict[str, Tensor]:
    """The batch of all ranks."""
    return {"x": torch.randn(ep * microbatches * TOKENS, WIDTH)}


def compiled(
    order: str, *, pp: int, ep: int, microbatches: int, capacity: float | None = None
) -> Program:
    """Two layers per pipeline rank, in as many stages, or in one of two layers."""
    v = order == "DualPipeV"
    torch.manual_seed(0)
    strategy = piper.Strategy(
        mesh={"pp": pp, "ep": ep},
        directives=[
            piper.annotate({"layers.*": "layer"}),
            piper.split(microbatches=microbatches),
            piper.place(stages=2 * pp if v else pp),
            piper.replicate(axis="ep"),
            piper.shard("*.experts.*", axis="ep", capacity=capacity),
            piper.order(order),
            piper.update(sgd),
        ],
    )
    batch = make_batch(ep=ep, microbatches=microbatches)
    return piper.compile(Model(2 * pp), square_loss, strategy, batch)
