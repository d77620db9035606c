"""Processes of torchrun over gloo report what one process that stands for all ranks reports."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from torchrun import torchrun

EXAMPLES = Path(__file__).parents[2] / "examples"
STEPS = 3
SIZES = {"steps": STEPS, "width": 16, "context": 8, "batch": 16, "microbatches": 4}
OPTIONS = [f"--{name}={value}" for name, value in SIZES.items()]
NUMBER = r"(\d+\.\d+)"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("schedule", "zero"), [("1F1B", 0), ("DualPipe", 1), ("DualPipeV", 2), ("ZBVZeroBubble", 3)]
)
def test_gloo_prints_the_losses_of_local(schedule: str, zero: int) -> None:
    """Three steps at pp 2 x dp 2: the same losses to 1e-6, norms and validation loss, and a
    closing fp64 step that passes the script's own check against plain PyTorch.
    """
    options = ["--mesh=pp=2,dp=2", "--layers=3", "--heads=2"]
    _check("train_lm.py", [*options, "--schedule", schedule, "--zero", str(zero)])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mesh", "schedule", "zero"),
    [("pp=2,ep=2", "DualPipeV", 2), ("pp=1,edp=2,ep=2", "1F1B", 3), ("pp=2,ep=2", "1F1B", 1)],
)
def test_gloo_exchanges_rows_as_local_does(mesh: str, schedule: str, zero: int) -> None:
    """The same for an unmodified Qwen3-MoE whose experts ranks share out."""
    _check("train_moe.py", ["--mesh", mesh, "--schedule", schedule, "--zero", str(zero)])


def _check(script: str, options: list[str]) -> None:
    options = [*OPTIONS, *options]
    gloo = _losses(torchrun(EXAMPLES / script, *options, "--transport=gloo", count=4, timeout=600))
    alone = [sys.executable, str(EXAMPLES / script), *options, "--transport=local", "--no-check"]
    local = _losses(subprocess.run(alone, capture_output=True, text=True, timeout=600, check=False))
    assert len(local) == 2 * STEPS + 1
    assert gloo == pytest.approx(local, abs=1e-6)


def _losses(done: subprocess.CompletedProcess[str]) -> list[float]:
    """Return the loss and gradient norm of each printed step, then the validation loss."""
    assert done.returncode == 0, done.stdout + done.stderr[-4000:]
    steps = re.findall(rf"step: \d+ loss: {NUMBER} grad_norm: {NUMBER}", done.stdout)
    validation = re.findall(rf"validation loss: {NUMBER}", done.stdout)
    return [float(number) for found in (*steps, validation) for number in found]
