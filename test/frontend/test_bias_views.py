"""A bias is added behind the view that brings back the dims that a linear layer joined."""

from __future__ import annotations

import torch
from piper.frontend import Capture, capture
from piper.frontend.bias import separate_biases
from piper.frontend.data import tag_of
from torch import Tensor, nn

aten = torch.ops.aten
Batch = dict[str, Tensor]


class Residual(nn.Module):
    """Its sum has batch and time apart."""

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.down(x)
        return x[..., :4] + y


class Joined(Residual):
    """Its product is looked at with batch and time joined, too."""

    def forward(self, x: Tensor) -> Tensor:
        rows = torch.addmm(self.down.bias, x.flatten(0, 1), self.down.weight.t())
        return rows.view(2, 3, 4) * rows.sum()


def squares(model: nn.Module, batch: Batch) -> Tensor:
    loss: Tensor = model(batch["x"]).square().sum()
    return loss


def captured(model: nn.Module) -> Capture:
    batch = {"x": torch.zeros(2, 3, 6)}
    return separate_biases(
        capture(model, squares, batch, annotations={}, microbatches=1, data_shards=1)
    )


def test_the_sum_of_a_product_has_the_dims_of_its_input() -> None:
    """So that one of them is the sequence."""
    made = captured(Residual())
    [view] = [n for n in made.ops() if n.target is aten.view.default and n.args[1] == [2, 3, 4]]
    [product] = view.all_input_nodes
    [total] = view.users
    assert product.target is aten.mm.default
    assert total.target is aten.add.Tensor
    assert total.meta["val"].shape == (2, 3, 4)
    assert tag_of(total) == tag_of(view) == tag_of(product)
    assert view.args[0] is product
    assert not any(node.target is aten.addmm.default for node in made.ops())


def test_what_is_used_joined_keeps_its_bias_there() -> None:
    made = captured(Joined())
    sums = [node for node in made.ops() if node.target is aten.add.Tensor]
    [total] = [node for node in sums if node.all_input_nodes[0].target is aten.mm.default]
    assert total.meta["val"].shape == (6, 4)
    assert len(total.users) > 1
