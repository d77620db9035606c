"""Recognising causal masks that a model builds from constants.

A model that is exported cannot look at its mask, so some build the whole T x T causal mask where,
run eagerly, they would ask attention for `is_causal`. Such a mask depends on nothing: its value is
known now, and where it is the causal one the attention says so and the mask is gone.

    attention(q, k, v, attn_mask=where(tril, 0, -inf))  ->  attention(q, k, v, is_causal=True)
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

import torch
from torch import Tensor, fx
from torch._ops import OpOverload

__all__ = ["fold_causal_masks"]

aten = torch.ops.aten

# Where each attention op has `is_causal`; the mask is its keyword `attn_mask`.
_IS_CAUSAL: Final[Mapping[OpOverload, int]] = MappingProxyType(
    {
        aten._scaled_dot_product_flash_attention_for_cpu.default: 4,
        aten._scaled_dot_product_flash_attention_for_cpu_backward.default: 7,
    }
)
_DEFAULTS: Final = (0.0, False)  # dropout_p and is_causal, which a call may leave out


def fold_causal_masks(graph: fx.Graph) -> None:
    """Replace constant causal masks of attention by `is_causal`, in place; values stay equal."""
    known: dict[fx.Node, Any] = {}
    for node in graph.nodes:
        mask = node.kwargs.get("attn_mask")
        if node.target not in _IS_CAUSAL or not isinstance(mask, fx.Node):
            continue
        if not _depends_on_nothing(mask) or not _is_causal(_value(mask, known)):
            continue
        place = _IS_CAUSAL[node.target]
        args = (*node.args, *_DEFAULTS[len(node.args) - place - 1 :])[:place]
        node.args = (*args, True)
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


def _is_causal(mask: Tensor) -> bool:
    """Return whether a mask lets each row see itself and what is before it, and nothing else."""
    if mask.dim() < 2 or mask.shape[-1] != mask.shape[-2]:
        return False
    seen = torch.ones(mask.shape[-2:], dtype=torch.bool).tril()
    if mask.dtype == torch.bool:
        return bool((mask == seen).all())
    hidden = mask <= torch.finfo(mask.dtype).min
    return bool(((mask == 0) == seen).all() and (hidden == ~seen).all())
