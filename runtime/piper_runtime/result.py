"""``StepResult``: what one step reports, and its progress line."""

from __future__ import annotations

import resource
import sys
from collections.abc import Mapping
from dataclasses import dataclass

import torch

__all__ = ["StepResult", "peak_memory"]

GIB = 1024**3


@dataclass(frozen=True, slots=True)
class StepResult:
    """The report of one training step; printing it gives the progress line.

    ``loss`` is the sum of ``losses``, over all microbatches and ranks and the same on every rank;
    ``grad_norm`` is the norm before clipping, or None if the program computes none; ``seconds`` is
    wall time; ``memory`` is peak bytes, of ``memory_of``; ``tokens`` counts the whole batch of all
    ranks (see ``Trainer``), ``devices`` the ranks of the mesh.
    """

    step: int
    loss: float
    losses: Mapping[str, float]
    grad_norm: float | None
    seconds: float
    memory: int
    memory_of: str
    tokens: int
    devices: int

    @property
    def tokens_per_second(self) -> float:
        """Tokens per second and device."""
        return self.tokens / self.seconds / self.devices

    def __str__(self) -> str:
        """Return ``step: 1 loss: 8.041234 grad_norm: 1.33 memory: 1.02GiB (rank 0) tps: 27,483``."""
        norm = "" if self.grad_norm is None else f" grad_norm: {self.grad_norm:.4g}"
        memory = f"memory: {self.memory / GIB:.2f}GiB ({self.memory_of})"
        tps = f"tps: {self.tokens_per_second:,.0f}"
        return f"step: {self.step} loss: {self.loss:.6f}{norm} {memory} {tps}"


def peak_memory(device: torch.device) -> int:
    """Return peak bytes so far: allocated on a GPU, else resident in this process."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
