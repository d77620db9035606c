"""Recognising causal masks that a model builds from constants.

A model that is exported cannot look at its mask, so some build the whole T x T causal mask where,
run eagerly, they would ask attention for `is_causal`. Such a mask depends on nothing: its value is
known now, and where it is the causal one the attention says so and the mask is gone.

    attention(q, k, v, attn_mask=where(tril, 0, -inf))  ->  attention(q, k, v, is_causal=True)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final, Literal

import piper_runtime.ops  # noqa: F401  (torch knows Piper's ops from then on)
import torch
from torch import Tensor, fx
from torch._ops import OpOverload

__all__ = ["fold_causal_masks"]

aten = torch.ops.aten
own = torch.ops.piper

Kind = Literal["open", "causal", "other"]


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
            known[mask] = _kind(_value(mask, {})) if _depends_on_nothing(mask) else "other"
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
    seen: set[fx.Node] = set()
    pending = [node]
    while pending:
        found = pending.pop()
        if found.op != "call_function":
            return False
        new = [arg for arg in found.all_input_nodes if arg not in seen]
        seen.update(new)
        pending += new
    return True


def _value(node: fx.Node, known: dict[fx.Node, Any]) -> Any:
    """Compute a value that depends on nothing; `known` holds what was computed before."""
    if node not in known:
        for argument in node.all_input_nodes:
            _value(argument, known)
        args, kwargs = fx.node.map_arg((node.args, node.kwargs), known.__getitem__)
        assert callable(node.target)
        known[node] = node.target(*args, **kwargs)
    return known[node]


def _kind(mask: Tensor) -> Kind:
    """Return whether a mask hides nothing, or from each row exactly what is behind it."""
    seen = mask if mask.dtype == torch.bool else mask == 0
    if seen.all():
        return "open"
    if mask.dim() < 2 or mask.shape[-1] != mask.shape[-2]:
        return "other"
    if mask.dtype != torch.bool and not ((mask <= torch.finfo(mask.dtype).min) == ~seen).all():
        return "other"
    before = torch.ones(mask.shape[-2:], dtype=torch.bool).tril()
    return "causal" if (seen == before).all() else "other"
