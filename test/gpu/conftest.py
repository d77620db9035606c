"""Every test runs on a CPU, small, and on a GPU where there is one."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import HashStore

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT / "examples"), str(ROOT / "benchmarks")]
torch.set_num_threads(1)


@pytest.fixture(params=["cpu", "cuda"])
def device(request: pytest.FixtureRequest) -> torch.device:
    """The device of a test."""
    if request.param == "cuda":
        require_gpu()
    return torch.device(request.param)


@pytest.fixture
def gpu() -> torch.device:
    """The GPU, for what a CPU cannot do."""
    require_gpu()
    return torch.device("cuda", torch.cuda.current_device())


def require_gpu() -> None:
    """Skip a test without one."""
    if not torch.cuda.is_available():
        pytest.skip(f"torch {torch.__version__} finds no CUDA device")


@pytest.fixture
def world() -> Iterator[None]:
    """A world of one process."""
    dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    try:
        yield
    finally:
        dist.destroy_process_group()
