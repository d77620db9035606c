"""Ops that have no rule, or one that tells too little of examples: what each does with them.

An op that is not here, and has no rule, is not known to treat examples apart.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

import torch

from piper.frontend.coupling.found import MIXES, NUMBERS, PICKS, SUMS, UNKNOWN, Found, Op, by_rule
from piper.frontend.coupling.layout import (
    Dim,
    Layout,
    combine,
    cut,
    holds_examples,
    join,
    num_examples,
    regroup,
    sizes,
)
from piper.frontend.rule_text import argument, results

__all__ = ["HANDLERS", "indexed"]

aten = torch.ops.aten

Handler = Callable[[Op, Sequence[Layout]], Found]


def _aligned(op: Op, given: Sequence[Layout]) -> Found:
    """Element by element, aligned from the last dim; more dims of the result are new ones."""
    fresh = op.fresh()
    dims: list[Dim] = [() for _ in range(max(map(len, given)))]
    for layout in given:
        for place, dim in enumerate(layout, len(dims) - len(layout)):
            found = combine(dims[place], dim)
            if found is None:
                return Found(fresh, MIXES)
            dims[place] = found
    layouts = [
        tuple(
            dim or plain for dim, plain in zip([*dims, *[()] * len(layout)], layout, strict=False)
        )
        for layout in fresh
    ]
    return Found(layouts)


def _loss(op: Op, given: Sequence[Layout]) -> Found:
    """Losses of elements, or of rows, or their sum."""
    kind = argument(op.whole, "reduction")
    if kind == 0:
        return _leading(op, given, 1) if op.whole.target in _ROW_LOSSES else _aligned(op, given)
    return Found(op.fresh(), SUMS if kind == 2 else MIXES, kind == 2)


def _summed(op: Op, given: Sequence[Layout]) -> Found:
    """Means and counts of everything: sums, though not part by part."""
    return Found(op.fresh(), SUMS)


def _without(op: Op, given: Sequence[Layout], touched: set[int]) -> Found:
    """Ops of one operand that see the touched dims whole, and keep them or leave them out."""
    (layout, *_), fresh = given, op.fresh()
    if any(num_examples(other) for other in given[1:]):
        return Found(fresh, UNKNOWN)
    if any(holds_examples(layout[dim]) for dim in touched):
        return Found(fresh, MIXES)
    made = []
    for plain in fresh:
        same = len(plain) == len(layout)
        kept = [dim for place, dim in enumerate(layout) if same or place not in touched]
        if len(kept) != len(plain):
            return Found(fresh, UNKNOWN)
        pairs = enumerate(zip(kept, plain, strict=True))
        made.append(tuple(new if same and at in touched else old for at, (old, new) in pairs))
    return Found(made)


def _along(*names: str) -> Callable[[Op, Sequence[Layout]], Found]:
    """Say by which arguments an op says along which dims it works: all, where that is None."""

    def handle(op: Op, given: Sequence[Layout]) -> Found:
        rank = len(given[0])
        touched: set[int] = set()
        known = [one.name for one in op.whole.target._schema.arguments]  # type: ignore[union-attr]
        for name in names:
            told = argument(op.whole, name) if name in known else None
            dims = [told] if isinstance(told, int) else (told or range(rank))
            touched |= {dim % rank for dim in dims}
        return _without(op, given, touched)

    return handle


def _leading(op: Op, given: Sequence[Layout], num_whole: int) -> Found:
    """Ops that see the last dims whole, and keep those before."""
    fresh = op.fresh()
    rank = len(given[0]) - num_whole
    dims: list[Dim] = [() for _ in range(max(rank, 0))]
    for layout in given:
        if any(map(holds_examples, layout[len(dims) :])):
            return Found(fresh, MIXES)
        for place, dim in enumerate(layout[: len(dims)] if num_examples(layout) else ()):
            found = combine(dims[place], dim)
            if found is None:
                return Found(fresh, MIXES)
            dims[place] = found
    return Found([(*dims[: len(plain)], *plain[len(dims) :]) for plain in fresh])


def _last(num_whole: int) -> Callable[[Op, Sequence[Layout]], Found]:
    return lambda op, given: _leading(op, given, num_whole)


def _first(op: Op, given: Sequence[Layout]) -> Found:
    return _leading(op, given, len(given[0]) - 1)


def _normalized(op: Op, given: Sequence[Layout]) -> Found:
    """A batch norm: with statistics of the batch, channels are apart."""
    fresh, layout = op.fresh(), given[0]
    names = [one.name for one in op.whole.target._schema.arguments]  # type: ignore[union-attr]
    of_batch = "training" in names and argument(op.whole, "training")
    others = (*layout[:1], *layout[2:])
    if of_batch and any(map(holds_examples, others)):
        return Found(fresh, f"{MIXES} by its statistics")
    for side in given[1:]:
        if num_examples(side) and combine(layout[1], side[0]) != layout[1]:
            return Found(fresh, MIXES)
    return Found([layout, *fresh[1:]])


def _padded(op: Op, given: Sequence[Layout]) -> Found:
    pads = argument(op.whole, "pad")
    rank = len(given[0])
    return _without(op, given, {rank - 1 - at // 2 for at, size in enumerate(pads) if size})


def _windows(op: Op, given: Sequence[Layout]) -> Found:
    """A dim becomes windows of its elements, of which each is a new dim at the end."""
    (layout,), fresh = given, op.fresh()
    dim = argument(op.whole, "dimension") % len(layout)
    if holds_examples(layout[dim]):
        return Found(fresh, MIXES)
    return Found([(*layout[:dim], fresh[0][dim], *layout[dim + 1 :], fresh[0][-1])])


def _diagonal(op: Op, given: Sequence[Layout]) -> Found:
    (layout,), fresh = given, op.fresh()
    dims = {argument(op.whole, name) % len(layout) for name in ("dim1", "dim2")}
    if any(holds_examples(layout[dim]) for dim in dims):
        return Found(fresh, MIXES)
    kept = [dim for place, dim in enumerate(layout) if place not in dims]
    return Found([(*kept, fresh[0][-1])])


def _distances(op: Op, given: Sequence[Layout]) -> Found:
    """Of each row of one to each row of the other."""
    (first, second), fresh = given, op.fresh()
    if holds_examples(first[-1]) or holds_examples(second[-1]):
        return Found(fresh, MIXES)
    found = _aligned(op, [first[:-2], second[:-2]]).layouts if len(first) > 2 else [()]
    return Found([(*found[0][: len(first) - 2], first[-2], second[-2])])


def _trilinear(op: Op, given: Sequence[Layout]) -> Found:
    """A product of three, to which dims are added before some of them are summed over."""
    fresh = op.fresh()
    dims: list[Dim] = []
    for number, layout in enumerate(given, 1):
        wide = list(layout)
        for dim in sorted(argument(op.whole, f"expand{number}")):
            wide.insert(dim, ())
        dims = dims or [()] * len(wide)
        merged = [combine(old, new) for old, new in zip(dims, wide, strict=True)]
        if None in merged:
            return Found(fresh, MIXES)
        dims = [dim or () for dim in merged]
    summed = argument(op.whole, "sumdim")
    if any(holds_examples(dims[dim]) for dim in summed):
        return Found(fresh, MIXES)
    kept = [dim for place, dim in enumerate(dims) if place not in summed]
    return Found([tuple(kept)])


def _viewed(op: Op, given: Sequence[Layout]) -> Found:
    (layout,), fresh = given, op.fresh()
    (here,), (whole,) = results(op.here), results(op.whole)
    found = None if 0 in whole.shape else regroup(layout, here.shape, whole.shape)
    return Found(fresh, PICKS) if found is None else Found([found])


def _squeezed(op: Op, given: Sequence[Layout]) -> Found:
    (layout,), every = given, range(len(given[0]))
    told = every if op.whole.target is aten.squeeze.default else argument(op.whole, "dim")
    asked = {dim % len(layout) for dim in ([told] if isinstance(told, int) else told)}
    return Found(
        [tuple(layout[at] for at in every if at not in asked or sizes(layout[at]) != (1, 1))]
    )


def _sliced(op: Op, given: Sequence[Layout]) -> Found:
    (layout,) = given
    dim = argument(op.whole, "dim") % len(layout)
    limits = []
    for place, node in enumerate((op.here, op.whole)):
        size = sizes(layout[dim])[place]
        start, end, step = (argument(node, name) for name in ("start", "end", "step"))
        start, end = (_position(at, size) for at in (start or 0, size if end is None else end))
        limits.append((start, max(start, end), step))
    return _cut(op, layout, dim, [(limits[0], limits[1])], op.fresh())


def _position(at: int, size: int) -> int:
    return min(max(at + size if at < 0 else at, 0), size)


def _split(op: Op, given: Sequence[Layout]) -> Found:
    (layout,) = given
    dim = argument(op.whole, "dim") % len(layout)
    at = [0, 0]
    limits = []
    for part in op.fresh():
        until = [start + size for start, size in zip(at, sizes(part[dim]), strict=True)]
        limits.append(((at[0], until[0], 1), (at[1], until[1], 1)))
        at = until
    return _cut(op, layout, dim, limits, op.fresh())


Limits = tuple[tuple[int, int, int], tuple[int, int, int]]


def _cut(
    op: Op, layout: Layout, dim: int, limits: Sequence[Limits], fresh: Sequence[Layout]
) -> Found:
    found = [cut(layout[dim], here, whole) for here, whole in limits]
    if any(part is None for part in found):
        return Found(fresh, PICKS)
    return Found([(*layout[:dim], part or (), *layout[dim + 1 :]) for part in found])


def _selected(op: Op, given: Sequence[Layout]) -> Found:
    (layout,) = given
    dim = argument(op.whole, "dim") % len(layout)
    if holds_examples(layout[dim]):
        return Found(op.fresh(), PICKS)
    kept = (*layout[:dim], *layout[dim + 1 :])
    return Found([kept for _ in op.fresh()])


def _put(op: Op, given: Sequence[Layout]) -> Found:
    """A part of a dim, or one row, gets other values."""
    whole, part = given
    dim = argument(op.whole, "dim") % len(whole)
    if holds_examples(whole[dim]):
        return Found(op.fresh(), PICKS)
    wide = [*part]
    if op.whole.target is aten.select_scatter.default:
        wide.insert(dim, ())
    wide[dim] = whole[dim]
    merged = [combine(old, new) for old, new in zip(whole, wide, strict=True)]
    if None in merged:
        return Found(op.fresh(), MIXES)
    return Found([tuple(dim or () for dim in merged)])


def _joined(op: Op, given: Sequence[Layout]) -> Found:
    """Values side by side: examples of several, each after the other, stay apart."""
    (fresh,) = op.fresh()
    if any(len(layout) != len(fresh) for layout in given):
        return Found([fresh], UNKNOWN)
    at = argument(op.whole, "dim") % len(fresh)
    dims: list[Dim] = [() for _ in fresh]
    for layout in given:
        merged = [combine(old, new) for old, new in zip(dims, layout, strict=True)]
        if None in (*merged[:at], *merged[at + 1 :]):
            return Found([fresh], MIXES)
        dims = [dim or () for dim in merged]
    dims[at] = fresh[at]
    if any(holds_examples(layout[at]) for layout in given):
        if any(layout[at] != given[0][at] for layout in given):
            return Found([fresh], PICKS)
        dims[at] = join(((len(given), len(given)),), given[0][at])
    return Found([tuple(dims)])


def _stacked(op: Op, given: Sequence[Layout]) -> Found:
    """Values side by side along a new dim."""
    (fresh,) = op.fresh()
    at = argument(op.whole, "dim") % len(fresh)
    dims = given[0]
    for layout in given[1:]:
        merged = [combine(old, new) for old, new in zip(dims, layout, strict=True)]
        if None in merged:
            return Found([fresh], MIXES)
        dims = tuple(dim or () for dim in merged)
    return Found([(*dims[:at], fresh[at], *dims[at:])])


def _repeated(op: Op, given: Sequence[Layout]) -> Found:
    (layout,) = given
    times = [*zip(*op.both("repeats"), strict=True)]
    wide = [*[()] * (len(times) - len(layout)), *layout]
    return Found([tuple(join(((h, w),), dim) for (h, w), dim in zip(times, wide, strict=True))])


def _looked_up(op: Op, given: Sequence[Layout]) -> Found:
    """Elements of a dim by their numbers; the index may be one of each example."""
    (layout, index), fresh = given, op.fresh()
    dim = argument(op.whole, "dim") % len(layout)
    if op.whole.target is aten.index_select.default:
        if holds_examples(layout[dim]):
            return Found(fresh, PICKS)
        return Found([(*layout[:dim], *(index or ((),)), *layout[dim + 1 :])])
    merged = [combine(old, new) for old, new in zip(layout, index, strict=True)]
    if holds_examples(layout[dim]) or holds_examples(index[dim]) or None in merged:
        return Found(fresh, PICKS)
    merged[dim] = fresh[0][dim]
    return Found([tuple(merged[at] or fresh[0][at] for at in range(len(merged)))])


def indexed(op: Op, given: Sequence[Layout], numbered: Sequence[bool] = ()) -> Found:
    """Elements by indices of several dims; the examples' own numbers leave each where it is."""
    (fresh,) = op.fresh()
    layout = given[0]
    rest = iter(zip(given[1:], [*numbered[1:], *[False] * len(given)], strict=False))
    indices = [None if index is None else next(rest) for index in argument(op.whole, "indices")]
    places = [at for at, index in enumerate(indices) if index is not None]
    picked = [found for found in indices if found is not None]
    for at in places:
        index = indices[at]
        exact = index is not None and index[1] and len(layout[at]) == 1
        exact = exact and any(dim == layout[at] for dim in index[0]) if index else False
        if holds_examples(layout[at]) and not exact:
            return Found([fresh], PICKS)
        if index is not None and index[1] and not exact:
            return Found([fresh], NUMBERS)
    dims: list[Dim] = [() for _ in range(max(len(numbers) for numbers, _ in picked))]
    for numbers, _ in picked:
        for place, dim in enumerate(numbers, len(dims) - len(numbers)):
            found = combine(dims[place], dim)
            if found is None:
                return Found([fresh], MIXES)
            dims[place] = found
    kept = [dim for at, dim in enumerate(layout) if at not in places]
    start = places[0] if places == [*range(places[0], places[-1] + 1)] else 0
    return Found([(*kept[:start], *dims, *kept[start:])])


