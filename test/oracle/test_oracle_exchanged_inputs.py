"""What ranks exchange of inputs and buffers alone, which no chunk needs parameters for."""

from __future__ import annotations

import piper
import pytest
import torch
from oracle import LossFunction, check_steps, piper_steps, plain_steps, sgd
from piper.strategy import Directive
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

WIDTH, LABELS = 8, 5

Batch = dict[str, Tensor]


class Attending(nn.Module):
    """Positions attend to each other before the first product."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.head = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, LABELS)

    def forward(self, x: Tensor) -> Tensor:
        q = x.reshape(*x.shape[:2], 2, -1).transpose(1, 2)
        k = q * 2
        y = piper.ops.attention(q, k, q, causal=True) + k.sin()
        logits: Tensor = self.head(self.inner(y.transpose(1, 2).flatten(2)).tanh())
        return logits.flatten(0, 1)


class Tabled(nn.Module):
    """Some rows of a table that is no parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("table", torch.randn(WIDTH, WIDTH))
        self.inner, self.head = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, LABELS)

    def forward(self, x: Tensor) -> Tensor:
        rows = self.get_buffer("table").sin()[2:6] * 2
        y = self.inner(x.flatten(0, 1)).tanh()[:, :4]
        logits: Tensor = self.head(y @ rows)
        return logits


def mean_loss(model: nn.Module, batch: Batch) -> Tensor:
    """Over all positions."""
    return cross_entropy(model(batch["x"]), batch["labels"].flatten())


def check(model: nn.Module, axis: str, *directives: Directive) -> None:
    """Two steps equal plain PyTorch."""
    loss: LossFunction = mean_loss
    batch = {
        "x": torch.randn(4, 8, WIDTH, dtype=torch.float64),
        "labels": torch.randint(LABELS, (4, 8)),
    }
    strategy = piper.Strategy(
        mesh={axis: 2}, directives=[piper.split(microbatches=2), *directives, piper.update(sgd)]
    )
    program = piper.compile(model, loss, strategy, batch)
    found = piper_steps(program, model, [batch] * 2, sgd)
    check_steps(found, plain_steps(model, loss, [batch] * 2, sgd))


@pytest.mark.slow
def test_attention_to_inputs() -> None:
    """Keys and values are gathered by the chunk that uses what attention gives."""
    torch.manual_seed(0)
    sequence = piper.sequence("cp", {"x": 1, "labels": 1})
    check(Attending().double(), "cp", piper.replicate(axis="cp"), sequence)


@pytest.mark.slow
def test_a_buffer_that_ranks_share_out() -> None:
    """Rows that are cut out of it are gathered by the chunk that uses them."""
    torch.manual_seed(0)
    shards = [piper.shard(name, axis="tp", dim=0) for name in ("table", "inner.*")]
    check(Tabled().double(), "tp", *shards)
