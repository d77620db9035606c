"""Runs a script of the tests in processes, as users launch theirs."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

OPTIONS = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node")


def torchrun(
    script: Path,
    *arguments: object,
    count: int,
    timeout: float = 240,
    variables: Mapping[str, str] | None = None,
) -> subprocess.CompletedProcess[str]:
    """Run `count` processes of `script`, of a thread each; return how they ended.

    Raises subprocess.TimeoutExpired after `timeout` seconds.
    """
    return subprocess.run(
        command(script, *arguments, count=count),
        env=os.environ | {"OMP_NUM_THREADS": "1"} | dict(variables or {}),
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )


def command(script: Path, *arguments: object, count: int) -> list[str]:
    """Return what launches `count` processes of `script`."""
    return [sys.executable, *OPTIONS, str(count), str(script), *map(str, arguments)]


def saved_by_ranks(
    folder: Path, done: subprocess.CompletedProcess[str], *, count: int
) -> list[Any]:
    """Return what each process saved as ``rankN.pt``; what they said if one did not."""
    files = [folder / f"rank{rank}.pt" for rank in range(count)]
    assert all(file.exists() for file in files), done.stderr[-4000:]
    return [torch.load(file) for file in files]
