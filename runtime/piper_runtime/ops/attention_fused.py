"""Attention by torch's fused kernels, where one computes exactly what is asked for.

    CPU    flash             fp64 fp32 bf16 fp16  heads of one size, first query at the first key;
                                                  a mask, if it is not causal, too
    CUDA   flash             bf16 fp16            heads up to 256; smaller values are padded
    CUDA   memory-efficient  fp32                 heads in multiples of 8, first query at the first key

On CUDA none takes a mask here.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from piper_runtime.ops.attention_blocks import Attended

__all__ = ["Fused", "backward_fused", "choose_fused", "forward_fused"]

aten = torch.ops.aten
cuda: Any = torch.backends.cuda

Kernel = Literal["cpu", "flash", "efficient"]
Gradients = tuple[Tensor, Tensor, Tensor]

_FLASH_DTYPES = (torch.bfloat16, torch.float16)
_FLASH_CAPABILITY = (8, 0)  # Ampere
_MOST_FLASH = 256  # of the size of a head
_ALIGNMENT = 16  # bytes
_MULTIPLE = 8  # of the size of a head
_LSE_MULTIPLE = 32  # queries, in the memory-efficient kernel's log-sum-exp


@dataclass(frozen=True, slots=True)
class Fused:
    """A kernel, how many of the first keys it is given, and whether it hides some of these."""

    kernel: Kernel
    keys: int
    causal: bool


def choose_fused(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, *, causal: bool, offset: int
) -> Fused | None:
    """Return how a fused kernel computes an attention; None if none can."""
    queries, keys = q.shape[2], k.shape[2]
    if not q.numel() or not keys or not v.numel() or (causal and offset < 0):
        return None
    hides = causal and offset < keys - 1
    # Keys that no query sees are left out.
    seen = min(keys, queries + offset) if hides else keys
    plan = Fused("cpu", seen, hides)
    if q.device.type == "cpu":
        fits = q.shape[3] == v.shape[3] and (offset == 0 or not hides)
        return plan if fits and not (mask is not None and hides) else None
    if q.device.type == "cuda" and mask is None:
        return _choose_cuda(plan, q, v, offset)
    return None


def _choose_cuda(plan: Fused, q: Tensor, v: Tensor, offset: int) -> Fused | None:
    sizes = (q.shape[3], v.shape[3])
    if q.dtype in _FLASH_DTYPES:
        # Its last query sees the last key, which is so once unseen keys are left out.
        aligned = not plan.causal or q.shape[2] + offset == plan.keys
        usable = aligned and max(sizes) <= _MOST_FLASH and cuda.flash_sdp_enabled()
        if usable and torch.cuda.get_device_capability(q.device) >= _FLASH_CAPABILITY:
            return replace(plan, kernel="flash")
    # This kernel's first query sees the first key.
    aligned = not plan.causal or offset == 0
    usable = aligned and cuda.mem_efficient_sdp_enabled()
    if usable and q.dtype == torch.float32 and not any(size % _MULTIPLE for size in sizes):
        return replace(plan, kernel="efficient")
    return None


def forward_fused(
    plan: Fused, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, *, scale: float
) -> tuple[Tensor, Tensor]:
    """Return output [B, H, S, E] and log-sum-exp [B, H, S]."""
    q, k, v = (_readable(tensor) for tensor in (q, k[:, :, : plan.keys], v[:, :, : plan.keys]))
    if plan.kernel == "cpu":
        added = _added(mask, q)
        out, lse = aten._scaled_dot_product_flash_attention_for_cpu(
            q, k, v, 0.0, plan.causal, attn_mask=added, scale=scale
        )
        if added is None:
            return out, lse
        # The kernel returns 0 for a query that sees no key.
        return out, lse.masked_fill((added == -math.inf).all(-1), -math.inf)
    if plan.kernel == "flash":
        width = _flash_width(q, v)
        q, k, v_padded = (_pad(tensor, width) for tensor in (q, k, v))
        results = aten._scaled_dot_product_flash_attention(
            q, k, v_padded, 0.0, plan.causal, False, scale=scale
        )
        return results[0][..., : v.shape[3]], results[1]
    k, v = _repeat(k, q), _repeat(v, q)
    out, lse, _, _ = aten._scaled_dot_product_efficient_attention(
        q, k, v, None, True, 0.0, plan.causal, scale=scale
    )
    return out, lse[:, :, : q.shape[2]]


def backward_fused(plan: Fused, given: Attended, mask: Tensor | None, *, scale: float) -> Gradients:
    """Return the gradients of q, k and v; a key that was left out has a gradient of 0."""
    grad, q, k, v, out, lse = given
    unseen = k.shape[2] - plan.keys
    read = (grad, q, k[:, :, : plan.keys], v[:, :, : plan.keys], out)
    grad, q, k, v, out = (_readable(tensor) for tensor in read)
    given = Attended(grad, q, k, v, out, lse)
    if plan.kernel == "cpu":
        dq, dk, dv = _cpu_backward(plan, given, mask, scale)
    else:
        run = _flash_backward if plan.kernel == "flash" else _efficient_backward
        dq, dk, dv = run(plan, given, scale)
    if unseen:
        dk, dv = F.pad(dk, (0, 0, 0, unseen)), F.pad(dv, (0, 0, 0, unseen))
    return dq, dk, dv


def _cpu_backward(plan: Fused, given: Attended, mask: Tensor | None, scale: float) -> Gradients:
    grad, q, k, v, out, lse = given
    if mask is not None:
        lse = lse.masked_fill(lse == -math.inf, 0)
    dq, dk, dv = aten._scaled_dot_product_flash_attention_for_cpu_backward(
        grad, q, k, v, out, lse, 0.0, plan.causal, attn_mask=_added(mask, q), scale=scale
    )
    return dq, dk, dv


def _flash_backward(plan: Fused, given: Attended, scale: float) -> Gradients:
    grad, q, k, v, out, lse = given
    size, width = _flash_width(q, v), v.shape[3]
    seed = torch.empty(2, dtype=torch.uint64, device=q.device)  # of dropout, which there is none of
    grads = aten._scaled_dot_product_flash_attention_backward(
        *(_pad(tensor, size) for tensor in (grad, q, k, v, out)),
        lse,
        None,
        None,
        q.shape[2],
        k.shape[2],
        0.0,
        plan.causal,
        seed,
        seed,
        scale=scale,
    )
    return grads[0][..., : q.shape[3]], grads[1][..., : k.shape[3]], grads[2][..., :width]


def _efficient_backward(plan: Fused, given: Attended, scale: float) -> Gradients:
    grad, q, k, v, out, lse = given
    padded = F.pad(lse, (0, -lse.shape[2] % _LSE_MULTIPLE), value=float("inf"))
    seed = torch.empty((), dtype=torch.int64, device=q.device)  # of dropout, which there is none of
    dq, dk, dv, _ = aten._scaled_dot_product_efficient_attention_backward(
        grad,
        q,
        _repeat(k, q),
        _repeat(v, q),
        None,
        out,
        padded,
        seed,
        seed,
        0.0,
        [True, True, True, False],
        plan.causal,
        scale=scale,
    )
    if k.shape[1] != q.shape[1]:
        dk, dv = (tensor.unflatten(1, (k.shape[1], -1)).sum(2) for tensor in (dk, dv))
    return dq, dk, dv


def _added(mask: Tensor | None, q: Tensor) -> Tensor | None:
    """Return a mask as what is added to the scores, in the dtype of q."""
    if mask is None or mask.dtype != torch.bool:
        return mask
    nothing = torch.zeros(mask.shape, dtype=q.dtype, device=q.device)
    return nothing.masked_fill_(~mask, -math.inf)


def _readable(tensor: Tensor) -> Tensor:
    """Return a tensor as kernels read it: the last dim dense; on a GPU each head at 16 bytes."""
    dense = tensor.stride(-1) == 1
    if dense and tensor.device.type == "cuda":
        size = tensor.element_size()
        places = (tensor.data_ptr(), *(size * stride for stride in tensor.stride()[:-1]))
        dense = not any(place % _ALIGNMENT for place in places)
    return tensor if dense else tensor.clone(memory_format=torch.contiguous_format)


def _flash_width(q: Tensor, v: Tensor) -> int:
    """Return the one size of a head that the flash kernel is given."""
    size = max(q.shape[3], v.shape[3])
    return size + -size % _MULTIPLE


def _pad(tensor: Tensor, size: int) -> Tensor:
    """Return a tensor with zeros behind each head, or itself if there is nothing to add."""
    missing = size - tensor.shape[3]
    return F.pad(tensor, (0, missing)) if missing else tensor


def _repeat(tensor: Tensor, q: Tensor) -> Tensor:
    """Return keys or values once for each head that reads them."""
    heads = q.shape[1] // tensor.shape[1]
    return tensor if heads == 1 else tensor.repeat_interleave(heads, 1)
