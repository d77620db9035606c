"""A model of four layers compiled for two stages and two copies, of which no weight is tied.

So every communicator has two members, and sums of two do not depend on who adds.
"""

from __future__ import annotations

from functools import cache

import piper
import torch
import torch.nn.functional as F  # noqa: N812
from piper_runtime import Program
from torch import Tensor, nn

VOCABULARY, WIDTH, LENGTH, ROWS, MICROBATCHES = 24, 12, 5, 16, 4

Batch = dict[str, Tensor]


class Model(nn.Module):
    """An embedding, layers and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, WIDTH)
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(2))
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, ids: Tensor) -> Tensor:
        x: Tensor = self.embed(ids)
        for layer in self.layers:
            x = x + F.gelu(layer(x))
        logits: Tensor = self.head(x)
        return logits


def make_model() -> Model:
    torch.manual_seed(0)
    return Model()


def token_loss(model: nn.Module, batch: Batch) -> Tensor:
    return F.cross_entropy(model(batch["ids"]).flatten(0, 1), batch["labels"].flatten())


def adamw(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=1e-2)


def make_batch(step: int) -> Batch:
    """The batch of all ranks."""
    generator = torch.Generator().manual_seed(step)
    ids, labels = torch.randint(VOCABULARY, (2, ROWS, LENGTH), generator=generator)
    return {"ids": ids, "labels": labels}


def shard(batch: Batch, rank: int) -> Batch:
    """What a rank of pp 2 x dp 2 feeds."""
    return {name: value.chunk(2)[rank % 2] for name, value in batch.items()}


@cache
def compiled(zero: int = 0) -> Program:
    """1F1B at pp 2 x dp 2, with a stage of ZeRO."""
    strategy = piper.Strategy(
        mesh={"pp": 2, "dp": 2},
        directives=[
            piper.annotate({"embed": "first", "layers.*": "layer", "head": "last"}),
            piper.place(stages=2),
            piper.split(microbatches=MICROBATCHES),
            piper.replicate(axis="dp", zero=zero),
            piper.order("1F1B"),
            piper.update(adamw, clip=0.5),
        ],
    )
    return piper.compile(make_model(), token_loss, strategy, make_batch(0))
