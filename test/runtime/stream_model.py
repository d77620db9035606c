"""A model of four layers compiled for two stages and two copies, of which no weight is tied.

So every communicator has two members, and sums of two do not depend on who adds. The norm of
parts of gradients is the exception, a sum over all ranks: no step of ZeRO-3 depends on it.
"""

from __future__ import annotations

from functools import cache

import piper
import torch
from piper_runtime import Program
from shared_model import LENGTH, ROWS, VOCABULARY, WIDTH, Batch, token_loss
from shared_model import Model as TiedModel
from torch import nn

MICROBATCHES = 4
UNREACHED = 1e3


class Model(TiedModel):
    """The same with a head of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)


def make_model() -> Model:
    torch.manual_seed(0)
    return Model()


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
            piper.update(adamw, clip=UNREACHED if zero else 0.5),
        ],
    )
    return piper.compile(make_model(), token_loss, strategy, make_batch(0))
