"""The heap of a process, which keeps what is freed."""

from __future__ import annotations

import subprocess
import sys

import pytest
from piper_runtime.devices.heap import keep_freed_memory

# How many MiB more are resident when 64 have come and gone, in tensors larger than any before.
TEXT = """
import resource, sys, torch
from pathlib import Path
from piper_runtime.devices.heap import keep_freed_memory

def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize() / 2**20

kept = keep_freed_memory({}) if sys.argv[1] == "keep" else False
before = resident()
blocks = [torch.zeros(2**22) for _ in range(4)]
del blocks
print(kept, resident() - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only glibc has these settings")
@pytest.mark.parametrize(("mode", "least", "most"), [("keep", 48, 80), ("give", -8, 16)])
def test_freed_memory_stays(mode: str, least: float, most: float) -> None:
    ran = subprocess.run(
        [sys.executable, "-c", TEXT, mode], capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stderr
    kept, mebibytes = ran.stdout.split()
    assert kept == str(mode == "keep")
    assert least < float(mebibytes) < most


@pytest.mark.parametrize("name", ["MALLOC_TRIM_THRESHOLD_", "GLIBC_TUNABLES"])
def test_what_the_environment_says_of_the_heap_holds(name: str) -> None:
    assert not keep_freed_memory({name: "1"})
