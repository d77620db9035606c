"""Attention in blocks of queries: at no time is there a matrix of all queries by all keys.

Each block holds the scores of some queries of some heads, and of the keys that one of them sees:

    keys      0 1 2 3 4 5 6 7
    rows 0-1  # #                  causal, offset 0: about half of the scores are never computed
    rows 2-3  # # # #
    rows 4-5  # # # # # #

The backward pass computes the scores of a block again from the log-sum-exp of the forward pass
(Rabe and Staats, "Self-attention Does Not Need O(n^2) Memory", 2021; Dao et al.,
"FlashAttention", 2022). Sums and softmax are at least of fp32.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

__all__ = ["Attended", "backward_in_blocks", "forward_in_blocks", "head_last"]

# Scores of one block: what stays in a cache of a CPU, and what keeps a GPU busy.
_SCORES_ON_CPU = 1 << 20
_SCORES_ELSEWHERE = 1 << 26
_LEAST_ROWS = 16  # unless there are fewer queries


class Attended(NamedTuple):
    """What a backward pass is given: the gradient of an output, and what that was made of."""

    grad: Tensor
    q: Tensor
    k: Tensor
    v: Tensor
    out: Tensor
    lse: Tensor


@dataclass(frozen=True, slots=True)
class _Problem:
    """One attention. Queries are seen as [B, G, H / G, S, D]: all heads of a group read one key."""

    q: Tensor
    k: Tensor
    v: Tensor
    mask: Tensor | None  # [B, G, H / G, S, L]
    causal: bool
    scale: float
    offset: int
    dtype: torch.dtype  # of scores and sums

    @staticmethod
    def make(
        q: Tensor,
        k: Tensor,
        v: Tensor,
        mask: Tensor | None,
        *,
        causal: bool,
        scale: float,
        offset: int,
    ) -> _Problem:
        """Group the heads; nothing is copied."""
        if mask is not None:
            mask = _grouped(mask.expand(*q.shape[:3], k.shape[2]), k)
        dtype = torch.promote_types(q.dtype, torch.float32)
        return _Problem(_grouped(q, k), k, v, mask, causal, scale, offset, dtype)

    def blocks(self) -> Iterator[_Block]:
        """Yield blocks that cover all queries of all heads once, each of a bounded size."""
        batch, groups, heads, queries, _ = self.q.shape
        if 0 in self.q.shape[:4]:
            return
        most = _SCORES_ON_CPU if self.q.device.type == "cpu" else _SCORES_ELSEWHERE
        keys = max(1, self.k.shape[2])
        rows = min(queries, max(_LEAST_ROWS, most // (heads * keys)))
        several = min(groups, max(1, most // (heads * rows * keys)))
        examples = max(1, most // (groups * heads * rows * keys)) if several == groups else 1
        for example in range(0, batch, examples):
            for group in range(0, groups, several):
                for row in range(0, queries, rows):
                    stop = min(row + rows, queries)
                    yield _Block(
                        slice(example, example + examples),
                        slice(group, group + several),
                        slice(row, stop),
                        self._visible(stop - 1),
                    )

    def _visible(self, row: int) -> int:
        """Return how many keys, from the first on, a query sees."""
        keys = self.k.shape[2]
        return max(0, min(keys, row + self.offset + 1)) if self.causal else keys

    def queries_of(self, tensor: Tensor, block: _Block) -> Tensor:
        """Return a block of queries, outputs or gradients of these as [b, g, H / G * rows, dim]."""
        return tensor[block.batch, block.groups, :, block.rows].flatten(2, 3).to(self.dtype)

    def keys_of(self, tensor: Tensor, block: _Block) -> Tensor:
        """Return a block of keys or values as [b, g, keys, dim]."""
        return tensor[block.batch, block.groups, : block.keys].to(self.dtype)

    def operands(self, block: _Block) -> tuple[Tensor, Tensor, Tensor]:
        """Return the queries, keys and values of a block."""
        queries = self.queries_of(self.q, block)
        return queries, self.keys_of(self.k, block), self.keys_of(self.v, block)

    def by_head(self, tensor: Tensor) -> Tensor:
        """Return a view of [b, g, H / G * rows, dim] as [b, g, H / G, rows, dim]."""
        return torch.unflatten(tensor, 2, (self.q.shape[2], -1))

    def scores(self, q: Tensor, k: Tensor, block: _Block) -> Tensor:
        """Return scaled scores [b, g, H / G * rows, keys], minus infinity where a key is hidden."""
        scores = (q * self.scale) @ k.transpose(-1, -2)
        view = self.by_head(scores)
        if self.mask is not None:
            mask = self.mask[block.batch, block.groups, :, block.rows, : block.keys]
            if mask.dtype == torch.bool:
                view.masked_fill_(~mask, -math.inf)
            else:
                view += mask
        if self.causal and self._visible(block.rows.start) < block.keys:
            key = torch.arange(block.keys, device=k.device)
            row = torch.arange(block.rows.start, block.rows.stop, device=k.device)
            view.masked_fill_(key > row[:, None] + self.offset, -math.inf)
        return scores


@dataclass(frozen=True, slots=True)
class _Block:
    """Queries of some examples and groups, and the number of keys that the last of them sees."""

    batch: slice
    groups: slice
    rows: slice
    keys: int


def head_last(batch: int, heads: int, length: int, size: int, *, like: Tensor) -> Tensor:
    """Return an empty [batch, heads, length, size] whose heads lie beside each other in memory, as
    the projections before and after an attention read and write them.
    """
    return like.new_empty(batch, length, heads, size).transpose(1, 2)


def forward_in_blocks(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, *, causal: bool, scale: float, offset: int
) -> tuple[Tensor, Tensor]:
    """Return output and log-sum-exp; 0 and minus infinity for a query that sees no key."""
    task = _Problem.make(q, k, v, mask, causal=causal, scale=scale, offset=offset)
    batch, heads, length, _ = q.shape
    out = head_last(batch, heads, length, v.shape[3], like=q)
    lse = q.new_full((batch, heads, length), -math.inf, dtype=task.dtype)
    outs, lses = _grouped(out, k), _grouped(lse, k)
    for block in task.blocks():
        place = (block.batch, block.groups, slice(None), block.rows)
        if not block.keys:
            outs[place] = 0
            continue
        query, key, value = task.operands(block)
        scores = task.scores(query, key, block)
        highest = scores.amax(-1, keepdim=True)
        highest.masked_fill_(highest == -math.inf, 0)
        chances = scores.sub_(highest).exp_()
        total = chances.sum(-1, keepdim=True)  # at least 1, unless the query sees no key
        mixed = (chances @ value).div_(total.clamp_min(1))
        outs[place] = task.by_head(mixed).to(out.dtype)
        lses[place] = total.log_().add_(highest).view(lses[place].shape)
    return out, lse


def backward_in_blocks(
    given: Attended,
    mask: Tensor | None,
    grad_lse: Tensor | None,
    *,
    causal: bool,
    scale: float,
    offset: int,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of q, k and v from those of output and log-sum-exp."""
    grad, q, k, v, out, lse = given
    task = _Problem.make(q, k, v, mask, causal=causal, scale=scale, offset=offset)
    (batch, groups, keys, size), width = k.shape, v.shape[3]
    dq = head_last(*q.shape, like=q)
    dk = torch.zeros(batch, keys, groups, size, dtype=task.dtype, device=k.device).transpose(1, 2)
    dv = torch.zeros(batch, keys, groups, width, dtype=task.dtype, device=k.device).transpose(1, 2)
    grads, outs, dqs = _grouped(grad, k), _grouped(out, k), _grouped(dq, k)
    # A query that sees no key must have chances of 0, not exp(-inf - -inf).
    lses = _grouped(lse.masked_fill(lse == -math.inf, math.inf), k).unsqueeze(-1)
    more = None if grad_lse is None else _grouped(grad_lse, k).unsqueeze(-1)
    for block in task.blocks():
        place = (block.batch, block.groups, slice(None), block.rows)
        if not block.keys:
            dqs[place] = 0
            continue
        query, key, value = task.operands(block)
        of_out = task.queries_of(grads, block)
        chances = task.scores(query, key, block).sub_(task.queries_of(lses, block)).exp_()
        # The softmax takes from each score its chance of what all of its query's scores get.
        shared = (of_out * task.queries_of(outs, block)).sum(-1, keepdim=True)
        if more is not None:
            shared -= task.queries_of(more, block)
        dscores = (of_out @ value.transpose(-1, -2)).sub_(shared).mul_(chances).mul_(scale)
        dqs[place] = task.by_head(dscores @ key).to(dq.dtype)
        part = (block.batch, block.groups, slice(0, block.keys))
        dk[part] += dscores.transpose(-1, -2) @ query
        dv[part] += chances.transpose(-1, -2) @ of_out
    return dq, dk.to(k.dtype), dv.to(v.dtype)


def _grouped(tensor: Tensor, k: Tensor) -> Tensor:
    """Return a view of [B, H, ...] as [B, G, H / G, ...]."""
    return torch.unflatten(tensor, 1, (k.shape[1], -1))
