"""Training steps in processes of their own, over gloo."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from oracle import Step
from piper_runtime import Program
from torch import Tensor, nn
from torchrun import saved_by_ranks, torchrun

WORKER = Path(__file__).with_name("oracle_worker.py")


def train_processes(
    program: Program, model: nn.Module, batches: Sequence[dict[str, Tensor]], folder: Path
) -> list[dict[str, list[Any]]]:
    """Train from `model`, a process per rank; return what each saw, a list of all steps per name.

    Names are losses, skipped, scales and states, which are whole. `folder` gets a checkpoint.
    """
    program.save(folder / "program")
    states = (*model.named_parameters(), *model.named_buffers())
    weights = {name: value.detach() for name, value in states}
    torch.save({"weights": weights, "batches": batches}, folder / "given.pt")
    count = program.manifest.mesh.world_size
    done = torchrun(WORKER, folder, count=count, timeout=600)
    assert done.returncode == 0, done.stderr[-4000:]
    return saved_by_ranks(folder, done, count=count)


def check_processes(
    program: Program,
    model: nn.Module,
    batches: Sequence[dict[str, Tensor]],
    local: Sequence[Step],
    folder: Path,
) -> None:
    """Train as `train_processes` does: losses and last states are those of `local` within 1e-12."""
    for seen in train_processes(program, model, batches, folder):
        assert seen["losses"] == pytest.approx([step.loss for step in local], abs=1e-12)
        for name, value in local[-1].states.items():
            torch.testing.assert_close(seen["states"][-1][name], value, rtol=0, atol=1e-12)
