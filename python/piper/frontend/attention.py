"""Attention of transformers' models: in a capture it goes through Piper's own op.

Such a model looks up how to compute attention, by a name in its config, in a public registry. While
a capture lasts, another function stands there under the name ``sdpa``, the default. It is given the
model's mask as that is, so paddings, windows and packed sequences stay what they are; a mask that
turns out to be made from nothing and to be causal is folded later (``causal``).

    sdpa(q, repeat_kv(k), repeat_kv(v), mask)    ->    piper.attention(q, k, v, mask)
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from typing import Any, Final

import torch
from piper_runtime.ops import attention
from torch import Tensor, nn

__all__ = ["own_attention"]

_NAME: Final = "sdpa"
_REGISTRY: Final = "transformers.modeling_utils"
# Where transformers' own function lives; one that somebody else registered is left alone.
_OWNER: Final = "transformers.integrations.sdpa_attention"
_DTYPES: Final = (torch.float64, torch.float32, torch.bfloat16, torch.float16)

Result = tuple[Tensor, Tensor | None]


@contextlib.contextmanager
def own_attention() -> Iterator[None]:
    """Let models of transformers that use ``sdpa`` use Piper's op inside the block.

    A call with dropout, a learned bias, or operands that the op does not take is left as it is.
    """
    registry = getattr(sys.modules.get(_REGISTRY), "ALL_ATTENTION_FUNCTIONS", None)
    before: Any = None if registry is None else registry.get(_NAME)
    if registry is None or getattr(before, "__module__", None) != _OWNER:
        yield
        return
    registry.register(_NAME, _replacing(before))
    try:
        yield
    finally:
        registry.register(_NAME, before)


def _replacing(original: Callable[..., Result]) -> Callable[..., Result]:
    """Return a function like ``original`` that uses Piper's op where that computes the same."""

    def forward(
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None,
        dropout: float = 0.0,
        scaling: float | None = None,
        is_causal: bool | None = None,
        position_bias: Tensor | None = None,
        **kwargs: Any,
    ) -> Result:
        special = dropout or position_bias is not None or kwargs.get("softcap") is not None
        if special or not _is_supported(module, query, key, value, attention_mask):
            return original(
                module,
                query,
                key,
                value,
                attention_mask,
                dropout=dropout,
                scaling=scaling,
                is_causal=is_causal,
                position_bias=position_bias,
                **kwargs,
            )
        if is_causal is None:
            is_causal = getattr(module, "is_causal", True)
        # One query alone follows all keys: it sees them.
        causal = bool(is_causal) and attention_mask is None and query.shape[2] > 1
        mixed = attention(query, key, value, causal=causal, scale=scaling, mask=attention_mask)
        return mixed.transpose(1, 2).contiguous(), None

    return forward


def _is_supported(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None
) -> bool:
    """Return whether the op takes these operands, and does with them what transformers does."""
    if torch.is_autocast_enabled(query.device.type):  # torch's own would change dtypes
        return False
    if query.dtype not in _DTYPES or not query.dim() == key.dim() == value.dim() == 4:
        return False
    if not query.dtype == key.dtype == value.dtype:
        return False
    if not query.shape[0] == key.shape[0] == value.shape[0]:
        return False
    if query.shape[1] != key.shape[1] * getattr(module, "num_key_value_groups", 1):
        return False
    return mask is None or _is_supported_mask(mask, query, key)


def _is_supported_mask(mask: Tensor, query: Tensor, key: Tensor) -> bool:
    whole = (*query.shape[:3], key.shape[2])
    return (
        not mask.requires_grad
        and mask.dtype in (torch.bool, query.dtype)
        and mask.dim() == 4
        and all(n == 1 or n == w for n, w in zip(mask.shape, whole, strict=True))
    )
