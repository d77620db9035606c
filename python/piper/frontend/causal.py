"""Recognising causal masks that a model builds from constants.

A model that is exported cannot look at its mask, so some build the whole T x T causal mask where,
run eagerly, they would ask attention for `is_causal`. Such a mask depends on nothing: its value is
known now, and where it is the causal one the attention says so and the mask is gone.

    attention(q, k, v, attn_mask=where(tril, 0, -inf))  ->  attention(q, k, v, is_causal=True)

A mask is computed as long and wide as it is: T * T elements of it, and of what it is made of, on
the host.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final, Literal

import piper_runtime.ops  # noqa: F401  (torch knows Piper's ops from then on)
import torch
from torch import Tensor, fx
from torch._ops import OpOverload

from piper.frontend.joint import needed_by

__all__ = ["Mask", "fold_causal_masks", "read_mask"]

aten = torch.ops.aten
own = torch.ops.piper

Kind = Literal["open", "causal", "other"]


@dataclass(frozen=True, slots=True)
class Mask:
    """What a constant mask hides: nothing, from each row exactly what is behind it, or something
    else.

    ``window`` is how many positions a row sees at most, up to its own, where the mask hides what is
    behind a row and what is further before it than that; else None.
    """

    kind: Kind
    window: int | None = None


@dataclass(frozen=True, slots=True)
class _Places:
    """Where an attention op has its flag for causal, its mask (None: as ``attn_mask=``) and its
    offset.
    """

    causal: int
    mask: int | None = None
    offset: int | None = None


_PLACES: Final[Mapping[OpOverload, _Places]] = MappingProxyType(
    {
        aten._scaled_dot_product_flash_attention_for_cpu.default: _Places(4),
        aten._scaled_dot_product_flash_attention_for_cpu_backward.default: _Places(7),
        own.attention.default: _Places(4, mask=3, offset=6),
        own.attention_backward.default: _Places(8, mask=6, offset=10),
    }
)
_DEFAULTS: Final = (0.0, False)  # dropout_p and is_causal, which a call of ATen may leave out


def fold_causal_masks(graph: fx.Graph) -> None:
    """Replace constant causal masks of attention by `is_causal`, and drop constant masks that hide
    nothing, in place; values stay equal.
    """
    known: dict[fx.Node, Kind] = {}
    for node in graph.nodes:
        places = _PLACES.get(node.target)
        mask = None if places is None else _mask_of(node, places)
        if places is None or not isinstance(mask, fx.Node) or _is_marked(node, places):
            continue
        if mask not in known:
            found = read_mask(mask)
            known[mask] = "other" if found is None else found.kind
        if known[mask] != "other":
            _unmask(node, places, causal=known[mask] == "causal")


def _mask_of(node: fx.Node, places: _Places) -> Any:
    return node.kwargs.get("attn_mask") if places.mask is None else node.args[places.mask]


def _is_marked(node: fx.Node, places: _Places) -> bool:
    """Return whether an op hides keys beside those that its mask hides."""
    return len(node.args) > places.causal and bool(node.args[places.causal])


def _unmask(node: fx.Node, places: _Places, *, causal: bool) -> None:
    """Take the mask from an op, and say whether it is causal instead."""
    args = list(node.args)
    while len(args) <= places.causal:
        args.append(_DEFAULTS[len(args) - places.causal - 1])
    args[places.causal] = causal
    if places.mask is not None:
        args[places.mask] = None
    if places.offset is not None:
        args[places.offset] = 0
    node.args = tuple(args)
    node.kwargs = {name: value for name, value in node.kwargs.items() if name != "attn_mask"}


def _depends_on_nothing(node: fx.Node) -> bool:
    """Return whether a value is made from literals alone."""
    return all(found.op == "call_function" for found in needed_by([node]))


def _value(node: fx.Node) -> Any:
    """Compute a value that depends on nothing, and forget others once they are not needed."""
    needed = needed_by([node])
    order = [found for found in node.graph.nodes if found in needed]
    left = Counter(argument for found in order for argument in found.all_input_nodes)
    known: dict[fx.Node, Any] = {}
    for found in order:
        args, kwargs = fx.node.map_arg((found.args, found.kwargs), known.__getitem__)
        assert callable(found.target)
        known[found] = found.target(*args, **kwargs)
        for argument in found.all_input_nodes:
            left[argument] -= 1
            if not left[argument]:
                del known[argument]
    return known[node]


def read_mask(node: fx.Node) -> Mask | None:
    """Return what a mask hides, or None if it does not depend on literals alone."""
    if not _depends_on_nothing(node):
        return None
    mask: Tensor = _value(node)
    for dim in range(mask.dim() - 2):
        if mask.stride(dim) == 0:  # the same for all, which are then not looked at one by one
            mask = mask.narrow(dim, 0, 1)
    seen = mask if mask.dtype == torch.bool else mask == 0
    if seen.all():
        return Mask("open")
    if mask.dim() < 2 or mask.shape[-1] != mask.shape[-2]:
        return Mask("other")
    if mask.dtype != torch.bool and not ((mask <= torch.finfo(mask.dtype).min) == ~seen).all():
        return Mask("other")
    before = torch.ones(mask.shape[-2:], dtype=torch.bool).tril()
    if (seen == before).all():
        return Mask("causal")
    width = int(seen.flatten(0, -2)[-1].sum())  # the last row sees as many as any
    return Mask("other", width if width and (seen == before.triu(1 - width)).all() else None)
