"""Kernels of rows whose number depends on data: their types, and one compiled for any number."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from piper_runtime.kernels.inductor import compile_kernel, load_kernel
from piper_runtime.kernels.source import KernelSource, empty_arguments, read_kernels, rows_argument
from torch import Tensor

CPU = torch.device("cpu")
TEXT = """\
import torch
nn = torch._C._nn

def experts(a0: float32[4, 8], a1: float32[rows, 8], a2: float32[2, rows]):
    v0 = nn.silu(a1) * 2
    v1 = torch.mm(v0, a0.t())
    v2 = v0.sum(0)
    v3 = a2 + 1
    return v1, v2, v3

def whole(a0: float32[4, 8]):
    v0 = torch.neg(a0)
    return v0
"""


def kernel(name: str) -> KernelSource:
    [found] = read_kernels(TEXT, {name})
    return found


def test_the_first_argument_of_rows_says_how_many() -> None:
    assert rows_argument(kernel("experts").function(CPU)) == (1, 0)
    assert rows_argument(kernel("whole").function(CPU)) is None


def test_arguments_have_as_many_rows_as_are_asked_for() -> None:
    arguments = empty_arguments(kernel("experts").function(CPU), CPU, rows=5)
    assert [tuple(argument.shape) for argument in arguments] == [(4, 8), (5, 8), (2, 5)]


def test_one_compiled_kernel_takes_any_number(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With fewer than two rows it runs op by op: to the bit what the text says."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "libraries"))
    source, path = kernel("experts"), tmp_path / "experts.py"
    path.write_text(compile_kernel(source, CPU))
    compiled = load_kernel(source, path, libraries=tmp_path / "libraries", device=CPU)
    eager = source.function(CPU)
    for rows in (7, 2, 1, 0, 300):
        given: list[Tensor] = [torch.randn(4, 8), torch.randn(rows, 8), torch.randn(2, rows)]
        for got, wanted in zip(compiled(*given), eager(*given), strict=True):
            assert got.shape == wanted.shape
            assert torch.allclose(got, wanted, atol=1e-5)
            assert rows > 1 or torch.equal(got, wanted)
