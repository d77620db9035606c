"""Strides inside kernels. Arguments of kernels are contiguous; what they were captured from need
not have been, so a view that was possible at capture may not be here, and a result may be strided.

Where how many rows there are depends on data, a number stands for it that no other dim has.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, fx
from torch._subclasses.fake_tensor import FakeTensorMode

from piper.frontend.attributes import dtype_of_type
from piper.mlir import ir

__all__ = ["UNKNOWN", "is_unknown", "reshape_where_needed"]

aten = torch.ops.aten
_VIEWS = (aten.view.default, aten._unsafe_view.default)

UNKNOWN = 1_000_003
"""A prime that stands for a number of rows that depends on data."""


def is_unknown(size: int) -> bool:
    """Return whether a size depends on data: it is a multiple of what stands for that."""
    return size > 0 and size % UNKNOWN == 0


def reshape_where_needed(graph: fx.Graph, arguments: Sequence[ir.Type]) -> FakeTensorMode:
    """Turn each ``view`` of ``graph`` that contiguous arguments make impossible into a ``reshape``.

    Leaves the fake result of each node in ``meta["val"]``, and returns the mode of these.
    """
    given = iter(arguments)
    with FakeTensorMode() as mode, torch.no_grad():
        for node in graph.nodes:
            if node.op == "placeholder":
                node.meta["val"] = _fake(next(given))
            elif node.op == "call_function":
                _run(node, mode)
    return mode


def _fake(type_: ir.Type) -> Tensor:
    """Return a contiguous tensor of an argument's type (under a fake mode)."""
    tensor = ir.RankedTensorType(type_)
    dynamic = ir.ShapedType.get_dynamic_size()
    shape = [UNKNOWN if size == dynamic else size for size in tensor.shape]
    return torch.empty(shape, dtype=dtype_of_type(tensor.element_type))


def _run(node: fx.Node, mode: FakeTensorMode) -> None:
    args, kwargs = fx.node.map_arg((node.args, node.kwargs), lambda arg: arg.meta["val"])
    assert callable(node.target)
    try:
        node.meta["val"] = node.target(*args, **kwargs)
    except (RuntimeError, ValueError):
        if node.target not in _VIEWS:
            raise
        node.target = aten.reshape.default
        node.meta["val"] = aten.reshape.default(*args, **kwargs)
