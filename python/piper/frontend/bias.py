"""Products and biases as two ops: a bias is added once, also where ranks hold terms of the product.

`addmm(bias, a, b)` becomes `add(mm(a, b), bias)`, and where a view brings back the dims that a
linear layer joined, the bias is added behind it: what ranks then sum has a dim of the sequence.
"""

from __future__ import annotations

import torch
from torch import fx

from piper.frontend.cotangents import PRIMALS
from piper.frontend.data import Capture

__all__ = ["separate_biases"]

aten = torch.ops.aten


def separate_biases(captured: Capture) -> Capture:
    """Change the graph of ``captured``, which is returned; rounding may differ in the last bit."""
    graph = captured.graph
    for node in graph.nodes:
        if node.target is not aten.addmm.default or node.kwargs:
            continue
        bias, left, right = node.args
        with graph.inserting_before(node):
            product = graph.call_function(aten.mm.default, (left, right))
        product.meta = {key: value for key, value in node.meta.items() if key != PRIMALS}
        view = _view_of(node, bias)
        if view is None:
            node.target, node.args = aten.add.Tensor, (product, bias)
        else:
            _add_behind(view, product, bias)
            graph.erase_node(node)
    graph.lint()
    return captured


def _view_of(node: fx.Node, bias: fx.Node) -> fx.Node | None:
    """Return the view that is all there is of a result, if that keeps the features."""
    view = next(iter(node.users), None)
    if view is None or len(node.users) > 1 or view.target is not aten.view.default:
        return None
    features, kept = node.meta["val"].shape[-1], view.meta["val"].shape[-1]
    return view if features == kept and bias.meta["val"].dim() == 1 else None


def _add_behind(view: fx.Node, product: fx.Node, bias: fx.Node) -> None:
    graph = view.graph
    with graph.inserting_after(view):
        total = graph.call_function(aten.add.Tensor, (view, bias))
    total.meta = dict(view.meta)
    view.meta = {key: value for key, value in view.meta.items() if key != PRIMALS}
    view.replace_all_uses_with(total, delete_user_cb=lambda user: user is not total)
    view.args = (product, *view.args[1:])
