"""What a joint graph must not hold, and what the message recommends instead."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from piper.frontend import Capture, CaptureError, capture
from torch import Tensor, nn
from torch.nn import functional

HERE = r"test_joint_checks\.py:\d+"
WORDS, WIDTH, ROWS = 8, 4, 8


class Words(nn.Module):
    """An embedding with options, before a layer."""

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.embed = nn.Embedding(WORDS, WIDTH, **options)
        self.fc = nn.Linear(WIDTH, WIDTH)

    def forward(self, ids: Tensor) -> Tensor:
        result: Tensor = self.fc(self.embed(ids))
        return result


def take(model: nn.Module) -> Capture:
    return capture(
        model,
        lambda model, batch: model(batch["ids"]).square().mean(),
        {"ids": torch.arange(ROWS) % WORDS},
        annotations={},
        microbatches=2,
        data_shards=2,
    )


def test_embedding_with_sparse_gradients() -> None:
    message = (
        rf"{HERE} \(embed\): op aten\._sparse_coo_tensor\S* makes a tensor of layout "
        r"torch\.sparse_coo, which a program cannot hold, .* of an embedding, sparse=False"
    )
    with pytest.raises(CaptureError, match=message):
        take(Words(sparse=True))


def test_embedding_bag_with_sparse_gradients() -> None:
    class Bags(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.bag = nn.EmbeddingBag(WORDS, WIDTH, sparse=True, mode="sum")

        def forward(self, ids: Tensor) -> Tensor:
            result: Tensor = self.bag(ids[:, None])
            return result

    with pytest.raises(CaptureError, match=rf"{HERE} \(bag\): .*which a program cannot hold"):
        take(Bags())


def test_embedding_that_bounds_its_rows() -> None:
    message = (
        rf"{HERE} \(embed\): forward changes parameter 'embed\.weight' in place, which is not "
        r"supported: .* expected an embedding to have no max_norm"
    )
    with pytest.raises(CaptureError, match=message):
        take(Words(max_norm=1.0))


def test_function_that_bounds_rows_of_a_parameter() -> None:
    class Direct(Words):
        def forward(self, ids: Tensor) -> Tensor:
            return functional.embedding(ids, self.fc.weight, max_norm=1.0)

    with pytest.raises(CaptureError, match=rf"{HERE}: forward changes parameter 'fc\.weight'"):
        take(Direct())


@pytest.mark.parametrize("kind", [nn.RNN, nn.LSTM, nn.GRU])
def test_recurrent_modules(kind: Callable[[int, int], nn.Module]) -> None:
    """Which the tracer refuses by itself."""

    class Recurrent(Words):
        def __init__(self) -> None:
            super().__init__()
            self.steps = kind(WIDTH, WIDTH)

        def forward(self, ids: Tensor) -> Tensor:
            result: Tensor = self.steps(self.embed(ids)[None])[0]
            return result

    with pytest.raises(CaptureError, match=rf"{HERE}: cannot capture: .*RNN, GRU, or LSTM"):
        take(Recurrent())


def test_branch_on_a_value() -> None:
    class Branch(Words):
        def forward(self, ids: Tensor) -> Tensor:
            x = self.fc(self.embed(ids))
            result: Tensor = torch.cond(x.sum() > 0, torch.sin, torch.cos, (x,))
            return result

    with pytest.raises(CaptureError, match=rf"{HERE}: op cond is a higher-order op"):
        take(Branch())


def test_module_that_scales_a_copy() -> None:
    """As the message recommends: what bounds rows, written so that nothing changes."""

    class Bounded(Words):
        def forward(self, ids: Tensor) -> Tensor:
            norms = self.embed.weight.norm(dim=1, keepdim=True)
            table = self.embed.weight * (1.0 / norms).clamp(max=1.0)
            result: Tensor = self.fc(functional.embedding(ids, table))
            return result

    taken = take(Bounded())
    assert {part.state for part in taken.gradients} == {"embed.weight", "fc.weight", "fc.bias"}
