"""Losses that balance experts, declared local, against their meaning in plain PyTorch:

cross-entropy of the batch + COEFFICIENT * mean of what each microbatch of each rank computes
"""

# ruff: noqa: N812  (plain PyTorch style)

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path

import hf_models
import moe_models
import piper
import pytest
import small_moe
import torch
import torch.nn.functional as F
from oracle import (
    BOUND,
    LossFunction,
    adamw,
    check_steps,
    distance,
    piper_steps,
    plain_steps,
    randomize,
    sgd,
)
from oracle_processes import check_processes
from piper_runtime import CheckError
from plain_ops import plain_ops
from small_moe import CLIP, EXPERTS, Batch, Experted
from strategies import Captures
from torch import Tensor, nn

COEFFICIENT = 0.5
FAR = 1e-4  # of what is meant from the loss of the whole batch, and from that without balance
Both = Callable[[nn.Module, Batch], tuple[Tensor, Tensor]]


class Layer(small_moe.Layer):
    """A layer that returns how unevenly its tokens use experts, too."""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        """The share of each expert's choices, times its mean score (Fedus et al., 2021)."""
        tokens = self.norm(x).flatten(0, 1)
        index, _ = self.router(tokens)
        share = F.one_hot(index, EXPERTS).to(x.dtype).mean((0, 1))
        score = self.router.score(tokens).sigmoid().mean(0)
        return super().forward(x), EXPERTS * (share * score).sum()


