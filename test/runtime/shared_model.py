"""A small model with a tied weight and ignored labels, compiled for two stages and two copies."""

from __future__ import annotations

from typing import Any

import piper
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

VOCABULARY, WIDTH, LENGTH, ROWS = 24, 12, 5, 16
IGNORED = -100

Batch = dict[str, Tensor]


class Model(nn.Module):
    """An embedding, two layers, and a head that is the embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, WIDTH)
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(2))
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, ids: Tensor) -> Tensor:
        x: Tensor = self.embed(ids)
        for layer in self.layers:
            x = x + F.gelu(layer(x))
        logits: Tensor = self.head(x)
        return logits


def make_model(seed: int = 0) -> Model:
    """The model in fp64."""
    torch.manual_seed(seed)
    return Model().double()


def token_loss(model: nn.Module, batch: Batch) -> Tensor:
    """Mean cross-entropy over the labels that count."""
    logits = model(batch["ids"])
    return F.cross_entropy(logits.flatten(0, 1), batch["labels"].flatten())


def make_sgd(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    """SGD with momentum."""
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9)


def make_strategy(
    order: str = "1F1B",
    *,
    pattern: str = "layers.*",
    dp: int = 2,
    stages: int = 2,
    **replication: Any,
) -> piper.Strategy:
    """Two pipeline ranks times ``dp``, four microbatches."""
    return piper.Strategy(
        mesh={"pp": 2, "dp": dp},
        directives=[
            piper.annotate({"embed": "embed", pattern: "layer", "head": "head"}),
            piper.split(microbatches=4),
            piper.place(stages=stages),
            piper.replicate(axis="dp", **replication),
            piper.order(order),
            piper.update(make_sgd, clip=0.5),
        ],
    )


def make_batch(seed: int = 0, *, rows: int = ROWS) -> Batch:
    """Ids and labels of all ranks; a third of the labels do not count."""
    generator = torch.Generator().manual_seed(seed)
    ids, labels = torch.randint(VOCABULARY, (2, rows, LENGTH), generator=generator)
    ignored = torch.rand((rows, LENGTH), generator=generator) < 0.3
    return {"ids": ids, "labels": labels.masked_fill(ignored, IGNORED)}
