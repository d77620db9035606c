"""Tensors that are filled part by part: autograd's copies of gradients are no ops of their own."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from capture_models import WIDTH, row_batch
from capture_reference import run_capture
from piper.frontend import CaptureError, capture
from piper.frontend.copies import fold_copies
from piper.frontend.simplify import simplify
from torch import Tensor, fx, nn
from torch._subclasses.fake_tensor import FakeTensorMode

aten = torch.ops.aten
HALF = WIDTH // 2


class Filled(nn.Module):
    """Joins two halves as multi-head latent attention does: by writing each to its place."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(WIDTH, HALF)
        self.second = nn.Linear(WIDTH, HALF)

    def forward(self, x: Tensor) -> Tensor:
        both = x.new_empty(len(x), WIDTH)
        both[:, :HALF].copy_(self.first(x))
        both[:, HALF:].copy_(self.second(x))
        return both


def squares(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    loss: Tensor = model(batch["x"]).pow(3).sum()
    return loss


def test_a_tensor_filled_by_parts_has_its_gradients() -> None:
    torch.manual_seed(0)
    model, batch = Filled().double(), row_batch()
    captured = capture(
        model, squares, batch, annotations={"": "all"}, microbatches=1, data_shards=1
    )
    for taken in (captured, simplify(captured)):
        assert not any(node.target is aten.new_empty_strided.default for node in taken.ops())
        loss, gradients = run_capture(taken, model, batch)
        model.zero_grad()
        expected = squares(model, batch)
        expected.backward()  # type: ignore[no-untyped-call]
        torch.testing.assert_close(loss, expected.detach())
        for name, parameter in model.named_parameters():
            torch.testing.assert_close(gradients[name], parameter.grad)


Values = tuple[Tensor, Tensor]


def folded(make: Callable[[], Values]) -> fx.Node:
    """What a copy of one value into another becomes."""
    with FakeTensorMode():
        values = make()
        graph = fx.Graph()
        nodes = [graph.placeholder(name) for name in ("new", "value")]
        node = graph.call_function(aten.copy.default, tuple(nodes))
        graph.output(node)
        for placeholder, value in zip(nodes, values, strict=True):
            placeholder.meta["val"] = value
        node.meta["val"] = aten.copy.default(*values)
        fold_copies(graph)
    assert graph.output_node().args == (node,)
    return node


def test_a_copy_in_the_same_strides_is_an_alias() -> None:
    node = folded(lambda: (torch.empty(4, 6), torch.empty(4, 6)))
    assert node.target is aten.alias.default
    assert [str(arg) for arg in node.args] == ["value"]


def test_a_contiguous_copy_is_a_clone() -> None:
    node = folded(lambda: (torch.empty(4, 6), torch.empty(6, 4).t()))
    assert node.target is aten.clone.default
    assert [str(arg) for arg in node.args] == ["value"]
    assert node.kwargs == {"memory_format": torch.contiguous_format}


@pytest.mark.parametrize(
    "make",
    [
        lambda: (torch.empty(6, 4).t(), torch.empty(4, 6)),
        lambda: (torch.empty(4, 6), torch.empty(6)),
        lambda: (torch.empty(4, 6), torch.empty(4, 6, dtype=torch.float64)),
    ],
    ids=["strides", "broadcast", "dtype"],
)
def test_other_copies_stay(make: Callable[[], Values]) -> None:
    assert folded(make).target is aten.copy.default


def test_strides_that_are_needed_are_refused() -> None:
    """Those of a tensor that is transposed while it is filled."""

    class Transposed(Filled):
        def forward(self, x: Tensor) -> Tensor:
            return x.new_empty_strided((len(x), WIDTH), (1, len(x))).copy_(
                self.first(x).repeat(1, 2)
            )

    with pytest.raises(CaptureError, match=r"new_empty_strided\.default reads or writes strides"):
        capture(
            Transposed(),
            lambda model, batch: model(batch["x"]).sum(),
            {"x": torch.zeros(4, WIDTH)},
            annotations={"": "all"},
            microbatches=1,
            data_shards=1,
        )
