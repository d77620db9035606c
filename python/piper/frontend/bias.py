"""Products and biases as two ops: a bias is added once, also where ranks hold terms of the product.

`addmm(bias, a, b)` becomes `add(mm(a, b), bias)`.
"""

from __future__ import annotations

import torch

from piper.frontend.data import Capture

__all__ = ["separate_biases"]

aten = torch.ops.aten


def separate_biases(captured: Capture) -> Capture:
    """Change the graph of ``captured``, which is returned; rounding may differ in the last bit."""
    for node in captured.graph.nodes:
        if node.target is aten.addmm.default and not node.kwargs:
            bias, left, right = node.args
            with captured.graph.inserting_before(node):
                product = captured.graph.call_function(aten.mm.default, (left, right))
            product.meta = dict(node.meta)
            node.target, node.args = aten.add.Tensor, (product, bias)
    captured.graph.lint()
    return captured
