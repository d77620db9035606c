"""What tagging refuses, and where it puts ops of parameters alone."""

from __future__ import annotations

import piper
import pytest
import torch
from capture_models import Mlp, row_batch
from piper.frontend import CaptureError, capture
from piper.frontend.annotations import Hit
from piper.frontend.tags import _tag_forward
from torch import Tensor, fx, nn


def squares(model: nn.Module, _: object) -> Tensor:
    """A loss of parameters alone."""
    return piper.local_loss(sum((p.square().sum() for p in model.parameters()), torch.zeros(())))


def mixed(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    total: Tensor = model(batch["x"]).sum()
    return total + squares(model, batch)


def test_ops_of_parameters_alone_are_where_these_are_read() -> None:
    """Sums of them are where the last term is; the backward of each is with its forward."""
    taken = capture(
        Mlp(), mixed, row_batch(), annotations={"*": "layer"}, microbatches=2, data_shards=1
    )
    assert taken.chunks == ("layer.0", "layer.1")
    found = {
        (part.state, part.tag.chunk) for part in taken.gradients if part.state.endswith("weight")
    }
    assert found == {("first.weight", "layer.0"), ("second.weight", "layer.1")}
    (main, local) = taken.losses
    assert str(main.value.meta["tag"]) == str(local.value.meta["tag"]) == "layer.1$F"


def test_annotations_in_which_nothing_runs() -> None:
    """A module that is annotated covers its parameters, but nothing calls it."""
    model = nn.ModuleDict({"inner": Mlp()})
    message = "no annotation names a chunk: no op that reads parameters .*, got 'inner'"
    with pytest.raises(CaptureError, match=message):
        capture(model, squares, row_batch(), annotations={"*": "a"}, microbatches=1, data_shards=1)


def test_a_chunk_that_another_interrupts_is_refused() -> None:
    """One occurrence of a tag that needs a value made from its own first half elsewhere."""
    graph = fx.Graph()
    first = graph.call_function(torch.ops.aten.relu.default, (graph.placeholder("x"),))
    between = graph.call_function(torch.ops.aten.neg.default, (first,))
    second = graph.call_function(torch.ops.aten.add.Tensor, (first, between))
    for line, node in enumerate((first, between, second), start=1):
        node.meta["stack_trace"] = f'File "model.py", line {line}, in forward\n    pass'
    hits = {first: Hit("a", "a@1"), between: Hit("b", "b@1"), second: Hit("a", "a@1")}
    with pytest.raises(CaptureError, match=r"tag 'a' is not convex.*tag 'b' that starts after it"):
        _tag_forward([first, between, second], hits, {"a@1": 0, "b@1": 1})
