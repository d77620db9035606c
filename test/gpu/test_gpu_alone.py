"""The route of a machine with a GPU and without the compiler: programs out of a folder."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from gpu_programs import FOLDER

HERE = Path(__file__).parent
BLOCKED = (
    "import sys; sys.modules['piper'] = None; import pytest; sys.exit(pytest.main(sys.argv[1:]))"
)
TESTS = {  # what must run on a CPU, too, and not be skipped
    "test_gpu_speed.py": "test_step_times_are_near[cpu-eager]",
    "test_gpu_kernels.py": "test_a_backend_trains_as_plain_torch_does[cpu-eager]",
}


@pytest.mark.slow
def test_programs_of_a_folder_need_no_compiler(tmp_path: Path) -> None:
    """They are written, and the tests that use them pass where Piper cannot be imported."""
    subprocess.run([sys.executable, HERE / "gpu_programs.py", tmp_path], check=True)
    done = subprocess.run(
        [sys.executable, "-c", BLOCKED, "-v", *(str(HERE / name) for name in TESTS)],
        cwd=HERE.parents[1],
        env=os.environ | {FOLDER: str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    for name, test in TESTS.items():
        assert f"{name}::{test} PASSED" in done.stdout
