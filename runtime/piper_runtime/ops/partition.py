"""What a rank computes with where several compute parts of the same values, or of one sequence."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.utils import flop_counter

from piper_runtime.ops.attention import merge
from piper_runtime.ops.attention_blocks import head_last
from piper_runtime.ops.attention_op import attention, attention_backward
from piper_runtime.ops.define import op

__all__ = [
    "attention_part",
    "attention_part_backward",
    "clear_padding",
    "fill_padding",
    "part",
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


@dataclass(frozen=True, slots=True)
class _Meeting:
    """Queries of one piece, and keys of some: all of them see all, or each the keys up to its own.

    Both are numbers of pieces, ``[1]`` and ``[n]`` of int64: of the two of the part, and of those
    that ranks gathered.
    """

    queries: Tensor
    keys: Tensor
    causal: bool

    def of_part(self, x: Tensor) -> Tensor:
        """Return the piece of what has two, [B, H, 2 * half, ...]."""
        return _pieces(x, 2).index_select(2, self.queries).squeeze(2)

    def of_all(self, x: Tensor, parts: int) -> Tensor:
        """Return the pieces of what was gathered, one behind the other, [B, G, n * half, ...]."""
        return _pieces(x, 2 * parts).index_select(2, self.keys).flatten(2, 3)


def _pieces(x: Tensor, number: int) -> Tensor:
    """Return a view [B, H, length, ...] as [B, H, number, length / number, ...]."""
    return torch.unflatten(x, 2, (number, x.shape[2] // number))


def _meetings(index: Tensor, parts: int) -> Iterator[_Meeting]:
    """Yield what queries of part ``index`` see, each pair of pieces once.

    A part is an early piece, ``index``, and a late one, ``2 * parts - 1 - index``. Each sees the
    pieces before it, and in itself what is not later. For part 1 of 4:

        gathered   piece 0 7   1 6   2 5   3 4
        early 1          b     a
        late  6          c     c d   c b   c b

    a, d: itself. c: the early pieces of all parts, before every late one. b: ``parts - 1`` more,
    the fewer of them by the early piece the more by the late one. So shapes depend on no index:
    parts are the same work, and no host has to know which it is.
    """
    early, late = torch.zeros_like(index), torch.ones_like(index)
    yield _Meeting(early, 2 * index, causal=True)
    yield _Meeting(late, 2 * index + 1, causal=True)
    yield _Meeting(late, 2 * torch.arange(parts, device=index.device), causal=False)
    for number in range(parts - 1):
        is_early = index > number
        # The late pieces of the parts behind come before this one's.
        key = torch.where(is_early, 2 * number, 2 * (parts - 1 - number + index) + 1)
        yield _Meeting(torch.where(is_early, early, late), key, causal=False)


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
    """Return what ``attention`` does for the queries of one part, of all keys and values.

    Keys and values lie one part behind the other, as ranks gathered them. What is hidden is not
    computed.
    """
    if not causal:
        return attention(q, k, v, None, False, scale, 0)
    out, lse = _fake_attention(q, k, v, index, causal, scale, parts)
    total = torch.zeros(out.shape, dtype=lse.dtype, device=q.device)
    lse.fill_(-math.inf)
    for meeting in _meetings(index, parts):
        operands = (meeting.of_part(q), meeting.of_all(k, parts), meeting.of_all(v, parts))
        found = attention(*operands, None, meeting.causal, scale, 0)
        merged = merge(meeting.of_part(total), meeting.of_part(lse), *found)
        for whole, piece in zip((total, lse), merged, strict=True):
            _pieces(whole, 2).index_copy_(2, meeting.queries, piece.unsqueeze(2))
    return out.copy_(total), lse


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
    if not causal:
        dq, dk, dv = attention_backward(grad, q, k, v, out, lse, None, None, False, scale, 0)
        return dq, dk.contiguous(), dv.contiguous()
    dq, dk, dv = (torch.zeros(x.shape, dtype=lse.dtype, device=x.device) for x in (q, k, v))
    for meeting in _meetings(index, parts):
        own, of_all = meeting.of_part, partial(meeting.of_all, parts=parts)
        operands = (own(grad), own(q), of_all(k), of_all(v), own(out), own(lse))
        terms = attention_backward(*operands, None, None, meeting.causal, scale, 0)
        _pieces(dq, 2).index_add_(2, meeting.queries, terms[0].to(dq.dtype).unsqueeze(2))
        for whole, term in zip((dk, dv), terms[1:], strict=True):
            pieces = _pieces(term.to(whole.dtype), len(meeting.keys))
            _pieces(whole, 2 * parts).index_add_(2, meeting.keys, pieces)
    return head_last(*q.shape, like=q).copy_(dq), dk.to(k.dtype), dv.to(v.dtype)


# As of whole attention: every score of the part's queries, also what is hidden and not computed; in
# the backward pass once more.


@flop_counter.register_flop_formula(torch.ops.piper.attention_part)
def _forward_flops(q: Any, k: Any, v: Any, *args: Any, **kwargs: Any) -> int:
    return int(_count.sdpa_flop_count(q, k, v))


@flop_counter.register_flop_formula(torch.ops.piper.attention_part_backward)
def _backward_flops(grad: Any, q: Any, k: Any, v: Any, *args: Any, **kwargs: Any) -> int:
    return int(_count.sdpa_backward_flop_count(grad, q, k, v))
