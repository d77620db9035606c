"""Rules of ops that move elements: which dims those are depends on arguments and shapes.

    permute(a, [1, 0])       "a b -> b a; linear"
    cat([a, b], 1)           "a b, a c -> a d; linear"
    sum(a, [1])              "a b -> a; linear, sum b"
    view(a, [4, 2, 8])       "a b -> a b c; linear, 1.0 = a, 1.1 = b"     of [4, 16]
    expand(a, [4, 8])        "1 b -> a b; linear, 1.0 = a, 1.1 = b"       of [1, 8]

A part of the first of the dims that a view joins is a part of the joined dim; of the others it is
none.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
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

__all__ = ["SHAPE_RULES"]

aten = torch.ops.aten

LINEAR: Final = "linear"


def _permuted(node: fx.Node) -> str:
    """Follow each dim to where it goes."""
    [shape] = shapes(node)
    names = take(fresh_names(), len(shape))
    moved = list(names)
    if node.target is aten.permute.default:
        moved = [names[dim] for dim in argument(node, "dims")]
    elif len(shape) > 1:
        swap = node.target is aten.transpose.int
        first, second = (argument(node, f"dim{i}") if swap else i for i in (0, 1))
        moved[first], moved[second] = moved[second], moved[first]
    return rule_text([names], [moved], [LINEAR])


def _cut(node: fx.Node) -> str:
    """Give the parts of the cut dim names of their own."""
    [shape] = shapes(node)
    fresh = fresh_names()
    names = take(fresh, len(shape))
    dim = argument(node, "dim")
    lists = node.target is aten.split_with_sizes.default  # which says how large even one part is
    parts = []
    for result in results(node):
        part = list(names)
        if lists or result.shape[dim] != shape[dim]:
            part[dim] = next(fresh)
        parts.append(part)
    return rule_text([names], parts, [LINEAR])


def _selected(node: fx.Node) -> str:
    """Leave out a dim."""
    [shape] = shapes(node)
    names = take(fresh_names(), len(shape))
    kept = list(names)
    del kept[argument(node, "dim")]
    return rule_text([names], [kept], [LINEAR])


def _uncut(node: fx.Node) -> str:
    """Give the dim that a gradient is put into a name of its own: of a slice, or of one row."""
    [shape], [result] = shapes(node), results(node)
    fresh = fresh_names()
    names = take(fresh, len(shape))
    whole, dim = list(names), argument(node, "dim") % result.dim()
    if node.target is aten.select_backward.default:
        whole.insert(dim, next(fresh))
    elif shape[dim] != result.shape[dim]:
        whole[dim] = next(fresh)
    return rule_text([names], [whole], [LINEAR, *sizes_in(node, 1, whole)])


def _joined(node: fx.Node) -> str | None:
    """Give the joined dim of each operand and that of the result names of their own."""
    parts, [result] = shapes(node), results(node)
    if any(len(shape) != result.dim() for shape in parts):
        return None  # an empty operand of one dim fits to anything
    fresh = fresh_names()
    names = take(fresh, result.dim())
    dim = argument(node, "dim")
    operands = [list(names) for _ in parts]
    if len(parts) > 1:
        for operand in operands:
            operand[dim] = next(fresh)
        names[dim] = next(fresh)
    return rule_text(operands, [names], [LINEAR])


def _summed(node: fx.Node) -> str:
    """Leave out the summed dims, or keep one element of each."""
    [shape] = shapes(node)
    names = take(fresh_names(), len(shape))
    every = range(len(shape))
    plain = node.target is aten.sum.default
    given = None if plain else argument(node, "dim")
    summed = {dim % len(shape) for dim in given or every} if shape else set()
    # A mean over a part is none over the whole.
    sums = [] if node.target is aten.mean.dim else [f"sum {names[dim]}" for dim in sorted(summed)]
    kept = [name for dim, name in enumerate(names) if dim not in summed]
    if not plain and argument(node, "keepdim"):
        kept = ["1" if dim in summed else name for dim, name in enumerate(names)]
    return rule_text([names], [kept], [LINEAR, *sums])


def _viewed(node: fx.Node) -> str | None:
    """Give the first dims of runs with equally many elements one name."""
    [shape], [result] = shapes(node), results(node)
    if 0 in shape:
        return None
    fresh = fresh_names()
    left, right = take(fresh, len(shape)), take(fresh, result.dim())
    for before, after in _runs(shape, result.shape):
        right[after] = left[before]
    shared = {name for name in right if name in left}
    sizes = [entry for entry in sizes_in(node, 1, right) if entry.split(" = ")[1] in shared]
    return rule_text([left], [right], [LINEAR, *sizes])


def _runs(before: Sequence[int], after: Sequence[int]) -> list[tuple[int, int]]:
    """Return the first dims of the shortest runs of dims that hold equally many elements.

    Dims of one element belong to no run.
    """
    sides = [[dim for dim, size in enumerate(side) if size != 1] for side in (before, after)]
    first, second = (iter(dims) for dims in sides)
    found = []
    for left in first:
        right = next(second)
        found.append((left, right))
        sizes = [before[left], after[right]]
        while sizes[0] != sizes[1]:
            if sizes[0] < sizes[1]:
                sizes[0] *= before[next(first)]
            else:
                sizes[1] *= after[next(second)]
    return found


def _expanded(node: fx.Node) -> str:
    """Broadcast dims of one element, and add dims in front."""
    [shape], [result] = shapes(node), results(node)
    names = take(fresh_names(), result.dim())
    skipped = result.dim() - len(shape)
    pairs = zip(shape, result.shape[skipped:], names[skipped:], strict=True)
    operand = [name if size == whole else "1" for size, whole, name in pairs]
    return rule_text([operand], [names], [LINEAR, *sizes_in(node, 1, names)])


def _unsqueezed(node: fx.Node) -> str:
    """Add a dim of one element."""
    [shape] = shapes(node)
    names = take(fresh_names(), len(shape))
    wide = list(names)
    wide.insert(argument(node, "dim") % (len(shape) + 1), "1")
    return rule_text([names], [wide], [LINEAR])


def _squeezed(node: fx.Node) -> str:
    """Remove dims of one element; others that are asked for must be whole: a part may have one."""
    [shape] = shapes(node)
    every = range(len(shape))
    given = every if node.target is aten.squeeze.default else argument(node, "dim")
    asked = {dim % len(shape) for dim in ([given] if isinstance(given, int) else given)}
    gone = {dim for dim in asked if shape[dim] == 1}
    fresh = fresh_names()
    names = take(fresh, len(shape))
    operand = ["1" if dim in gone else name for dim, name in enumerate(names)]
    left = [dim for dim in every if dim not in gone]
    kept = [next(fresh) if dim in asked else names[dim] for dim in left]
    return rule_text([operand], [kept], [LINEAR])


SHAPE_RULES: Final[Mapping[OpOverload, Callable[[fx.Node], str | None]]] = MappingProxyType(
    {
        aten.t.default: _permuted,
        aten.transpose.int: _permuted,
        aten.permute.default: _permuted,
        aten.split.Tensor: _cut,
        aten.split_with_sizes.default: _cut,
        aten.slice.Tensor: _cut,
        aten.select.int: _selected,
        aten.slice_backward.default: _uncut,
        aten.select_backward.default: _uncut,
        aten.cat.default: _joined,
        aten.sum.default: _summed,
        aten.sum.dim_IntList: _summed,
        aten.mean.dim: _summed,
        aten.view.default: _viewed,
        aten._unsafe_view.default: _viewed,
        aten.expand.default: _expanded,
        aten.unsqueeze.default: _unsqueezed,
        aten.squeeze.default: _squeezed,
        aten.squeeze.dim: _squeezed,
        aten.squeeze.dims: _squeezed,
    }
)
