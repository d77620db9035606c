"""Copies into new tensors, as autograd writes them for code that fills a tensor part by part.

    new = aten.new_empty_strided(grad, [4, 8], [8, 1])
    y   = aten.copy(new, grad)                            ->  y = aten.alias(grad)

What the new tensor held before is not read, so neither it nor its strides are needed.
"""

from __future__ import annotations

import torch
from torch import Tensor, fx

__all__ = ["fold_copies"]

aten = torch.ops.aten


def fold_copies(graph: fx.Graph) -> None:
    """Replace copies of a whole value into another tensor by an alias of the value, in place.

    Where the copy has other strides, it becomes a contiguous clone if it is contiguous, and stays
    as it is otherwise.
    """
    for node in graph.nodes:
        if node.target is not aten.copy.default:
            continue
        source, value = node.args[1], node.meta["val"]
        assert isinstance(source, fx.Node)
        if _is_same(source.meta["val"], value):
            node.target, node.args = aten.alias.default, (source,)
        elif _fits(source.meta["val"], value) and value.is_contiguous():
            node.target = aten.clone.default
            node.args, node.kwargs = (source,), {"memory_format": torch.contiguous_format}


def _fits(source: Tensor, copy: Tensor) -> bool:
    return source.shape == copy.shape and source.dtype == copy.dtype


def _is_same(source: Tensor, copy: Tensor) -> bool:
    return _fits(source, copy) and source.stride() == copy.stride()
