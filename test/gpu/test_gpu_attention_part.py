"""Attention of a part of a sequence on a device: near fp64, and the host waits for nothing."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest
import torch
from piper_runtime.inputs.batch import part_of_sequence
from piper_runtime.ops import attention_part, attention_part_backward
from torch import Tensor

# Relative to the largest element: bf16 rounds operands of the second product and what each call
# returns, fp32 may be computed of several tf32.
BOUNDS = {torch.bfloat16: 2**-6, torch.float32: 1e-4, torch.float64: 1e-12}
PARTS, LENGTH, SIZE, SCALE = 4, 512, 32, 0.2


def parts_of(x: Tensor) -> list[Tensor]:
    return [part_of_sequence(x, 2, index, PARTS, name="x") for index in range(PARTS)]


@contextlib.contextmanager
def never_waiting(device: torch.device) -> Iterator[None]:
    """Make it an error that the host waits for a GPU."""
    if device.type == "cpu":
        yield
        return
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


def near(found: Tensor, expected: Tensor, bound: float) -> bool:
    gap = float((found.cpu().double() - expected).abs().max())
    return gap <= bound * max(1.0, float(expected.abs().max()))


@pytest.mark.parametrize("dtype", BOUNDS)
def test_parts_are_near_fp64(device: torch.device, dtype: torch.dtype) -> None:
    """Outputs and gradients of every part; terms of keys and values add up."""
    generator = torch.Generator().manual_seed(0)
    shapes = ((1, 4, LENGTH, SIZE), (1, 2, LENGTH, SIZE), (1, 2, LENGTH, SIZE))
    given = [torch.randn(shape, generator=generator).to(dtype) for shape in shapes]
    q, k, v = (x.double().requires_grad_() for x in given)
    out, _ = torch.ops.piper.attention(q, k, v, None, True, SCALE, 0)
    grad = torch.randn(out.shape, generator=generator).to(dtype)
    wanted = torch.autograd.grad(out, (q, k, v), grad.double())
    keys, values = (torch.cat(parts_of(x), 2).to(device) for x in given[1:])
    sums = [torch.zeros(keys.shape, dtype=torch.float64) for _ in range(2)]
    for index in range(PARTS):
        own_q, own_grad = (parts_of(x)[index].to(device) for x in (given[0], grad))
        options = (torch.tensor([index], device=device), True, SCALE, PARTS)
        with torch.no_grad(), never_waiting(device):
            found, lse = attention_part(own_q, keys, values, *options)
            grads = attention_part_backward(own_grad, own_q, keys, values, found, lse, *options)
        assert near(found, parts_of(out.detach())[index], BOUNDS[dtype])
        assert near(grads[0], parts_of(wanted[0])[index], BOUNDS[dtype])
        for total, term in zip(sums, grads[1:], strict=True):
            total += term.cpu().double()
    for total, value in zip(sums, wanted[1:], strict=True):
        assert near(total, torch.cat(parts_of(value), 2), PARTS * BOUNDS[dtype])
