"""Simplified captures: equal numbers, fewer views, and gradients that are no views."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from capture_models import WIDTH, row_batch, token_batch
from capture_reference import run_capture
from piper.frontend import Capture, capture
from piper.frontend.data import site_of, tag_of
from piper.frontend.simplify import simplify
from step_models import MODELS, model_of, step_of
from torch import Tensor, nn
from torch.nn import functional

aten = torch.ops.aten


def num_ops(captured: Capture) -> int:
    return sum(1 for _ in captured.ops())


@pytest.mark.parametrize("name", MODELS)
def test_values_are_equal(name: str) -> None:
    """To the bit, but where a mask is folded: then attention takes another way to the same values."""
    before, model, batch = step_of(name), model_of(name), token_batch()
    after = simplify(before)
    assert num_ops(after) < num_ops(before)
    assert after.chunks == before.chunks
    expected_loss, expected = run_capture(before, model, batch)
    loss, gradients = run_capture(after, model, batch)
    bound = 1e-12 if name.startswith("hf-") else 0.0
    torch.testing.assert_close(loss, expected_loss, rtol=0, atol=bound)
    torch.testing.assert_close(gradients, expected, rtol=0, atol=bound)
    for node in after.ops():
        assert tag_of(node).chunk
        assert site_of(node).line


def of(forward: Callable[[Tensor, nn.Linear], Tensor]) -> Capture:
    """Capture the sum of what ``forward`` makes of (4, WIDTH) rows and a linear layer."""

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(WIDTH, WIDTH)

        def forward(self, x: Tensor) -> Tensor:
            return forward(x, self.fc)

    def loss_fn(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        loss: Tensor = model(batch["x"]).sum()
        return loss

    batch = {name: value[:4] for name, value in row_batch().items()}
    return simplify(
        capture(Model().double(), loss_fn, batch, annotations={}, microbatches=1, data_shards=1)
    )


def targets(captured: Capture, pass_: str = "F") -> list[str]:
    return [str(node.target) for node in captured.ops() if tag_of(node).pass_ == pass_]


def test_gradients_of_a_linear_layer_are_no_views() -> None:
    captured = of(lambda x, fc: functional.relu(fc(x)))
    parts = {part.state: part.node for part in captured.gradients}
    assert parts["fc.weight"].target is aten.mm.default
    assert parts["fc.bias"].target is aten.sum.dim_IntList
    assert parts["fc.bias"].args[1:] == ([0], False)


def test_inverse_permutations_and_views_are_gone() -> None:
    captured = of(
        lambda x, fc: fc(x.view(4, 2, 8).permute(2, 0, 1).permute(1, 2, 0).view(4, WIDTH).t().t())
    )
    assert targets(captured) == targets(of(lambda x, fc: fc(x)))


def test_identities_are_gone() -> None:
    captured = of(lambda x, fc: fc(x).mul(fc(x).detach()))
    assert "aten.detach.default" not in targets(captured)


def test_views_of_other_elements_stay() -> None:
    square = of(lambda x, fc: fc(x)[:, :4].t().contiguous().t())
    assert targets(square).count("aten.t.default") == 3  # one is of the weight
    parts = of(lambda x, fc: fc(x)[0:2] + fc(x)[2:4])
    assert "aten.slice.Tensor" in targets(parts)


def test_lazy_conjugation_stays() -> None:
    captured = of(lambda x, fc: torch.view_as_real(fc(x).to(torch.complex128).conj() * fc(x)))
    assert "aten._conj.default" in targets(captured)