class Model(small_moe.Model):
    """Logits, and the sum of what layers return beside: ids (batch, time)."""

    def __init__(self) -> None:
        super().__init__(2, Layer)

    def forward(self, ids: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        x: Tensor = self.embed(ids)
        balance = torch.zeros((), dtype=x.dtype)
        for layer in self.layers:
            x, uneven = layer(x)
            balance = balance + uneven
        return self.head(x), balance


def by_hand(model: nn.Module, batch: Batch) -> tuple[Tensor, Tensor]:
    """Cross-entropy and balance of the model above."""
    logits, balance = model(batch["ids"])
    return F.cross_entropy(logits.flatten(0, 1), batch["labels"].flatten()), balance


def qwen(model: nn.Module, batch: Batch, *, reduction: str = "mean") -> tuple[Tensor, Tensor]:
    """Next tokens, and what transformers computes to balance experts: in fp32."""
    given = model(input_ids=batch["ids"], output_router_logits=True, use_cache=False)
    logits, labels = given.logits[:, :-1].flatten(0, 1), batch["labels"][:, 1:].flatten()
    return F.cross_entropy(logits, labels, reduction=reduction), given.aux_loss


def declared(both: Both) -> LossFunction:
    """What is compiled."""

    def loss_fn(model: nn.Module, batch: Batch) -> Tensor:
        loss, balance = both(model, batch)
        return loss + COEFFICIENT * piper.local_loss(balance, name="balance")

    return loss_fn


def split(batch: Batch, parts: int) -> list[Batch]:
    """The rows of each microbatch of each rank."""
    rows = {name: value.chunk(parts) for name, value in batch.items()}
    return [{name: rows[name][part] for name in batch} for part in range(parts)]


def meant(both: Both, parts: int) -> LossFunction:
    """What that means."""

    def loss_fn(model: nn.Module, batch: Batch) -> Tensor:
        balances = [both(model, rows)[1].double() for rows in split(batch, parts)]
        return both(model, batch)[0] + COEFFICIENT * torch.stack(balances).mean()

    return loss_fn


def floor(model: nn.Module, batch: Batch, parts: int) -> float:
    """How far plain PyTorch is from itself where it computes both terms of Qwen3-MoE at once: what
    both backward passes round to fp32 is then their sum.
    """
    count = int((batch["labels"][:, 1:] != hf_models.IGNORED).sum())

    def at_once(model: nn.Module, batch: Batch) -> Tensor:
        pairs = [qwen(model, rows, reduction="sum") for rows in split(batch, parts)]
        terms = [loss / count + COEFFICIENT * balance / parts for loss, balance in pairs]
        return torch.stack(terms).sum()

    found, expected = (
        plain_steps(model, loss, [batch])[0].gradients for loss in (at_once, meant(qwen, parts))
    )
    return max(distance(found[name], value) for name, value in expected.items())


@cache
def captures() -> Captures:
    torch.manual_seed(0)
    model = Model()
    randomize(model, scale=0.4)
    return Captures(model.double(), declared(by_hand))


@pytest.mark.parametrize(
    "case",
    [
        Experted("1F1B", 0, 2, 4, zero=1),
        pytest.param(Experted("1F1B", 2, 2, 4, zero=3), marks=pytest.mark.slow),
        Experted("DualPipeV", 2, 2, 4, zero=2),
        pytest.param(Experted("ZBVZeroBubble", 2, 0, 4, ep=4), marks=pytest.mark.slow),
        pytest.param(Experted("1F1B", 2, 2, 2, zero=2, rep=2), marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_balance_of_a_model_by_hand(case: Experted) -> None:
    """Three steps each of SGD with momentum and of AdamW, clipped, equal plain PyTorch."""
    model, batches = captures().model, small_moe.batches(case)
    program = captures().compile(case.plan(), batches[0])
    plain = meant(by_hand, case.parts)
    for factory in (sgd, adamw):
        expected = plain_steps(model, plain, batches, factory, clip=CLIP)
        check_steps(piper_steps(program, model, batches, factory), expected)
    (whole,) = plain_steps(model, declared(by_hand), batches[:1])
    router = "layers.0.router.score.weight"
    assert distance(whole.gradients[router], expected[0].gradients[router]) > FAR


def test_each_term_is_reported() -> None:
    case = Experted("1F1B", 0, 2, 2)
    model, (batch,) = captures().model, small_moe.batches(case, steps=1)
    program = captures().compile(case.plan(), batch)
    trainer = piper.Trainer(program, transport="local", model=model, optimizer=sgd)
    evaluated, result = trainer.evaluate(batch), trainer.step(batch)
    with torch.no_grad(), plain_ops():
        total = meant(by_hand, case.parts)(model, batch)
        loss, _ = by_hand(model, batch)
    assert result.losses.keys() == {"loss", "balance"}
    assert result.losses["loss"] == pytest.approx(float(loss), abs=BOUND)
    assert [result.loss, evaluated] == pytest.approx(2 * [float(total)], abs=BOUND)


@pytest.mark.parametrize(
    "case",
    [
        Experted("1F1B", 0, 2, 2),
        Experted("DualPipeV", 2, 2, 4, zero=2),
        pytest.param(Experted("1F1B", 2, 2, 2, zero=2, rep=2), marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_check_mode_compares_them(case: Experted) -> None:
    """Plain PyTorch has the main term of the whole batch, and the others of each microbatch."""
    (batch,) = small_moe.batches(case, steps=1)
    program, model = captures().compile(case.plan(), batch), captures().model
    summary = piper.check(
        program, declared(by_hand), batch, model=model, optimizer=sgd, transport="local", steps=2
    )
    assert summary.compared > 0
    assert summary.unknown == 0


def twice(model: nn.Module, batch: Batch) -> Tensor:
    loss, balance = by_hand(model, batch)
    return loss + 2 * COEFFICIENT * piper.local_loss(balance, name="balance")


def not_at_all(model: nn.Module, batch: Batch) -> Tensor:
    return by_hand(model, batch)[0]


@pytest.mark.parametrize(
    ("compiled", "checked"),
    [
        (declared(by_hand), twice),
        (declared(by_hand), not_at_all),
        (not_at_all, declared(by_hand)),
    ],
)
def test_check_mode_finds_another_local_loss(compiled: LossFunction, checked: LossFunction) -> None:
    case = Experted("1F1B", 0, 2, 2)
    (batch,) = small_moe.batches(case, steps=1)
    model = captures().model
    program = Captures(model, compiled).compile(case.plan(), batch)
    with pytest.raises(CheckError, match=r"the loss differs from plain .* from capture"):
        piper.check(program, checked, batch, model=model, optimizer=sgd, transport="local")


@pytest.mark.parametrize(
    "case",
    [
        Experted("1F1B", 0, 2, 4, zero=1),
        pytest.param(Experted("DualPipeV", 2, 2, 4, zero=1), marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_balance_of_an_unmodified_model(case: Experted) -> None:
    """Two steps of Qwen3-MoE, as near to plain PyTorch as that is to itself."""
    torch.manual_seed(0)
    model, batch = moe_models.qwen3_moe(2).double(), hf_models.make_batch(case)
    randomize(model)
    bound = max(BOUND, 10 * floor(model, batch, case.parts))
    plain = meant(qwen, case.parts)
    expected = plain_steps(model, plain, [batch, batch], sgd, clip=CLIP)
    qwen(model, batch)  # transformers installs hooks, which capture could not
    plan = case.plan(tags=moe_models.TAGS, experts="model.layers.*.mlp.experts.*")
    program = piper.compile(model, declared(qwen), plan, batch)
    check_steps(piper_steps(program, model, [batch, batch]), expected, bound=bound)
    alone = plain_steps(model, lambda *given: qwen(*given)[0], [batch, batch], sgd, clip=CLIP)
    router = "model.layers.0.mlp.gate.weight"
    assert distance(alone[0].gradients[router], expected[0].gradients[router]) > FAR


@pytest.mark.slow
def test_gloo_does_what_local_does(tmp_path: Path) -> None:
    """Four processes, each of which has microbatches of its own."""
    case = Experted("1F1B", 0, 2, 2, zero=1)
    model, batches = captures().model, small_moe.batches(case)
    program = captures().compile(case.plan(), batches[0])
    local = piper_steps(program, model, batches, adamw)
    check_steps(local, plain_steps(model, meant(by_hand, case.parts), batches, adamw, clip=CLIP))
    check_processes(program, model, batches, local, tmp_path)
