"""Training steps compared with those of plain PyTorch, in fp64."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import pytest
from piper_runtime import Trainer
from piper_runtime.states.optimizer import OptimizerFactory
from torch import Tensor, nn

TOLERANCE = 1e-12
Batch = dict[str, Tensor]


def close(got: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> None:
    assert got.keys() == expected.keys()
    for name, value in expected.items():
        assert got[name].shape == value.shape
        assert got[name].dtype == value.dtype
        assert float((got[name] - value).abs().max()) <= TOLERANCE, name


def mean_loss(model: nn.Module, batch: Batch) -> Tensor:
    """Return the mean squared error."""
    loss: Tensor = (model(batch["x"]) - batch["target"]).square().mean()
    return loss


def train_as_plain(
    trainer: Trainer,
    plain: nn.Module,
    batches: Iterable[Batch],
    factory: OptimizerFactory,
    clip: float | None = None,
) -> None:
    """Take steps in plain PyTorch as well; compare loss, gradients and state of each."""
    optimizer = factory(list(plain.parameters()))
    for batch in batches:
        result = trainer.step(batch)
        optimizer.zero_grad()
        loss = mean_loss(plain, batch)
        loss.backward()  # type: ignore[no-untyped-call]
        gradients = {name: p.grad for name, p in plain.named_parameters() if p.grad is not None}
        assert result.loss == pytest.approx(loss.item(), abs=TOLERANCE)
        close(trainer.gradients(), gradients)
        norm = nn.utils.get_total_norm(gradients.values())
        assert result.grad_norm == pytest.approx(norm.item(), abs=TOLERANCE)
        if clip is not None:
            assert norm > clip
            nn.utils.clip_grad_norm_(plain.parameters(), clip)
        optimizer.step()
        close(trainer.full_state_dict(), {n: p.detach() for n, p in plain.named_parameters()})
