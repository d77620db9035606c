"""Rules of ops that need one dim whole, or look rows up by number.

softmax(a, 1)               "a b -> a c"
topk(a, 2, 1)               "a b -> a c, a d"
gather(a, 1, index)         "a b, a c -> a d"
embedding(table, index)     "v w, a b -> a b w"
nll_loss(logp, labels)      "n c, n -> , ; sum n"     summed
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final

import torch
from torch import fx
from torch._ops import OpOverload

from piper.frontend.rule_text import (
    argument,
    fresh_names,
    results,
    rule_text,
    shapes,
    sizes_in,
    take,
)

__all__ = ["WHOLE_RULES"]

aten = torch.ops.aten

_SUM: Final = 2  # `reduction` of a loss


def _within(node: fx.Node) -> str | None:
    """Keep a dim whole in operands and results, which agree in the others."""
    sides, outputs = shapes(node), [output.shape for output in results(node)]
    fresh = fresh_names()
    names = take(fresh, len(sides[0]))
    dim = argument(node, "dim")
    if any(_without(shape, dim) != _without(sides[0], dim) for shape in (*sides, *outputs)):
        return None  # an index that leaves some out

    def whole() -> list[str]:
        own_names = list(names)
        if own_names:
            own_names[dim] = next(fresh)
        return own_names

    linear = ["linear"] * (node.target is aten.slice_scatter.default)
    return rule_text([whole() for _ in sides], [whole() for _ in outputs], linear)


def _without(shape: torch.Size, dim: int) -> list[int]:
    """Return the other sizes."""
    return [size for index, size in enumerate(shape) if index != dim % len(shape)]


def _embedded(node: fx.Node) -> str:
    """Look rows up in a whole table."""
    index = take(fresh_names(), len(shapes(node)[1]))
    return rule_text([["v", "w"], index], [[*index, "w"]])


def _embedding_gradient(node: fx.Node) -> str:
    """Sum over everything that looked a row up, unless rows are scaled by how often that was."""
    index = take(fresh_names(), len(shapes(node)[1]))
    sums = [] if argument(node, "scale_grad_by_freq") else [f"sum {name}" for name in index]
    return rule_text([[*index, "w"], index], [["v", "w"]], sums)


def _normalized(node: fx.Node) -> str:
    """Keep the dims of a layer norm whole; of its weight and bias, gradients are sums."""
    sides = shapes(node)
    num_whole = len(argument(node, "normalized_shape"))
    fresh = fresh_names()
    rows = take(fresh, sum(1 for _ in sides[0]) - num_whole)

    def whole() -> list[str]:
        return take(fresh, num_whole)

    ones = [*rows, *(["1"] * num_whole)]
    if node.target is aten.native_layer_norm.default:
        rest = [whole() for _ in sides[1:]]
        return rule_text([[*rows, *whole()], *rest], [[*rows, *whole()], ones, ones])
    rest = [whole() for _ in sides[4:]]
    operands = [[*rows, *whole()], [*rows, *whole()], ones, ones, *rest]
    sums = [f"sum {name}" for name in rows]
    return rule_text(operands, [[*rows, *whole()], whole(), whole()], sums)


def _made(node: fx.Node) -> str:
    """A new tensor of given sizes, like another in dtype alone."""
    fresh = fresh_names()
    like = take(fresh, len(shapes(node)[0]))
    names = take(fresh, results(node)[0].dim())
    return rule_text([like], [names], sizes_in(node, 1, names))


def _summed_loss(node: fx.Node) -> str | None:
    """Sum over rows, of which each has its label; classes are whole."""
    logits = argument(node, "self").meta["val"]
    plain = argument(node, "weight") is None and logits.dim() == 2
    if not plain or argument(node, "reduction") != _SUM:
        return None
    if node.target is aten.nll_loss_backward.default:
        return ", n c, n,  -> n d"
    return "n c, n -> , ; sum n"


WHOLE_RULES: Final[Mapping[OpOverload, Callable[[fx.Node], str | None]]] = MappingProxyType(
    {
        aten._softmax.default: _within,
        aten._log_softmax.default: _within,
        aten._softmax_backward_data.default: _within,
        aten._log_softmax_backward_data.default: _within,
        aten.cumsum.default: _within,
        aten.topk.default: _within,
        aten.sort.default: _within,
        aten.gather.default: _within,
        aten.scatter.src: _within,
        aten.scatter.value: _within,
        aten.scatter_add.default: _within,
        aten.slice_scatter.default: _within,
        aten.embedding.default: _embedded,
        aten.embedding_dense_backward.default: _embedding_gradient,
        aten.native_layer_norm.default: _normalized,
        aten.native_layer_norm_backward.default: _normalized,
        aten.new_empty.default: _made,
        aten.new_zeros.default: _made,
        aten.nll_loss_forward.default: _summed_loss,
        aten.nll_loss_backward.default: _summed_loss,
    }
)
