"""One op: where the examples lie in its results, and whether these depend on several of them.

What the op has a rule for (``rules``) treats the elements of a dim apart that the operands and the
results have in common. ``apart`` tells of others, with what their arguments say; of all that is in
neither nothing is known.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

import torch
from torch import fx

from piper.frontend.coupling.apart import HANDLERS, indexed
from piper.frontend.coupling.found import NUMBERS, PAIRS, PICKS, UNKNOWN, Found, Op, by_rule
from piper.frontend.coupling.layout import Layout, holds_examples, num_examples, sizes
from piper.frontend.rule_text import Rule, argument
from piper.frontend.rules import rule_of

__all__ = ["SIZES", "follow"]

aten = torch.ops.aten
own = torch.ops.piper


def follow(op: Op, given: Sequence[Layout], *, numbered: Sequence[bool]) -> Found:
    """Return what an op does with examples that lie so in its operands.

    ``numbered`` says which operands number the examples (0 for the first, 1 for the second), or
    count what experts are sent of them.
    """
    if op.whole.target in _OWN and (any(numbered) or any(map(num_examples, given))):
        layouts = _of_experts(op, given)
        return Found(layouts, numbers=not all(map(num_examples, layouts)))
    if any(numbered):
        return _numbered(op, given, numbered)
    found = _follow(op, given)
    fresh = op.fresh()
    if found.what is None:
        for layout, plain in zip(found.layouts, fresh, strict=True):
            if [*map(sizes, layout)] != [sizes(dim) for dim in plain]:
                return Found(fresh, PICKS)
            if num_examples(layout) > 1:
                return Found(fresh, PAIRS)
    return found


def _follow(op: Op, given: Sequence[Layout]) -> Found:
    target = op.whole.target
    if not any(map(num_examples, given)):
        return _made(op)
    if target in HANDLERS:
        return HANDLERS[target](op, given)
    text = rule_of(op.whole)
    return Found(op.fresh(), UNKNOWN) if text is None else by_rule(op, given, text)


def _made(op: Op) -> Found:
    """Values that depend on no example: new tensors may be as large as there are examples."""
    fresh = op.fresh()
    target = op.whole.target
    if not any(map(num_examples, fresh)) or target in _FILLED or target in _SPREAD:
        return Found(fresh)
    if target in _RANGES and tuple(_range(op.here)) == tuple(_range(op.whole)) == (0, 1):
        return Found(fresh, numbers=True)
    return Found(fresh, NUMBERS)


def _range(node: fx.Node) -> tuple[Any, Any]:
    names = [one.name for one in node.target._schema.arguments]  # type: ignore[union-attr]
    start, step = (
        argument(node, name) if name in names else default
        for name, default in (("start", 0), ("step", 1))
    )
    return start, step


def _numbered(op: Op, given: Sequence[Layout], numbered: Sequence[bool]) -> Found:
    """Numbers of examples are moved, or pick from each example what belongs to it."""
    target = op.whole.target
    if target is aten.index.Tensor and not numbered[0]:
        return indexed(op, given, numbered)
    if target in _MOVES:
        found = _follow(op, given)
        return Found(found.layouts, found.what, numbers=True)
    return Found(op.fresh(), NUMBERS)


def _of_experts(op: Op, given: Sequence[Layout]) -> list[Layout]:
    """Rows of tokens are moved and multiplied one by one; counts are for such ops alone."""
    text = rule_of(op.whole)
    assert text is not None
    rule = Rule.parse(text)
    known = {
        name: dim
        for names, layout in zip(rule.operands, given, strict=True)
        for name, dim in zip(names, layout, strict=True)
        if holds_examples(dim)
    }
    return [
        tuple(known.get(name, plain) for name, plain in zip(names, layout, strict=True))
        for names, layout in zip(rule.results, op.fresh(), strict=True)
    ]


# New tensors whose elements are all the same.
_FILLED: Final = frozenset(
    {
        aten.zeros.default,
        aten.ones.default,
        aten.full.default,
        aten.empty.memory_format,
        aten.new_zeros.default,
        aten.new_ones.default,
        aten.new_full.default,
        aten.new_empty.default,
    }
)
_RANGES: Final = frozenset({aten.arange.default, aten.arange.start, aten.arange.start_step})
# What spreads a value that all examples have in common.
_SPREAD: Final = frozenset({aten.expand.default, aten.repeat.default})
_MOVES: Final = frozenset(
    {
        aten.view.default,
        aten._unsafe_view.default,
        aten.unsqueeze.default,
        aten.squeeze.dim,
        aten.expand.default,
        aten.clone.default,
        aten.alias.default,
        aten.detach.default,
        aten._to_copy.default,
        aten.permute.default,
        aten.transpose.int,
    }
)
_OWN: Final = frozenset(
    getattr(own, name).default
    for name in (
        "moe_sort",
        "moe_permute",
        "moe_exchange_counts",
        "moe_dispatch",
        "moe_group",
        "moe_linear",
        "moe_ungroup",
        "moe_collect",
        "moe_unpermute",
    )
)
# By the op: the arguments that are sizes, and so may follow the number of examples.
SIZES: Final[Mapping[object, tuple[str, ...]]] = MappingProxyType(
    {
        **{op: ("size",) for op in _FILLED},
        **{op: ("end",) for op in _RANGES},
        aten.view.default: ("size",),
        aten._unsafe_view.default: ("size",),
        aten.expand.default: ("size",),
        aten.repeat.default: ("repeats",),
        aten.slice.Tensor: ("start", "end"),
        aten.slice_scatter.default: ("start", "end"),
        aten.split.Tensor: ("split_size",),
        aten.split_with_sizes.default: ("split_sizes",),
        aten.unsafe_split.Tensor: ("split_size",),
        aten.unsafe_split_with_sizes.default: ("split_sizes",),
        aten.native_group_norm.default: ("N",),
    }
)
