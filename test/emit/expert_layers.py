"""A model with two layers of four experts, written by hand with Piper's ops, and strategies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import piper
import torch
from piper import ops
from torch import Tensor, nn
from torch.nn import functional

VOCABULARY, WIDTH, HIDDEN, EXPERTS, CHOICES, LENGTH = 32, 8, 12, 4, 2, 5
Batch = dict[str, Tensor]


class Layer(nn.Module):
    """A router, experts of two products each, and the way around them."""

    def __init__(self) -> None:
        super().__init__()
        self.router = nn.Linear(WIDTH, EXPERTS)
        self.experts = nn.ParameterDict(
            {
                "up": nn.Parameter(0.3 * torch.randn(EXPERTS, HIDDEN, WIDTH)),
                "down": nn.Parameter(0.3 * torch.randn(EXPERTS, WIDTH, HIDDEN)),
            }
        )

    def forward(self, x: Tensor) -> Tensor:
        tokens = x.reshape(-1, WIDTH)
        weights, index = torch.softmax(self.router(tokens), -1).topk(CHOICES)
        y = ops.moe_experts(tokens, index, weights, self.compute, experts=EXPERTS)
        return x + y.view(x.shape)

    def compute(self, rows: Tensor, received: Tensor) -> Tensor:
        """Apply to each row the expert that it came to."""
        hidden = functional.silu(ops.moe_linear(rows, self.experts["up"], received))
        return ops.moe_linear(hidden, self.experts["down"], received)


class Model(nn.Module):
    """Embedding, layers, head; ``skew`` is added to the logits of experts."""

    def __init__(self, skew: Sequence[float] = (), *, layers: int = 2, seed: int = 0) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.embed = nn.Embedding(VOCABULARY, WIDTH)
        self.layers = nn.ModuleList(Layer() for _ in range(layers))
        self.head = nn.Linear(WIDTH, VOCABULARY)
        self.double()
        if skew:
            with torch.no_grad():
                for name, bias in self.named_parameters():
                    if name.endswith("router.bias"):
                        bias.copy_(torch.tensor(skew))

    def forward(self, ids: Tensor) -> Tensor:
        x: Tensor = self.embed(ids)
        for layer in self.layers:
            x = layer(x)
        logits: Tensor = self.head(x)
        return logits


def loss_fn(model: nn.Module, batch: Batch) -> Tensor:
    """Return the mean cross entropy."""
    return functional.cross_entropy(model(batch["ids"]).flatten(0, 1), batch["labels"].flatten())


def adamw(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    """Return AdamW."""
    return torch.optim.AdamW(parameters, lr=1e-2)


def make_batch(step: int, rows: int) -> Batch:
    """Return the batch of all ranks, of ``rows`` sequences."""
    generator = torch.Generator().manual_seed(step)
    ids, labels = torch.randint(VOCABULARY, (2, rows, LENGTH), generator=generator)
    return {"ids": ids, "labels": labels}


def make_strategy(
    mesh: Mapping[str, int],
    *,
    zero: int = 0,
    order: str = "1F1B",
    microbatches: int = 2,
    stages: int | None = None,
    capacity: float | None = None,
) -> piper.Strategy:
    """Return a strategy that shards experts over ep, if the mesh has it."""
    axes = tuple(axis for axis in mesh if axis != "pp")
    given: list[Any] = [
        piper.annotate({"embed": "first", "layers.*": "layer", "head": "last"}),
        piper.split(microbatches=microbatches),
        piper.replicate(axis=axes, zero=zero),
        piper.update(adamw, clip=0.5),
    ]
    if "ep" in mesh:
        given.append(piper.shard("*.experts.*", axis="ep", capacity=capacity))
    if "pp" in mesh:
        given += [piper.place(stages=stages or mesh["pp"]), piper.order(order)]
    return piper.Strategy(mesh=mesh, directives=given)
