"""Products and biases as two ops: the same numbers, places and tags."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from capture_models import WIDTH, row_batch, token_batch
from capture_reference import run_capture
from piper.frontend import Capture, capture
from piper.frontend.bias import separate_biases
from piper.frontend.data import site_of, tag_of
from step_models import MODELS, model_of, step_of
from torch import Tensor, fx, nn

aten = torch.ops.aten


def count(captured: Capture, op: object) -> int:
    return sum(node.target is op for node in captured.ops())


def copy_of(captured: Capture) -> Capture:
    """One whose graph may be changed."""
    graph = fx.Graph()
    graph.output(graph.graph_copy(captured.graph, {}))
    return replace(captured, graph=graph)


@pytest.mark.parametrize("name", MODELS)
def test_values_are_equal(name: str) -> None:
    """But for the last bit: a fused product adds the bias before it rounds."""
    before, model, batch = step_of(name), model_of(name), token_batch()
    products, biased = count(before, aten.mm.default), count(before, aten.addmm.default)
    sums = count(before, aten.add.Tensor)
    after = separate_biases(copy_of(before))
    assert count(after, aten.addmm.default) == 0
    assert count(after, aten.mm.default) == products + biased
    assert count(after, aten.add.Tensor) == sums + biased
    expected_loss, expected = run_capture(before, model, batch)
    loss, gradients = run_capture(after, model, batch)
    torch.testing.assert_close(loss, expected_loss, rtol=0, atol=1e-12)
    torch.testing.assert_close(gradients, expected, rtol=0, atol=1e-12)


class Scaled(nn.Module):
    """A product whose bias is scaled is none of a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.plain, self.scaled = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        weight = self.scaled.weight.t()
        return torch.addmm(self.scaled.bias, self.plain(x), weight, beta=2.0, alpha=0.5)


def squares(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    loss: Tensor = model(batch["x"]).square().sum()
    return loss


def test_both_ops_come_from_the_line_of_the_product() -> None:
    """And belong to its chunk; what is scaled stays as it is."""
    torch.manual_seed(0)
    captured = capture(
        Scaled().double(), squares, row_batch(), annotations={}, microbatches=1, data_shards=1
    )
    [product] = [n for n in captured.ops() if n.target is aten.addmm.default and not n.kwargs]
    tag, site, shape = tag_of(product), site_of(product), product.meta["val"].shape
    separate_biases(captured)
    assert product.target is aten.add.Tensor
    assert count(captured, aten.addmm.default) == 1
    made = product.all_input_nodes[0]
    assert made.target is aten.mm.default
    for node in (made, product):
        assert (tag_of(node), site_of(node)) == (tag, site)
        assert node.meta["val"].shape == shape
