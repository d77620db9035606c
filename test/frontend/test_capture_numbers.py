"""Captured graphs against plain PyTorch in fp64: microbatches summed equal the whole batch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
from capture_models import (
    GPT2_TAGS,
    GPT_TAGS,
    LLAMA_TAGS,
    Gpt,
    Mlp,
    gpt2,
    hf_loss,
    hf_own_loss,
    llama,
    row_batch,
    token_batch,
    token_loss,
)
from capture_reference import difference, run_capture, run_eager
from piper.frontend import capture, capture_eval
from torch import Tensor, nn
from torch.nn import functional

CASES: dict[str, tuple[Callable[[], nn.Module], Any, Mapping[str, str], float]] = {
    "gpt": (lambda: Gpt(), token_loss, GPT_TAGS, 1e-10),
    "gpt-sdpa-tied": (lambda: Gpt(fused=True, tied=True), token_loss, GPT_TAGS, 1e-10),
    "hf-gpt2": (gpt2, hf_loss, GPT2_TAGS, 1e-10),
    "hf-llama": (llama, hf_loss, LLAMA_TAGS, 1e-10),
    # The loss of transformers computes in fp32.
    "hf-gpt2-own-loss": (gpt2, hf_own_loss, GPT2_TAGS, 1e-6),
}


@pytest.mark.parametrize("case", CASES)
def test_gradients_equal_whole_batch(case: str) -> None:
    make, loss_fn, tags, floor = CASES[case]
    torch.manual_seed(0)
    model = make().double()
    batch = token_batch()
    captured = capture(model, loss_fn, batch, annotations=tags, microbatches=2, data_shards=2)
    got = run_capture(captured, model, batch)
    assert difference(got, run_eager(model, loss_fn, batch)) <= floor


def _logits(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    logits: Tensor = model(batch["x"])
    return logits


LOSSES: dict[str, Callable[[nn.Module, dict[str, Tensor]], Tensor]] = {
    "mean": lambda model, batch: (_logits(model, batch) ** 2).mean(),
    "mean over all dims": lambda model, batch: (_logits(model, batch) ** 2).mean((0, 1)),
    "mean of row sums": lambda model, batch: (_logits(model, batch) ** 2).sum(-1).mean(),
    "sum": lambda model, batch: (_logits(model, batch) ** 2).sum(),
    "scaled sum": lambda model, batch: -0.5 * (_logits(model, batch) ** 2).sum() / 3,
    "mse": lambda model, batch: functional.mse_loss(_logits(model, batch), batch["y"]),
    "mse sum": lambda model, batch: functional.mse_loss(
        _logits(model, batch), batch["y"], reduction="sum"
    ),
    "smooth l1": lambda model, batch: functional.smooth_l1_loss(_logits(model, batch), batch["y"]),
    "bce with logits": lambda model, batch: functional.binary_cross_entropy_with_logits(
        _logits(model, batch), (batch["y"] > 0).double()
    ),
    "scaled cross-entropy": lambda model, batch: (
        functional.cross_entropy(_logits(model, batch), batch["label"]) * 0.5
    ),
    "cross-entropy over images": lambda model, batch: functional.cross_entropy(
        _logits(model, batch).view(-1, 2, 4, 2),
        batch["label"][:, None, None].expand(-1, 4, 2) % 2,
    ),
}


@pytest.mark.parametrize("loss", LOSSES)
def test_every_accepted_loss_equals_whole_batch(loss: str) -> None:
    torch.manual_seed(0)
    model = Mlp().double()
    batch = row_batch()
    captured = capture(
        model, LOSSES[loss], batch, annotations={"*": "layer"}, microbatches=2, data_shards=1
    )
    assert (captured.losses[0].count is None) == ("sum" in loss and "mean" not in loss)
    got = run_capture(captured, model, batch)
    assert difference(got, run_eager(model, LOSSES[loss], batch)) <= 1e-10


def test_eval_computes_the_loss_without_dropout() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(Mlp(), nn.Dropout(0.5), nn.BatchNorm1d(16)).double()
    batch = row_batch()
    loss_fn = LOSSES["mse"]
    captured = capture_eval(
        model, loss_fn, batch, annotations={"*": "layer"}, microbatches=2, data_shards=2
    )
    loss, gradients = run_capture(captured, model, batch)
    assert not gradients
    assert captured.losses[0].tangent is None
    assert model.training
    expected = loss_fn(model.eval(), batch).detach()
    assert float((loss - expected).abs()) <= 1e-10


def test_eval_of_a_frozen_model() -> None:
    model = Mlp().double().requires_grad_(False)
    batch = row_batch()
    captured = capture_eval(
        model, LOSSES["mse"], batch, annotations={"*": "layer"}, microbatches=2, data_shards=1
    )
    loss, _ = run_capture(captured, model, batch)
    assert float((loss - LOSSES["mse"](model, batch)).abs()) <= 1e-10


def test_frozen_parameters_get_no_gradient() -> None:
    torch.manual_seed(0)
    model = Mlp().double()
    model.first.weight.requires_grad_(False)
    batch = row_batch()
    captured = capture(
        model, LOSSES["mse"], batch, annotations={"*": "layer"}, microbatches=2, data_shards=1
    )
    assert {spec.name for spec in captured.states if not spec.trainable} == {"first.weight"}
    got = run_capture(captured, model, batch)
    assert difference(got, run_eager(model, LOSSES["mse"], batch)) <= 1e-10
