"""What a rank computes with where several compute parts of the same values, or of one sequence."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils import flop_counter

from piper_runtime.ops.attention_blocks import head_last
from piper_runtime.ops.attention_op import attention, attention_backward
from piper_runtime.ops.define import op

__all__ = [
    "attention_part",
    "attention_part_backward",
    "clear_padding",
    "fill_padding",
    "part",
    "positions",
]

_count: Any = flop_counter


def _fake_part(x: Tensor, index: Tensor, dim: int, parts: int) -> Tensor:
    shape = list(x.shape)
    shape[dim] = -(-shape[dim] // parts)
    return x.new_empty(shape)


@op(fake=_fake_part)
def part(x: Tensor, index: Tensor, dim: int, parts: int) -> Tensor:
    """Return one of ``parts`` equal parts of ``dim``, that of number ``index``, ``[1]`` of int64.

    Where they do not divide it, the last parts have zeros at their end. The device reads the index:
    the host does not wait for it.
    """
    size = x.shape[dim]
    missing = -size % parts
    if missing:
        shape = list(x.shape)
        shape[dim] = missing
        x = torch.cat([x, x.new_zeros(shape)], dim)
    pieces = torch.unflatten(x, dim, (parts, (size + missing) // parts))
    return pieces.index_select(dim, index).squeeze(dim)


def fill_padding(
    x: Tensor, value: float, dim: int, *, index: Tensor, parts: int, size: int
) -> Tensor:
    """Return a part of ``size`` elements along ``dim`` with a value for those that are none.

    It is ``x`` itself if the parts have no padding.
    """
    width = x.shape[dim]
    if width * parts == size:
        return x
    shape = [1] * x.dim()
    shape[dim] = width
    numbers = index * width + torch.arange(width, device=x.device)
    return x.masked_fill((numbers >= size).view(shape), value)


def _fake_clear(x: Tensor, dim: int, *, index: Tensor, parts: int, size: int) -> Tensor:
    return torch.empty_like(x, memory_format=torch.contiguous_format)


@op(fake=_fake_clear)
def clear_padding(x: Tensor, dim: int, *, index: Tensor, parts: int, size: int) -> Tensor:
    """Return a part with zeros for its padding."""
    filled = fill_padding(x, 0.0, dim, index=index, parts=parts, size=size)
    return (
        filled.clone(memory_format=torch.contiguous_format) if filled is x else filled.contiguous()
    )


def positions(index: Tensor, length: int, parts: int) -> Tensor:
    """Return the positions of what part ``index`` has of a sequence, ``[length]`` of int64.

    They are those of pieces ``index`` and ``2 * parts - 1 - index``, of ``length // 2`` each.
    """
    half = length // 2
    pieces = torch.cat([index, 2 * parts - 1 - index])
    return (pieces[:, None] * half + torch.arange(half, device=index.device)).flatten()


def _mask(index: Tensor, queries: int, causal: bool, parts: int) -> Tensor | None:
    """Return which keys each query may see, ``[1, 1, queries, keys]``: those that come no later.

    Keys lie one part behind the other, as ranks gathered them.
    """
    if not causal:
        return None
    ranks = torch.arange(parts, device=index.device)
    keys = torch.cat([positions(rank[None], queries, parts) for rank in ranks])
    own = positions(index, queries, parts)
    return (keys[None, :] <= own[:, None])[None, None]


def _fake_attention(
    q: Tensor, k: Tensor, v: Tensor, index: Tensor, causal: bool, scale: float, parts: int
) -> tuple[Tensor, Tensor]:
    batch, heads, length, _ = q.shape
    wide = torch.promote_types(q.dtype, torch.float32)
    out = head_last(batch, heads, length, v.shape[3], like=q)
    return out, q.new_empty(batch, heads, length, dtype=wide)


@op(fake=_fake_attention)
def attention_part(
    q: Tensor, k: Tensor, v: Tensor, index: Tensor, causal: bool, scale: float, parts: int
) -> tuple[Tensor, Tensor]:
    """Return what ``attention`` does for the queries of one part, of all keys and values."""
    mask = _mask(index, q.shape[2], causal, parts)
    return attention(q, k, v, mask, False, scale, 0)


def _fake_attention_backward(
    grad: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    index: Tensor,
    causal: bool,
    scale: float,
    parts: int,
) -> tuple[Tensor, Tensor, Tensor]:
    return head_last(*q.shape, like=q), torch.empty_like(k), torch.empty_like(v)


@op(fake=_fake_attention_backward)
def attention_part_backward(
    grad: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    index: Tensor,
    causal: bool,
    scale: float,
    parts: int,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of q, and this part's terms of those of all keys and values."""
    mask = _mask(index, q.shape[2], causal, parts)
    dq, dk, dv = attention_backward(grad, q, k, v, out, lse, mask, None, False, scale, 0)
    return dq, dk.contiguous(), dv.contiguous()


# As of whole attention: every score of the part's queries, in the backward pass once more.


@flop_counter.register_flop_formula(torch.ops.piper.attention_part)
def _forward_flops(q: Any, k: Any, v: Any, *args: Any, **kwargs: Any) -> int:
    return int(_count.sdpa_flop_count(q, k, v))


@flop_counter.register_flop_formula(torch.ops.piper.attention_part_backward)
def _backward_flops(grad: Any, q: Any, k: Any, v: Any, *args: Any, **kwargs: Any) -> int:
    return int(_count.sdpa_backward_flop_count(grad, q, k, v))
