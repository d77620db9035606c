"""Label smoothing: a loss of two terms in one call, which is told by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from piper.frontend import Capture, CaptureError, capture
from torch import Tensor, nn
from torch.nn import functional

HERE = r"test_smoothing\.py:\d+"
CLASSES, ROWS = 4, 8

Loss = Callable[[nn.Module, Any], Tensor]


def take(loss_fn: Loss, labels: Tensor | None = None) -> Capture:
    batch = {"x": torch.randn(ROWS, CLASSES), "y": torch.arange(ROWS) % CLASSES}
    batch |= {} if labels is None else {"y": labels}
    return capture(
        nn.Linear(CLASSES, CLASSES),
        loss_fn,
        batch,
        annotations={},
        microbatches=2,
        data_shards=2,
    )


def smoothed(**options: Any) -> Loss:
    def loss_fn(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        return functional.cross_entropy(
            model(batch["x"]), batch["y"], label_smoothing=0.1, **options
        )

    return loss_fn


NAMED = (
    rf"{HERE}: loss expected .*, got a cross-entropy with label_smoothing, which adds a second "
    r"mean; expected label_smoothing=0, or reduction='none' and \.mean\(\) or \.sum\(\)"
)


@pytest.mark.parametrize("options", [{}, {"reduction": "sum"}, {"ignore_index": 0}], ids=str)
def test_smoothing_is_named(options: dict[str, Any]) -> None:
    with pytest.raises(CaptureError, match=NAMED):
        take(smoothed(**options))


def test_smoothing_of_images_is_named() -> None:
    def loss_fn(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        logits = model(batch["x"])[:, :, None, None]
        return functional.cross_entropy(
            logits, batch["y"][:, None, None], label_smoothing=0.1
        ) / len("two")

    with pytest.raises(CaptureError, match=NAMED):
        take(loss_fn)


@pytest.mark.parametrize("total", [Tensor.mean, Tensor.sum], ids=["mean", "sum"])
def test_what_the_message_recommends(total: Callable[[Tensor], Tensor]) -> None:
    each = smoothed(reduction="none")
    (loss,) = take(lambda model, batch: total(each(model, batch))).losses
    assert (loss.count is None) == (total is Tensor.sum)


def test_two_losses_of_the_same_values_are_no_smoothing() -> None:
    def loss_fn(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        rows = model(batch["x"]).log_softmax(-1)
        classed = functional.nll_loss(rows, batch["y"])
        total: Tensor = classed + 0.1 * rows.mean()
        return total

    with pytest.raises(CaptureError, match=r"got several terms \(aten\.add\.Tensor\); return one"):
        take(loss_fn)


def test_losses_of_other_values_in_one_line_are_no_smoothing() -> None:
    def loss_fn(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        x: Tensor = model(batch["x"])
        return functional.cross_entropy(x, batch["y"]) + 0.1 * x.square().mean()

    with pytest.raises(CaptureError, match=r"got several terms \(aten\.add\.Tensor\); return one"):
        take(loss_fn)
