"""The ops ``piper.attention`` and ``piper.attention_backward``; ``attention`` says what they compute.

    out, lse   = attention(q, k, v, mask, causal, scale, offset)
    dq, dk, dv = attention_backward(grad, q, k, v, out, lse, mask, grad_lse, causal, scale, offset)

The heads of a result lie beside each other in memory (see ``head_last``), but for the log-sum-exp,
which is contiguous.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils import flop_counter

from piper_runtime.ops.attention_blocks import (
    Attended,
    backward_in_blocks,
    forward_in_blocks,
    head_last,
)
from piper_runtime.ops.attention_fused import backward_fused, choose_fused, forward_fused
from piper_runtime.ops.define import differentiate, op

__all__ = ["attention", "attention_backward"]

_count: Any = flop_counter
_DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)


def _fake_forward(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, *others: object
) -> tuple[Tensor, Tensor]:
    _check(q, k, v, mask)
    batch, heads, length, _ = q.shape
    out = head_last(batch, heads, length, v.shape[3], like=q)
    wide = torch.promote_types(q.dtype, torch.float32)
    return out, q.new_empty(batch, heads, length, dtype=wide)


@op(fake=_fake_forward)
def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    causal: bool,
    scale: float,
    offset: int,
) -> tuple[Tensor, Tensor]:
    """Return output [B, H, S, E] and log-sum-exp [B, H, S]."""
    _check(q, k, v, mask)
    fused = choose_fused(q, k, v, mask, causal=causal, offset=offset)
    if fused is None:
        return forward_in_blocks(q, k, v, mask, causal=causal, scale=scale, offset=offset)
    out, lse = forward_fused(fused, q, k, v, mask, scale=scale)
    return _heads_last(out), lse.contiguous()


def _fake_backward(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, *others: object
) -> tuple[Tensor, Tensor, Tensor]:
    return head_last(*q.shape, like=q), head_last(*k.shape, like=k), head_last(*v.shape, like=v)


@op(fake=_fake_backward)
def attention_backward(
    grad: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    mask: Tensor | None,
    grad_lse: Tensor | None,
    causal: bool,
    scale: float,
    offset: int,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of q, k and v.

    ``grad`` is that of ``out``, ``grad_lse`` that of ``lse``, None for 0. Where keys are taken in
    parts, ``out`` and ``lse`` are those of all keys; the gradients of q then add up.
    """
    fused = choose_fused(q, k, v, mask, causal=causal, offset=offset)
    given = Attended(grad, q, k, v, out, lse)
    if fused is None or grad_lse is not None:
        return backward_in_blocks(given, mask, grad_lse, causal=causal, scale=scale, offset=offset)
    dq, dk, dv = backward_fused(fused, given, mask, scale=scale)
    return _heads_last(dq), _heads_last(dk), _heads_last(dv)


def _check(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> None:
    """Refuse what does not fit together."""
    dtypes = [tensor.dtype for tensor in (q, k, v)]
    if q.dtype not in _DTYPES or len(set(dtypes)) != 1:
        raise TypeError(f"attention expected q, k and v of one floating dtype, got {dtypes}")
    shapes = ", ".join(str(list(tensor.shape)) for tensor in (q, k, v))
    if not q.dim() == k.dim() == v.dim() == 4:
        raise ValueError(f"attention expected q, k and v of four dims, got {shapes}")
    batch, heads, queries, size = q.shape
    groups, keys = k.shape[1:3]
    if k.shape != (batch, groups, keys, size) or v.shape[:3] != k.shape[:3]:
        raise ValueError(f"attention expected q[B,H,S,D], k[B,G,L,D], v[B,G,L,E], got {shapes}")
    if groups == 0 or heads % groups:
        raise ValueError(
            f"attention expected the heads of k to divide the {heads} of q, got {groups}"
        )
    if mask is None:
        return
    if mask.dtype not in (torch.bool, q.dtype):
        raise TypeError(f"attention expected a mask of torch.bool or {q.dtype}, got {mask.dtype}")
    whole = (batch, heads, queries, keys)
    fits = mask.dim() == 4 and all(n in (1, w) for n, w in zip(mask.shape, whole, strict=True))
    if not fits:
        raise ValueError(
            f"attention expected a mask that broadcasts to {list(whole)}, got {list(mask.shape)}"
        )


def _heads_last(tensor: Tensor) -> Tensor:
    """Return a tensor in the layout of ``head_last``, itself if it is."""
    return tensor.transpose(1, 2).contiguous().transpose(1, 2)


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    q, k, v, mask, *ctx.options = inputs
    if mask is not None and mask.requires_grad:
        raise ValueError("attention expected a mask that needs no gradient, got one that does")
    ctx.save_for_backward(q, k, v, *output, mask)
    ctx.set_materialize_grads(False)


def _backward(ctx: Any, grad: Tensor | None, grad_lse: Tensor | None) -> tuple[Tensor | None, ...]:
    q, k, v, out, lse, mask = ctx.saved_tensors
    nothing = (None,) * 4  # for the mask and the options
    if grad is None and grad_lse is None:
        return (None, None, None, *nothing)
    grad = torch.zeros_like(out) if grad is None else grad
    grads = attention_backward(grad, q, k, v, out, lse, mask, grad_lse, *ctx.options)
    return (*grads, *nothing)


differentiate(attention, save=_save, backward=_backward)


# FLOPs are counted as torch counts those of its fused attentions: every score, whether a mask or
# causality hides it or not, and in the backward pass the scores once more.


@flop_counter.register_flop_formula(torch.ops.piper.attention)
def _forward_flops(q: Any, k: Any, v: Any, *args: Any, **kwargs: Any) -> int:
    return int(_count.sdpa_flop_count(q, k, v))


@flop_counter.register_flop_formula(torch.ops.piper.attention_backward)
def _backward_flops(grad: Any, q: Any, k: Any, v: Any, *args: Any, **kwargs: Any) -> int:
    return int(_count.sdpa_backward_flop_count(grad, q, k, v))
