"""Rules of ops that need one dim whole, or look rows up by number.

softmax(a, 1)               "a b -> a c; b c by piper.softmax_part after piper.log_sum_exp_part"
topk(a, 2, 1)               "a b -> a c, a d"
gather(a, 1, index)         "a b, a c -> a d"
embedding(table, index)     "v w, a b -> a b w; v by piper.embedding_part"
nll_loss(logp, labels)      "a c, a -> , ; sum a, c by piper.nll_loss_part same 1"     summed
nll_loss(logp, labels)      "a c, a -> a, ; c by piper.nll_loss_part same 1"           not reduced

Names of ops are followed by ".default".
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Final

import torch
from torch import fx
from torch._ops import OpOverload

from piper.frontend.rule_text import (
    argument,
    by_part,
    fresh_names,
    results,
    rule_text,
    shapes,
    sizes_in,
    take,
)

__all__ = ["WHOLE_RULES"]

aten = torch.ops.aten

_NONE: Final = 0  # `reduction` of a loss
_SUM: Final = 2
# By the op: that of parts, and the one that makes an element of each before.
_OF_PARTS: Final[Mapping[object, tuple[str, str]]] = MappingProxyType(
    {
        aten._softmax.default: ("softmax_part", "log_sum_exp_part"),
        aten._log_softmax.default: ("log_softmax_part", "log_sum_exp_part"),
        aten._softmax_backward_data.default: ("softmax_backward_part", "softmax_backward_sum_part"),
        aten._log_softmax_backward_data.default: ("log_softmax_backward_part", "sum_part"),
    }
)


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

    inputs, made = [whole() for _ in sides], [whole() for _ in outputs]
    more = ["linear"] * (node.target is aten.slice_scatter.default)
    if node.target in _OF_PARTS and names:
        op, stats = _OF_PARTS[node.target]
        more += by_part(node, (side[dim] for side in (*inputs, *made)), op, after=stats)
    return rule_text(inputs, made, more)


def _without(shape: torch.Size, dim: int) -> list[int]:
    """Return the other sizes."""
    return [size for index, size in enumerate(shape) if index != dim % len(shape)]


def _embedded(node: fx.Node) -> str:
    """Look rows up in a whole table, or in a part of it by another op."""
    index = take(_other_names("v", "w"), len(shapes(node)[1]))
    parts = by_part(node, "v", "embedding_part")
    return rule_text([["v", "w"], index], [[*index, "w"]], parts)


def _other_names(*names: str) -> Iterator[str]:
    return (name for name in fresh_names() if name not in names)


def _embedding_gradient(node: fx.Node) -> str:
    """Sum over everything that looked a row up, unless rows are scaled by how often that was."""
    index = take(_other_names("v", "w"), len(shapes(node)[1]))
    sums = [] if argument(node, "scale_grad_by_freq") else [f"sum {name}" for name in index]
    parts = ["2 = v", *by_part(node, "v", "embedding_backward_part")]
    return rule_text([[*index, "w"], index], [["v", "w"]], [*sums, *parts])


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


def _label_loss(node: fx.Node) -> str:
    """Losses of rows, of which each has its label, or their sum; classes are whole, or parts."""
    weighted, reduction = argument(node, "weight") is not None, argument(node, "reduction")
    fresh = _other_names("c", "d", "k")
    rows = take(fresh, argument(node, "target").meta["val"].dim())
    logits = [*rows[:1], "c", *rows[1:]]
    losses = [] if reduction else rows
    labelled = [logits, rows, *([["k"]] if weighted else [])]
    splits = bool(rows) and not weighted and reduction in (_NONE, _SUM)
    if node.target in _LOSS_GRADIENTS:
        parts = by_part(node, "cd", "nll_loss_backward_part") if splits else []
        return rule_text([losses, *labelled, []], [[*rows[:1], "d", *rows[1:]]], parts)
    sums = [f"sum {row}" for row in rows if reduction == _SUM]
    parts = by_part(node, "c", "nll_loss_part", same=1) if splits else []
    return rule_text(labelled, [losses, []], [*sums, *parts])


_LOSS_GRADIENTS: Final = (aten.nll_loss_backward.default, aten.nll_loss2d_backward.default)
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
        aten.nll_loss_forward.default: _label_loss,
        aten.nll_loss_backward.default: _label_loss,
        aten.nll_loss2d_forward.default: _label_loss,
        aten.nll_loss2d_backward.default: _label_loss,
    }
)
