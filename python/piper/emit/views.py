"""Views inside kernels: fewer, since each costs the host as much as half a matrix product.

    v0 = view(a0, [8, 4])
    v1 = view(v0, [2, 4, 4])       ->  v1 = view(a0, [2, 4, 4])
    v2 = t(t(a1))                  ->  a1
    v3 = view(a2, [6])
    v4 = view(a2, [6])             ->  v3

What an op reads stays the same elements in the same strides: the fake results say so.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, fx
from torch._ops import OpOverload

from piper.emit.strides import is_unknown
from piper.frontend.op_facts import effects

__all__ = ["fold_views", "is_view"]

aten = torch.ops.aten

# Views that change the shape alone: two of them in a row are one.
_RESHAPES = (
    aten.view.default,
    aten.squeeze.default,
    aten.squeeze.dim,
    aten.squeeze.dims,
    aten.unsqueeze.default,
)


def is_view(node: fx.Node) -> bool:
    """Return whether the one result of an op shares memory with its operand.

    A ``reshape`` copies: emission writes one only where a view is impossible.
    """
    op = node.target
    return (
        isinstance(op, OpOverload)
        and op is not aten.reshape.default
        and effects(op) == "view"
        and isinstance(node.meta["val"], Tensor)
    )


def fold_views(graph: fx.Graph) -> None:
    """Merge views of views, undo views that undo each other, share equal ones, drop dead ones.

    Every node has its fake result in ``meta["val"]``.
    """
    known: dict[Any, fx.Node] = {}
    for node in list(graph.nodes):
        if node.op != "call_function" or not is_view(node):
            continue
        _merge(node)
        if not is_view(node):
            continue
        same = known.setdefault(_key(node), node)
        original = same if same is not node else _original(node)
        if original is not None:
            node.replace_all_uses_with(original)
    for node in reversed(graph.nodes):
        if node.op == "call_function" and not node.users and is_view(node):
            graph.erase_node(node)


def _merge(node: fx.Node) -> None:
    """Make a reshape of a reshape, or of a copy that is read here alone, a reshape of its operand."""
    if node.target is aten._unsafe_view.default:
        node.target = aten.view.default
    if node.target not in _RESHAPES:
        return
    base, shape = node.all_input_nodes[0], list(node.meta["val"].shape)
    written = [-1 if is_unknown(size) else size for size in shape]
    if node.target is aten.view.default:
        node.args = (base, written)
    if base.target is not aten.reshape.default and base.target not in _RESHAPES:
        return
    root = base.all_input_nodes[0]
    seen = _sees(_viewed(root.meta["val"], shape))
    if base.target in _RESHAPES and seen == _sees(node.meta["val"]):
        node.target, node.args = aten.view.default, (root, written)
    elif base.target is aten.reshape.default and seen is None and len(base.users) == 1:
        node.target, node.args = aten.reshape.default, (root, written)
        node.graph.erase_node(base)


def _viewed(value: Tensor, shape: Sequence[int]) -> Tensor | None:
    """Return a fake tensor in another shape, or None if that needs a copy."""
    try:
        return value.view(shape)
    except (RuntimeError, ValueError):
        return None


def _key(node: fx.Node) -> Any:
    """Return what two views must share to be equal."""
    return node.target, repr(node.args), repr(node.kwargs)


def _original(node: fx.Node) -> fx.Node | None:
    """Return the first value along the chain of views that has the elements of ``node``, if any."""
    found = None
    for base in _bases(node):
        if _sees(base.meta["val"]) == _sees(node.meta["val"]):
            found = base
    return found


def _bases(node: fx.Node) -> Iterator[fx.Node]:
    while node.op == "call_function" and is_view(node):
        node = node.all_input_nodes[0]
        if isinstance(node.meta["val"], Tensor):
            yield node


def _sees(value: Tensor | None) -> tuple[object, ...] | None:
    """Return how a tensor reads its storage."""
    if value is None:
        return None
    layout = (value.shape, value.stride(), value.storage_offset(), value.dtype)
    return (*layout, value.is_conj(), value.is_neg())
