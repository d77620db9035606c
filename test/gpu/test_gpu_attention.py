"""Attention on a device, by whichever kernel it takes there, against torch's own in fp64."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from piper_runtime.ops.attention import attention
from torch import Tensor

# Relative to the largest element: bf16 rounds operands of the second product and results, fp32 may
# be computed of several tf32.
BOUNDS = {torch.bfloat16: 2**-6, torch.float32: 1e-4, torch.float64: 1e-12}
SIZES: dict[str, dict[str, int]] = {
    "plain": {},
    "grouped": {"groups": 2, "keys": 96},
    "latent": {"size": 192, "width": 128},  # DeepSeek-V3's
    "odd": {"groups": 1, "queries": 33, "keys": 65, "size": 20, "width": 12},
}


def make(
    *, groups: int = 4, queries: int = 64, keys: int = 64, size: int = 32, width: int = 32
) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    shapes = ((2, 4, queries, size), (2, groups, keys, size), (2, groups, keys, width))
    return [torch.randn(shape, generator=generator) for shape in shapes]


def with_gradients(tensors: list[Tensor], *place: Any) -> list[Tensor]:
    return [tensor.detach().to(*place).requires_grad_() for tensor in tensors]


@pytest.mark.parametrize("dtype", BOUNDS)
@pytest.mark.parametrize("offset", [None, 0, 3])
@pytest.mark.parametrize("sizes", SIZES)
def test_attention_is_near_fp64(
    device: torch.device, dtype: torch.dtype, offset: int | None, sizes: str
) -> None:
    """Without causality where there is no offset."""
    operands = with_gradients(make(**SIZES[sizes]), device, dtype)
    q, k, v = exact = with_gradients(operands, "cpu", torch.float64)
    causal = offset is not None
    found = attention(*operands, causal=causal, offset=offset or 0)
    seen = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool)
    mask = None if offset is None else seen.tril(offset)
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        expected = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=True)
    weights = torch.randn(expected.shape, generator=torch.Generator().manual_seed(1)).double()
    gradients = torch.autograd.grad((found.cpu() * weights).sum(), operands)
    wanted = torch.autograd.grad((expected * weights).sum(), exact)
    for ours, value in zip((found, *gradients), (expected, *wanted), strict=True):
        assert ours.dtype == dtype
        gap = float((ours.detach().cpu().double() - value.detach()).abs().max())
        assert gap <= BOUNDS[dtype] * max(1.0, float(value.detach().abs().max()))
