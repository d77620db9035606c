"""Removing views that see just what they are taken of, or make up for a kept dim, so that gradients
and saved values are not views; and masks that are known to be causal.

    mm = aten.mm(t(dy), x)
    dw = aten.t(aten.t(mm))                        ->  dw = mm
    db = aten.view(aten.sum(dy, [0], True), [16])  ->  db = aten.sum(dy, [0], False)
"""

from __future__ import annotations

import operator
from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor, fx
from torch._ops import OpOverload

from piper.frontend.causal import fold_causal_masks
from piper.frontend.cotangents import join_notes
from piper.frontend.data import Capture, tag_of
from piper.frontend.joint import sweep
from piper.frontend.op_facts import effects

__all__ = ["simplify"]

aten = torch.ops.aten

# What only autograd cares about: results are their operand.
_IDENTITIES = (
    aten.detach.default,
    aten.alias.default,
    aten.lift_fresh.default,
    aten.lift_fresh_copy.default,
)


def simplify(captured: Capture) -> Capture:
    """Return ``captured`` without identities, views that undo each other and constant causal masks;
    values are equal.

    A view is replaced by the first value along the chain of views it is taken of that has its
    shape, strides, storage offset and dtype: both are the same elements. Then a user may read a
    value of an earlier chunk, so chunks stay convex. A chunk that is left without ops is gone.
    """
    graph = fx.Graph()
    copies: dict[fx.Node, fx.Node] = {}
    for node in captured.graph.nodes:
        same = _same_value(node)
        if same is not None:
            copies[node] = copies[same]
            join_notes(copies[same], node)
            continue
        copies[node] = graph.node_copy(node, copies.__getitem__)
        kept = _sum_of_kept_dims(node)
        if kept is not None:
            rest = fx.node.map_arg((kept.args, kept.kwargs), copies.__getitem__)
            copies[node].target = kept.target
            copies[node].args, copies[node].kwargs = (*rest[0][:2], False), rest[1]
    fold_causal_masks(graph)
    sweep(graph)
    graph.lint()
    used = {tag_of(node).chunk for node in graph.nodes if node.op == "call_function"}
    return replace(
        captured,
        graph=graph,
        losses=tuple(
            replace(
                loss,
                value=copies[loss.value],
                count=None if loss.count is None else copies[loss.count],
                tangent=None if loss.tangent is None else copies[loss.tangent],
            )
            for loss in captured.losses
        ),
        gradients=tuple(replace(part, node=copies[part.node]) for part in captured.gradients),
        chunks=tuple(name for name in captured.chunks if name in used),
    )


def _same_value(node: fx.Node) -> fx.Node | None:
    """Return an earlier node with the value of ``node``, or None."""
    if node.target in _IDENTITIES:
        operand = node.args[0]
        assert isinstance(operand, fx.Node)
        return operand
    value = node.meta.get("val")
    if not isinstance(value, Tensor):
        return None
    found = None
    for base in _bases(node):
        seen = base.meta["val"]
        if isinstance(seen, Tensor) and _sees(seen) == _sees(value):
            found = base
    return found


def _sum_of_kept_dims(node: fx.Node) -> fx.Node | None:
    """Return the sum whose summed dims a view removes, if the view is all that reads it."""
    kept = node.args[0] if node.target is aten.view.default else None
    if not isinstance(kept, fx.Node) or kept.target is not aten.sum.dim_IntList:
        return None
    if len(kept.users) > 1 or kept.args[2:] != (True,) or tag_of(kept) != tag_of(node):
        return None
    operand, dims = kept.args[:2]
    assert isinstance(operand, fx.Node)
    assert isinstance(dims, (list, tuple))
    shape = operand.meta["val"].shape
    summed = {dim % len(shape) for dim in dims if isinstance(dim, int)}
    left = [size for dim, size in enumerate(shape) if dim not in summed]
    return kept if dims and list(node.meta["val"].shape) == left else None


def _bases(node: fx.Node) -> Iterator[fx.Node]:
    """Yield what a view is a view of, and what that is a view of, and so on."""
    while (base := _base(node)) is not None:
        yield base
        node = base


def _base(node: fx.Node) -> fx.Node | None:
    if node.target is operator.getitem:
        producer = node.args[0]
        assert isinstance(producer, fx.Node)
        return _base(producer)
    if node.target in _IDENTITIES or (
        isinstance(node.target, OpOverload) and effects(node.target) == "view"
    ):
        return next(iter(node.all_input_nodes), None)
    return None


def _sees(value: Tensor) -> tuple[object, ...]:
    """Return which elements of its storage a tensor is, and how it reads them."""
    layout = (value.shape, value.stride(), value.storage_offset())
    return (*layout, value.dtype, value.is_conj(), value.is_neg())
