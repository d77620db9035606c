"""Triton's kernels for data movement against torch's own ops, on the same device."""

# mypy: disable-error-code="import-untyped"

from __future__ import annotations

import pytest
import torch
from piper_runtime.movement import Packing, TorchMovement, movement_for
from torch import Tensor

SHAPES = [(1024, 1000), (17,), (3, 5, 7), (4096,), ()]
DTYPES = [torch.float32, torch.bfloat16]


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


@pytest.mark.parametrize("source", DTYPES)
@pytest.mark.parametrize("target", DTYPES)
def test_unpack(device: torch.device, source: torch.dtype, target: torch.dtype) -> None:
    flat = flat_of(device, source)
    found = [torch.empty(shape, device=device, dtype=target) for shape in SHAPES]
    expected = [torch.empty_like(part) for part in found]
    movement_for(device).unpack(Packing(flat, SHAPES), found)
    TorchMovement().unpack(Packing(flat, SHAPES), expected)
    assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("weighted", [False, True])
def test_rows(device: torch.device, dtype: torch.dtype, weighted: bool) -> None:
    """Rows are gathered, and gathered and added up; some of them are padding."""
    generator = torch.Generator().manual_seed(0)
    num_rows, width, k = 500, 300, 2
    x = drawn((num_rows, width), device, dtype, 0)
    rows = torch.randint(-1, num_rows, (k * num_rows,), generator=generator).to(device)
    slots = torch.randint(-1, k * num_rows, (num_rows, k), generator=generator).to(device)
    weights = drawn((k * num_rows,), device, torch.float32, 1).to(dtype) if weighted else None
    by_slot = None if weights is None else weights.view(num_rows, k)
    there, plain = movement_for(device), TorchMovement()
    found, expected = there.permute_rows(x, rows, weights), plain.permute_rows(x, rows, weights)
    assert torch.equal(found, expected)
    back = there.unpermute_rows(expected, slots, by_slot)
    torch.testing.assert_close(back, plain.unpermute_rows(expected, slots, by_slot))
