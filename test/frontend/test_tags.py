"""What tagging refuses, on graphs that no tracer makes today."""

from __future__ import annotations

import pytest
import torch
from piper.frontend import CaptureError
from piper.frontend.annotations import Hit
from piper.frontend.tags import _tag_forward
from torch import fx


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
