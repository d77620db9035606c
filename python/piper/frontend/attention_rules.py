"""Rules of attention: batch and heads are shared out, positions and widths of heads are whole.

    attention(q, k, v)       "b h s d, b h t d, b h t e -> b h u e, b h u"

Where several heads of queries share one of keys and values, a part of `h` is a part of both, so
that each rank has the keys and values of its own queries.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final

import piper_runtime.ops  # noqa: F401  (registers the ops below)
import torch
from torch import Tensor, fx
from torch._ops import OpOverload

from piper.frontend.rule_text import argument

__all__ = ["ATTENTION_RULES"]

aten = torch.ops.aten
own = torch.ops.piper

_INPUTS: Final = ("b h s d", "b h t d", "b h t e")


def _attended(node: fx.Node) -> str:
    mask = _mask_dims(node, "mask", query="q")
    if node.target is own.attention.default:
        return ", ".join([*_INPUTS, *mask]) + " -> b h u e, b h u"
    grad_lse = ["b h u"] if isinstance(argument(node, "grad_lse"), fx.Node) else []
    operands = ["b h u f", *_INPUTS, "b h u f", "b h u", *mask, *grad_lse]
    return ", ".join(operands) + " -> b h w x, b h y x, b h y z"


def _attended_on_cpu(node: fx.Node) -> str:
    """Torch's own ops, which know one width for queries, keys and values: no part of it is one."""
    mask = _mask_dims(node, "attn_mask", query="query")
    if node.target is aten._scaled_dot_product_flash_attention_for_cpu.default:
        return ", ".join([*_INPUTS, *mask]) + " -> b h u f, b h u"
    operands = ["b h u f", *_INPUTS, "b h u f", "b h u", *mask]
    return ", ".join(operands) + " -> b h w x, b h y x, b h y z"


def _mask_dims(node: fx.Node, name: str, *, query: str) -> list[str]:
    mask = argument(node, name)
    if not isinstance(mask, fx.Node):
        return []
    q: Tensor = argument(node, query).meta["val"]
    found: Tensor = mask.meta["val"]
    sizes = [*[1] * (4 - found.dim()), *found.shape]  # torch's own may have two dims
    shared = (name if sizes[dim] == q.shape[dim] else "1" for dim, name in enumerate("bh"))
    whole = ("1" if size == 1 else name for name, size in zip("gi", sizes[2:], strict=True))
    return [" ".join([*shared, *whole][4 - found.dim() :])]


ATTENTION_RULES: Final[Mapping[OpOverload, Callable[[fx.Node], str | None]]] = MappingProxyType(
    {
        aten._scaled_dot_product_flash_attention_for_cpu.default: _attended_on_cpu,
        aten._scaled_dot_product_flash_attention_for_cpu_backward.default: _attended_on_cpu,
        own.attention.default: _attended,
        own.attention_backward.default: _attended,
    }
)
