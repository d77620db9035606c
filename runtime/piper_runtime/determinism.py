"""Deterministic mode: during a step, torch's ops give the same bits in every run or raise an error.

What torch cannot switch by itself is checked before anything runs: the workspace of cuBLAS, and how
NCCL adds.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from piper_runtime.transports.base import Transport

__all__ = ["check_agreement", "check_environment", "deterministic"]

WORKSPACE = "CUBLAS_WORKSPACE_CONFIG"
WORKSPACES = (":4096:8", ":16:8")
# NCCL chooses by size and topology unless it is told; other algorithms add in the switch.
NCCL_CHOICES = {"NCCL_ALGO": ("Ring", "Tree"), "NCCL_PROTO": ("Simple", "LL", "LL128")}


@contextmanager
def deterministic(enabled: bool) -> Iterator[None]:
    """Let torch use deterministic algorithms only, in all threads, while the block runs.

    What was set before is restored. An op that has none then raises a RuntimeError that names it.
    cuDNN does not choose algorithms by trying them. Without ``enabled``, does nothing.
    """
    if not enabled:
        yield
        return
    from torch._inductor import config as inductor  # which torch sets, too

    before = torch.are_deterministic_algorithms_enabled()
    warned_only = torch.is_deterministic_algorithms_warn_only_enabled()
    tried, compiled = torch.backends.cudnn.benchmark, inductor.deterministic
    torch.use_deterministic_algorithms(True)
    torch.backends.cudnn.benchmark = False
    try:
        yield
    finally:
        torch.backends.cudnn.benchmark = tried
        torch.use_deterministic_algorithms(before, warn_only=warned_only)
        inductor.deterministic = compiled


def check_environment(transport: Transport) -> None:
    """Raise ValueError if a variable leaves it to a library of CUDA how to add."""
    choices: dict[str, tuple[str, ...]] = {}
    if transport.device.type == "cuda":
        choices[WORKSPACE] = WORKSPACES
    if transport.name == "nccl":
        choices |= NCCL_CHOICES
    for variable, allowed in choices.items():
        got = os.environ.get(variable)
        if got is None or got.lower() not in map(str.lower, allowed):
            raise ValueError(
                f"deterministic mode on {transport.name} expected {variable} to be one of "
                f"{', '.join(allowed)}, set before the process starts, got {got or 'nothing'}"
            )


def check_agreement(transport: Transport, *, enabled: bool) -> None:
    """Raise ValueError if only some ranks are deterministic: their replicas would differ."""
    enabled_at = transport.gather(enabled)
    if len(set(enabled_at)) > 1:
        ranks = [rank for rank, theirs in enumerate(enabled_at) if theirs]
        raise ValueError(f"deterministic expected on all ranks or none, got it on ranks {ranks}")
