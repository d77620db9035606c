"""Kernels that call Piper's ops of experts: compiled once for any number of rows, and right."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from piper_runtime.kernels.inductor import compile_kernel, load_kernel
from piper_runtime.kernels.source import KernelSource, read_kernels
from torch import Tensor

CPU = torch.device("cpu")
OPS = ("group", "ungroup", "linear", "linear_input", "linear_weight")
BOUND = "\n".join(f"{name} = torch.ops.piper.moe_{name}.default._op" for name in OPS)
TEXT = f"""\
import torch
nn = torch._C._nn
{BOUND}

def experts(a0: float64[rows, 8], a1: float64[2, 12, 8], a2: float64[2, 8, 6], a3: int64[3, 2]):
    v0 = group(a0, a3)
    v1 = linear(v0, a1, a3)
    v2, v3 = torch.split(v1, 6, 1)
    v4 = nn.silu(v2) * v3; del v2, v3
    v5 = linear(v4, a2, a3)
    v6 = ungroup(v5, a3); del v5
    return v0, v1, v4, v6

def gradients(a0: float64[rows, 8], a1: float64[rows, 6], a2: float64[2, 8, 6], a3: int64[3, 2]):
    v0 = group(a0, a3)
    v1 = linear_weight(v0, a1, a3)
    v2 = linear_input(v0, a2, a3)
    v3 = torch.cat([v2 * a1, v2], 1)
    return v1, v3
"""
COUNTS = {
    "skewed": [[5, 1], [0, 0], [3, 0]],
    "unused": [[4, 0], [2, 0], [3, 0]],
    "none": [[0, 0], [0, 0], [0, 0]],
}


def source_of(name: str) -> KernelSource:
    [found] = read_kernels(TEXT, {name})
    return found


@pytest.mark.parametrize(("name", "widths"), [("experts", (8,)), ("gradients", (8, 6))])
def test_kernels_with_experts_are_compiled(
    name: str, widths: tuple[int, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Inductor calls the ops by name, with what is between them in kernels of its own."""
    torch.manual_seed(0)
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "libraries"))
    source, path = source_of(name), tmp_path / "kernel.py"
    path.write_text(compile_kernel(source, CPU))
    assert "torch.ops.piper.moe_group.default" in path.read_text()
    compiled = load_kernel(source, path, libraries=tmp_path / "libraries", device=CPU)
    eager = source.function(CPU)
    up, down = (torch.randn(shape, dtype=torch.float64) for shape in ((2, 12, 8), (2, 8, 6)))
    for counts in COUNTS.values():
        received = torch.tensor(counts)
        num = int(received.sum())
        given: list[Tensor] = [torch.randn(num, width, dtype=torch.float64) for width in widths]
        given += [up, down, received] if name == "experts" else [down, received]
        torch.testing.assert_close(compiled(*given), eager(*given), rtol=1e-12, atol=1e-12)