def _product(op: Op, given: Sequence[Layout]) -> Found:
    return by_rule(op, given, _PRODUCTS[op.whole.target])


def _batched_sum(op: Op, given: Sequence[Layout]) -> Found:
    """A batch of products and what is added to each."""
    product = by_rule(op, given[1:], _PRODUCTS[aten.bmm.default])
    if product.what is not None:
        return Found(op.fresh(), MIXES)
    return _aligned(op, [given[0], *product.layouts])


_PRODUCTS: Final[Mapping[object, str]] = MappingProxyType(
    {
        aten.bmm.default: "b m k, b k n -> b m n",
        aten.mv.default: "m k, k -> m",
        aten.dot.default: "k, k -> ",
    }
)
_ROW_LOSSES: Final = frozenset(
    {aten.multi_margin_loss.default, aten.multilabel_margin_loss_forward.default}
)


def _named(names: str, handler: Handler) -> dict[object, Any]:
    """Give ops of ATen, each by its overload, one handler."""
    found = {}
    for name in names.split():
        packet, _, overload = name.partition(".")
        found[getattr(getattr(aten, packet), overload or "default")] = handler
    return found


HANDLERS: Final[Mapping[object, Handler]] = MappingProxyType(
    {
        **_named("view _unsafe_view", _viewed),
        **_named("squeeze squeeze.dim squeeze.dims", _squeezed),
        **_named("slice.Tensor", _sliced),
        **_named(
            "split.Tensor split_with_sizes unsafe_split.Tensor unsafe_split_with_sizes", _split
        ),
        **_named("select.int unbind.int", _selected),
        **_named("slice_scatter select_scatter", _put),
        **_named("cat", _joined),
        **_named("stack", _stacked),
        **_named("repeat", _repeated),
        **_named("gather index_select", _looked_up),
        **_named("index.Tensor _unsafe_index.Tensor", indexed),
        **_named("mv dot", _product),
        **_named("baddbmm", _batched_sum),
        **_named("new_zeros new_ones new_full new_empty", lambda op, _: Found(op.fresh())),
        **_named("constant_pad_nd", _padded),
        **_named("unfold", _windows),
        **_named("diagonal", _diagonal),
        **_named("_cdist_forward", _distances),
        **_named("_trilinear", _trilinear),
        **_named(
            "mse_loss smooth_l1_loss huber_loss soft_margin_loss binary_cross_entropy "
            "binary_cross_entropy_with_logits multi_margin_loss multilabel_margin_loss_forward",
            _loss,
        ),
        **_named(
            "masked_fill.Tensor softplus log_sigmoid_forward polar complex view_as_real _conj "
            "_prelu_kernel copy lift",
            _aligned,
        ),
        **_named(
            "var.correction std.correction var_mean.correction std_mean.correction amax amin aminmax "
            "linalg_vector_norm logsumexp any.dim any any.dims all.dim all all.dims argmax argmin "
            "max.dim max min.dim min prod.dim_int prod median.dim median mode kthvalue nansum "
            "count_nonzero.dim_IntList count_nonzero cummax cummin cumprod logcumsumexp sort.stable glu "
            "_fft_r2c _fft_c2c _fft_c2r _safe_softmax",
            _along("dim"),
        ),
        **_named("mean histc bincount", _summed),
        **_named("flip roll", _along("dims")),
        **_named(
            "convolution native_group_norm grid_sampler_2d grid_sampler_3d im2col col2im", _first
        ),
        **_named(
            "avg_pool2d max_pool2d_with_indices _adaptive_avg_pool2d adaptive_max_pool2d tril triu "
            "upsample_nearest2d upsample_bilinear2d upsample_bicubic2d upsample_nearest2d.vec "
            "upsample_bilinear2d.vec upsample_bicubic2d.vec reflection_pad2d replication_pad2d "
            "linalg_inv_ex linalg_cholesky_ex",
            _last(2),
        ),
        **_named(
            "upsample_nearest1d upsample_linear1d upsample_nearest1d.vec upsample_linear1d.vec "
            "reflection_pad1d replication_pad1d view_as_complex",
            _last(1),
        ),
        **_named(
            "avg_pool3d max_pool3d_with_indices _adaptive_avg_pool3d upsample_nearest3d "
            "upsample_trilinear3d upsample_nearest3d.vec upsample_trilinear3d.vec "
            "reflection_pad3d replication_pad3d pixel_shuffle pixel_unshuffle",
            _last(3),
        ),
        **_named(
            "native_batch_norm _native_batch_norm_legit.no_stats "
            "_native_batch_norm_legit_no_training _native_batch_norm_legit_functional",
            _normalized,
        ),
    }
)
