"""A small language model with a tied weight, a strategy for four ranks, and what builds both."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import piper
import torch
from piper.strategy import Directive
from torch import Tensor, nn
from torch.nn import functional

WIDTH, WORDS, ROWS = 4, 8, 8
MESH = {"pp": 2, "dp": 2}


class Toy(nn.Module):
    """Two equal layers between an embedding and its transpose."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(WORDS, WIDTH)
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(2))
        self.head = nn.Linear(WIDTH, WORDS, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embed(ids)
        for layer in self.layers:
            x = x + layer(x).relu()
        logits: Tensor = self.head(x)
        return logits


def loss_fn(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    return functional.cross_entropy(model(batch["ids"]), batch["labels"])


def make_sgd(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.1)


def batch_of(rows: int = ROWS) -> dict[str, Tensor]:
    ids = torch.arange(rows) % WORDS
    return {"ids": ids, "labels": ids.flip(0)}


def directives(**changes: Directive | None) -> list[Directive]:
    """The toy's directives by keyword; a change to None leaves one out."""
    usual: Mapping[str, Directive] = {
        "annotate": piper.annotate({"embed": "first", "layers.*": "layer", "head": "last"}),
        "split": piper.split(microbatches=2),
        "place": piper.place(stages=2),
        "replicate": piper.replicate(axis="dp"),
        "order": piper.order("1F1B"),
        "update": piper.update(make_sgd, clip=1.0),
    }
    return [directive for directive in {**usual, **changes}.values() if directive is not None]


def build() -> tuple[nn.Module, Any, piper.Strategy, Any]:
    """What ``piper compile`` takes."""
    return Toy(), loss_fn, piper.Strategy(mesh=MESH, directives=directives()), batch_of()
