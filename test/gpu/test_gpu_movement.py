"""Triton's kernels for data movement against torch's own ops, on the same device."""

# mypy: disable-error-code="import-untyped"

from __future__ import annotations

from typing import Any

import pytest
import torch
from piper_runtime.movement import Packing, TorchMovement, movement_for
from torch import Tensor

SHAPES = [(1024, 1000), (17,), (3, 5, 7), (4096,), ()]
FP32, BF16 = torch.float32, torch.bfloat16
DTYPES = [FP32, BF16]
BOUNDS = {FP32: 1e-5, BF16: 2**-7}


def drawn(shape: tuple[int, ...], device: torch.device, dtype: torch.dtype, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator).to(device, dtype)


def flat_of(device: torch.device, dtype: torch.dtype) -> Tensor:
    return drawn((sum(torch.Size(shape).numel() for shape in SHAPES),), device, dtype, 1)


@pytest.mark.parametrize("add", [False, True])
@pytest.mark.parametrize("source", DTYPES)
@pytest.mark.parametrize("target", DTYPES)
def test_pack(device: torch.device, source: torch.dtype, target: torch.dtype, add: bool) -> None:
    parts = [drawn(shape, device, source, seed) for seed, shape in enumerate(SHAPES)]
    found, expected = flat_of(device, target), flat_of(device, target)
    movement_for(device).pack(parts, Packing(found, SHAPES), add=add)
    TorchMovement().pack(parts, Packing(expected, SHAPES), add=add)
    assert torch.equal(found, expected)


@pytest.mark.parametrize(("dtype", "kind"), [(FP32, FP32), (BF16, FP32), (BF16, BF16)])
@pytest.mark.parametrize("weighted", [False, True])
def test_rows(device: torch.device, dtype: torch.dtype, kind: torch.dtype, weighted: bool) -> None:
    """Rows of tokens, and the sum of those of a token; only a sum over a row has another order."""
    num_tokens, width, choices = 500, 300, 2
    order = torch.randperm(choices * num_tokens, generator=torch.Generator().manual_seed(0))
    how: dict[str, Any] = {"order": order.to(device), "choices": choices}
    tokens = drawn((num_tokens, width), device, dtype, 0)
    weights = drawn((num_tokens, choices), device, kind, 1) if weighted else None
    there, plain = movement_for(device), TorchMovement()
    rows = there.permute_rows(tokens, weights=weights, **how)
    assert torch.equal(rows, plain.permute_rows(tokens, weights=weights, **how))
    found = there.unpermute_rows(rows, weights=weights, **how)
    assert torch.equal(found, plain.unpermute_rows(rows, weights=weights, **how))
    products = there.dot_rows(tokens, rows, dtype=kind, **how)
    wanted = plain.dot_rows(tokens, rows, dtype=kind, **how)
    torch.testing.assert_close(products, wanted, rtol=BOUNDS[kind], atol=1e-3)
