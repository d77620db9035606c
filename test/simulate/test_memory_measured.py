"""The predicted peak of memory is what torch's profiler sees on a rank under torchrun."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
WORKER = HERE / "memory_worker.py"
EXAMPLES = HERE.parents[1] / "examples"


@pytest.mark.slow
@pytest.mark.parametrize("schedule", ["1F1B", "ZBVZeroBubble", "DualPipeV"])
def test_peak_is_as_predicted(schedule: str, tmp_path: Path) -> None:
    """Within 5 %: what is kept between steps, the most that a step adds to it, and what the
    runtime counts of both.
    """
    output = tmp_path / "bytes.json"
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    done = subprocess.run(
        [sys.executable, *launcher, str(WORKER), schedule, str(output)],
        env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(EXAMPLES)},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr[-4000:]
    for what, (measured, predicted) in json.loads(output.read_text()).items():
        assert predicted == pytest.approx(measured, rel=0.05), what
