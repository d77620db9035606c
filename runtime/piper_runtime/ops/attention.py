"""Exact softmax attention, and the parts that it can be computed in.

    out, lse = attention_with_lse(q, k, v, causal=True)

    q [B, H, S, D]    k [B, G, L, D]    v [B, G, L, E]    ->    out [B, H, S, E]    lse [B, H, S]

H heads of queries share G heads of keys and values: head h reads group h // (H / G). Keys and
values may differ in size, as in multi-head latent attention. The log-sum-exp of each query's scores
is kept for the backward pass, and lets ``merge`` combine what a query gets from different keys.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from piper_runtime.ops import attention_op

__all__ = ["attention", "attention_with_lse", "merge"]


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    causal: bool,
    scale: float | None = None,
    offset: int = 0,
    mask: Tensor | None = None,
) -> Tensor:
    """Return ``softmax(scale * q @ k.T + mask) @ v`` for each head, [B, H, S, E].

    Args:
        q: queries, [B, H, S, D].
        k: keys, [B, G, L, D]; G divides H.
        v: values, [B, G, L, E].
        causal: whether query i sees only the keys up to the one at ``i + offset``.
        scale: the factor of the scores; None is 1 / sqrt(D).
        offset: where the first query lies relative to the first key; also less than 0.
        mask: of four dims that broadcast to [B, H, S, L]; boolean, true where a query sees a key, or
            of the dtype of q and added to the scores. It gets no gradient.

    All tensors are of one dtype: fp64, fp32, bf16 or fp16; softmax and sums are at least of fp32. A
    query that sees no key gets 0. Torch's fused kernels are used where they fit (``attention_fused``
    says where), otherwise blocks of queries: no matrix of all scores of all heads is kept.

    Raises:
        TypeError: another dtype, or dtypes that differ.
        ValueError: shapes that do not fit together, or a mask that needs a gradient.
    """
    return attention_with_lse(q, k, v, causal=causal, scale=scale, offset=offset, mask=mask)[0]


def attention_with_lse(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    causal: bool,
    scale: float | None = None,
    offset: int = 0,
    mask: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Return what ``attention`` does and the log-sum-exp of each query's scores, [B, H, S].

    The latter is of fp64 for fp64 and of fp32 otherwise; minus infinity for a query that sees no
    key. It has a gradient, too; where it is used, the backward pass goes by blocks.
    """
    factor = 1 / math.sqrt(q.shape[-1]) if scale is None else scale
    out, lse = attention_op.attention(q, k, v, mask, causal, factor, offset)
    return out, lse


def merge(out1: Tensor, lse1: Tensor, out2: Tensor, lse2: Tensor) -> tuple[Tensor, Tensor]:
    """Combine what the same queries got from two sets of keys: outputs [..., S, E] and log-sum-exps
    [..., S] of each, to those of both sets together.

    The result is exact, so sets may be merged in any order; merge outputs of fp32 to round once. The
    output has the dtype of ``out1``. Differentiable, also where a query sees no key.
    """
    highest = torch.maximum(lse1, lse2).detach()
    highest = highest.masked_fill(highest == -math.inf, 0)
    weight1, weight2 = torch.exp(lse1 - highest), torch.exp(lse2 - highest)
    total = weight1 + weight2
    some = total > 0
    divisor = torch.where(some, total, 1)
    lse = torch.where(some, highest + divisor.log(), -math.inf)
    parts = out1 * (weight1 / divisor).unsqueeze(-1) + out2 * (weight2 / divisor).unsqueeze(-1)
    return parts.to(out1.dtype), lse
