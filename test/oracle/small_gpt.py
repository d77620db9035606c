"""The GPT of the examples at test size, and batches that a wrong mean cannot survive."""

from __future__ import annotations

from functools import cache

import torch
import torch.nn.functional as F  # noqa: N812
from gpt import GPT, Config
from oracle import randomize
from strategies import Captures, Case
from torch import Tensor, nn

VOCABULARY, LENGTH, ROWS = 24, 5, 2
IGNORED = -100
TAGS = {"embed": "first", "layers.*": "layer", "head": "last"}

Batch = dict[str, Tensor]


def captures(*, tied: bool, layers: int = 4) -> Captures:
    """The model, in fp64 with random biases, and its captures: one for all tests."""
    return _captures(tied, layers)


@cache
def _captures(tied: bool, layers: int) -> Captures:
    torch.manual_seed(0)
    sizes = {"width": 16, "heads": 2, "context": LENGTH, "vocabulary": VOCABULARY}
    model = GPT(Config(layers=layers, tied=tied, **sizes)).double()
    randomize(model)
    return Captures(model, token_loss)


def token_loss(model: nn.Module, batch: Batch) -> Tensor:
    """Mean cross-entropy over the labels that count."""
    logits = model(batch["ids"])
    return F.cross_entropy(logits.flatten(0, 1), batch["labels"].flatten())


def batches(case: Case, *, steps: int = 3) -> list[Batch]:
    """A batch per step: all ranks' rows, different everywhere, unevenly many labels that count.

    Where there are several microbatches one has no label that counts: the last one in odd steps;
    in even ones all of the last rank, or the first microbatch of the only rank.
    """
    made = []
    for step in range(steps):
        generator = torch.Generator().manual_seed(step)
        shape = (case.parts * ROWS, LENGTH)
        ids = torch.randint(VOCABULARY, shape, generator=generator)
        labels = torch.randint(VOCABULARY, shape, generator=generator)
        share = torch.linspace(0.0, 0.8, shape[0])[:, None]
        labels[torch.rand(shape, generator=generator) < share] = IGNORED
        if case.parts > 1:
            labels[_silent_rows(case, step)] = IGNORED
        made.append({"ids": ids, "labels": labels})
    return made


def _silent_rows(case: Case, step: int) -> slice:
    rows = case.parts * ROWS
    if step % 2 == 0:
        return slice(rows - ROWS, rows)
    return slice(rows // 2, rows) if case.dp == 2 else slice(0, ROWS)
