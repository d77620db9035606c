"""A process that compiles kernels: ``python -m piper_runtime.kernels.worker`` reads one JSON object
per line and answers with one.

    {"device": "cpu", "threads": 2, "name": "mm_1f", "text": "...", "num_results": 1, "settings": {}}
    {"compiled": "..."}       or       {"error": "..."}
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

import torch

from piper_runtime.kernels.inductor import compile_kernel
from piper_runtime.kernels.source import KernelSource

__all__ = ["main"]


def main() -> None:
    """Answer until there are no more questions."""
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # what a compiler prints is no answer
    for line in sys.stdin:
        answers.write(f"{json.dumps(_answer(json.loads(line)))}\n")
        answers.flush()


def _answer(job: dict[str, Any]) -> dict[str, str]:
    source = KernelSource(str(job["name"]), str(job["text"]), int(str(job["num_results"])))
    torch.set_num_threads(int(str(job["threads"])))
    try:
        device = torch.device(str(job["device"]))
        return {"compiled": compile_kernel(source, device, settings=job["settings"])}
    except Exception as error:  # noqa: BLE001 (the other process raises it)
        return {"error": f"{type(error).__name__}: {error}"}


if __name__ == "__main__":
    main()
