"""Experts on a device, by torch's grouped product where it fits, against fp64 on the CPU."""

from __future__ import annotations

import pytest
import torch
from piper_runtime.ops import (
    moe_experts,
    moe_linear,
    moe_permute,
    moe_permute_backward,
    moe_unpermute,
    moe_unpermute_rows,
    moe_unpermute_weights,
)
from piper_runtime.ops.grouped import _is_aligned
from torch import Tensor

EXPERTS, CHOICES = 6, 2
# Relative to the largest element: bf16 rounds rows between two products, and weights.
BOUNDS = {torch.bfloat16: 2**-5, torch.float32: 1e-4, torch.float64: 1e-12}
# Widths of the second are no multiples of 16 bytes: its groups are multiplied one by one.
WIDTHS = {"aligned": (32, 48), "odd": (20, 12)}


def make_index(kind: str, tokens: int) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    index = torch.randint(EXPERTS - 1, (tokens, CHOICES), generator=generator)
    return index if kind == "even" else torch.full_like(index, 3)  # expert 5 has never any


def layer(values: list[Tensor], index: Tensor) -> Tensor:
    x, weights, up, down = values

    def compute(rows: Tensor, received: Tensor) -> Tensor:
        return moe_linear(torch.tanh(moe_linear(rows, up, received)), down, received)

    return moe_experts(x, index, weights, compute, experts=EXPERTS)


@pytest.mark.parametrize("dtype", BOUNDS)
@pytest.mark.parametrize("widths", WIDTHS)
@pytest.mark.parametrize(("kind", "tokens"), [("even", 33), ("one", 8), ("even", 0)])
def test_experts_are_near_fp64(
    device: torch.device, dtype: torch.dtype, widths: str, kind: str, tokens: int
) -> None:
    """Values and gradients, also of experts without rows."""
    width, hidden = WIDTHS[widths]
    generator = torch.Generator().manual_seed(1)
    shapes = (tokens, width), (tokens, CHOICES), (EXPERTS, hidden, width), (EXPERTS, width, hidden)
    scales = (1.0, 1.0, width**-0.5, hidden**-0.5)
    exact = [
        (scale * torch.randn(shape, generator=generator)).to(dtype).double().requires_grad_()
        for shape, scale in zip(shapes, scales, strict=True)
    ]
    there = [value.detach().to(device, dtype).requires_grad_() for value in exact]
    index = make_index(kind, tokens)
    found, wanted = layer(there, index.to(device)), layer(exact, index)
    grad = torch.randn(wanted.shape, generator=generator).to(dtype)
    results = [found, *torch.autograd.grad(found, there, grad.to(device))]
    expected = [wanted, *torch.autograd.grad(wanted, exact, grad.double())]
    for got, want in zip(results, expected, strict=True):
        assert got.dtype == dtype
        scale = max(1.0, float(want.detach().abs().max())) if want.numel() else 1.0
        torch.testing.assert_close(got.cpu().double(), want, rtol=0, atol=BOUNDS[dtype] * scale)


def test_what_is_aligned() -> None:
    """Matrices of which rows or columns start at multiples of 16 bytes."""
    matrices = torch.zeros(3, 16, 8, dtype=torch.bfloat16)
    assert _is_aligned(matrices)
    assert _is_aligned(matrices.transpose(1, 2))
    assert _is_aligned(matrices[0])
    assert not _is_aligned(matrices[:, :, ::2])
    assert not _is_aligned(matrices.view(-1)[1:129].view(16, 8))
    assert not _is_aligned(torch.zeros(3, 16, 12, dtype=torch.bfloat16))
    assert _is_aligned(torch.zeros(3, 16, 12, dtype=torch.float32))


def test_sizes_stay_on_the_device(gpu: torch.device) -> None:
    """In bf16 nothing waits for how many rows an expert has."""
    values = [torch.randn(8, 32), torch.rand(8, CHOICES)]
    values += [torch.randn(EXPERTS, 48, 32), torch.randn(EXPERTS, 32, 48)]
    there = [value.to(gpu, torch.bfloat16).requires_grad_() for value in values]
    index = make_index("even", 8).to(gpu)
    torch.cuda.set_sync_debug_mode("error")
    try:
        layer(there, index).sum().backward()  # type: ignore[no-untyped-call]
    finally:
        torch.cuda.set_sync_debug_mode("default")


# Of a row that is loaded 16 bytes at a time, of one that is not, of one of several blocks.
ROW_SIZES = [(33, 2, 64), (7, 3, 5), (9, 1, 1030), (0, 2, 8)]
ROW_DTYPES = [
    (torch.float64, torch.float64),
    (torch.float32, torch.float32),
    (torch.bfloat16, torch.float32),
    (torch.bfloat16, torch.bfloat16),
]


@pytest.mark.parametrize("sizes", ROW_SIZES, ids=str)
@pytest.mark.parametrize(("dtype", "kind"), ROW_DTYPES)
def test_rows_move_as_on_the_cpu(
    gpu: torch.device, dtype: torch.dtype, kind: torch.dtype, sizes: tuple[int, int, int]
) -> None:
    """The ops of rows by Triton's kernels, bit for bit but for the order of a sum over a row."""
    tokens, choices, width = sizes
    generator = torch.Generator().manual_seed(2)
    x = torch.randn(tokens, width, generator=generator).to(dtype)
    rows = torch.randn(tokens * choices, width, generator=generator).to(dtype)
    weights = torch.randn(tokens, choices, generator=generator).to(kind)
    order = torch.randperm(tokens * choices, generator=generator)

    def move(device: torch.device) -> list[Tensor]:
        on, grad, scale, by = (value.to(device) for value in (rows, x, weights, order))
        results = [
            moe_permute(grad, by, choices),
            moe_permute_backward(on, by, choices),
            moe_unpermute(on, by, scale),
            moe_unpermute_rows(grad, by, scale),
            moe_unpermute_weights(grad, on, by, choices, kind),
        ]
        return [result.cpu() for result in results]

    *moved, products = move(gpu)
    *wanted, wanted_products = move(torch.device("cpu"))
    for found, expected in zip(moved, wanted, strict=True):
        assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
        assert torch.equal(found, expected)
    bound = {torch.float64: 1e-13, torch.float32: 1e-5, torch.bfloat16: 2**-7}[kind]
    largest = max(1.0, float(wanted_products.abs().max())) if tokens else 1.0
    torch.testing.assert_close(products, wanted_products, rtol=bound, atol=bound * largest)
