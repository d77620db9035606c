"""Losses that couple examples are refused, with the line that does; others are not."""

from __future__ import annotations

from collections.abc import Callable

import piper
import pytest
import torch
from capture_models import LENGTH, VOCABULARY, WIDTH
from piper.frontend import CaptureError, capture, capture_eval
from torch import Tensor, nn
from torch.nn import functional

ROWS = 8
Forward = Callable[["Model", Tensor, Tensor], Tensor]


class Model(nn.Module):
    """Tokens to rows of logits; the loss is made of both by a function."""

    def __init__(self, loss: Forward) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, WIDTH)
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, 4)
        self.loss = loss

    def forward(self, ids: Tensor) -> Tensor:
        x = self.norm(self.embed(ids))
        mixed = functional.scaled_dot_product_attention(x, x, x, is_causal=True)
        return self.loss(self, mixed, self.head(mixed))


def taken(
    loss: Forward,
    *,
    microbatches: int = 2,
    data_shards: int = 2,
    held: int | None = None,
    evaluate: bool = False,
) -> None:
    """Capture a model with this loss."""
    take = capture_eval if evaluate else capture
    take(
        Model(loss),
        lambda model, batch: model(batch["ids"]),
        {"ids": torch.zeros(ROWS, LENGTH, dtype=torch.int64)},
        annotations={"": "all"},
        microbatches=microbatches,
        data_shards=data_shards,
    )


def balance(model: Model, x: Tensor, logits: Tensor) -> Tensor:
    """As auxiliary losses of routers are: the mean probability of each expert over all tokens."""
    chances = logits.flatten(0, 1).softmax(-1)
    return chances.mean(0).square().sum()


def balance_beside(model: Model, x: Tensor, logits: Tensor) -> Tensor:
    chances = logits.softmax(-1)
    return (logits.square().sum(-1) + chances.mean((0, 1)).square().sum()).mean()


def contrast(model: Model, x: Tensor, logits: Tensor) -> Tensor:
    """Each example against all others."""
    rows = logits.mean(1)
    return (rows @ rows.t()).softmax(-1).square().sum()


def batch_norm(model: Model, x: Tensor, logits: Tensor) -> Tensor:
    centred = logits - logits.mean(0, keepdim=True)
    return centred.square().mean()


def scatter_matrix(model: Model, x: Tensor, logits: Tensor) -> Tensor:
    rows = logits.flatten(0, 1)
    return (rows.t() @ rows).square().sum()


def mean_of_all(model: Model, x: Tensor, logits: Tensor) -> Tensor:
    return (logits - logits.mean()).square().sum()


COUPLED = [balance, balance_beside, contrast, batch_norm, scatter_matrix, mean_of_all]


@pytest.mark.parametrize("loss", COUPLED)
def test_what_sums_over_examples_is_refused(loss: Forward) -> None:
    line = loss.__code__.co_firstlineno
    message = (
        r"test_coupling\.py:\d+.*: op aten\.\S+ (sums over|mixes|pairs) the examples of a batch"
    )
    for evaluate in (False, True):
        with pytest.raises(CaptureError, match=message) as error:
            taken(loss, evaluate=evaluate)
        found = int(str(error.value).partition("test_coupling.py:")[2].split()[0].rstrip(":"))
        assert line < found <= line + 4


def test_a_process_that_feeds_one_shard_of_two_is_refused_as_well() -> None:
    """As under torchrun: the other rank has other examples."""
    model = Model(balance)
    strategy = piper.Strategy(
        mesh={"dp": 2},
        directives=[
            piper.annotate({"": "all"}),
            piper.split(microbatches=1),
            piper.replicate(axis="dp"),
        ],
    )
    batch = {"ids": torch.zeros(ROWS, LENGTH, dtype=torch.int64)}
    with pytest.raises(CaptureError, match="sums over the examples of a batch"):
        piper.compile(model, lambda model, b: model(b["ids"]), strategy, batch, data_shards=1)


@pytest.mark.parametrize("loss", COUPLED)
def test_a_whole_batch_may_be_coupled(loss: Forward) -> None:
    taken(loss, microbatches=1, data_shards=1)


def plain(model: Model, x: Tensor, logits: Tensor) -> Tensor:
    return logits.square().mean()


def by_token(model: Model, x: Tensor, logits: Tensor) -> Tensor:
    return logits.log_softmax(-1).sum(-1).mean()


def pooled(model: Model, x: Tensor, logits: Tensor) -> Tensor:
    """Means over the tokens of each example."""
    pooled = x.mean(1) - x.amax(1)
    chances: Tensor = model.head(pooled).softmax(-1)
    return chances.square().sum()


def in_two_steps(model: Model, x: Tensor, logits: Tensor) -> Tensor:
    """Linear in the sum over examples."""
    return 2 * logits.square().sum(0).sum()


def length_first(model: Model, x: Tensor, logits: Tensor) -> Tensor:
    rows = logits.transpose(0, 1)
    return (rows - rows.mean(0, keepdim=True)).square().sum()


def of_weights(model: Model, x: Tensor, logits: Tensor) -> Tensor:
    """Statistics of parameters are no statistics of examples."""
    weight = model.head.weight
    return (logits * (weight @ weight.t()).sum(0).softmax(0)).square().sum()


@pytest.mark.parametrize("loss", [plain, by_token, pooled, in_two_steps, length_first, of_weights])
def test_what_each_example_has_for_itself_is_taken(loss: Forward) -> None:
    taken(loss)
