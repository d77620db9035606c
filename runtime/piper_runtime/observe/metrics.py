"""``Metrics``: a file with one JSON object per training step.

    {"step": 12, "time": 1795974059.9, "loss": 4.1, "grad_norm": 0.8, "seconds": 0.21, ...}

Every value is a number or a string. A key that is not known is not there:

    step        number of the step, from 1       time        when it ended, Unix seconds
    loss        sum of all losses                loss/NAME   each, if there are several
    grad_norm   before clipping                  seconds     wall time of the step
    skipped     steps skipped so far             loss_scale  that of the step
    tokens      of the whole batch               tps         tokens per second and device
    memory      peak bytes so far                memory_of   the rank that has this peak
    memory_how  "allocated" or "counted"         memory_predicted   of the same rank, in bytes
    resident    peak bytes of the process of rank 0, with Python and torch
    tflops      10^12 model FLOPs per second and device
    mfu, hfu    fraction of the peak: model FLOPs, and all that are computed
    bubble      fraction of the step in which the slowest rank does not compute
    exposed     fraction of the step in which it only communicates
    slowest     the rank that computes the longest
    lag         by how much longer than the median rank, as a fraction
"""

from __future__ import annotations

import json
import math
import time
from pathlib import Path
from typing import TextIO

from piper_runtime.observe.result import StepResult

__all__ = ["Metrics"]


class Metrics:
    """Appends the result of every step to ``path``, in the process of rank 0.

    On every ``every``-th step all ranks are measured and compared: then ``bubble``, ``exposed``,
    ``slowest`` and ``lag`` are known and ``memory`` is that of the rank that has the most. For this
    all ranks meet behind the step. Other steps cost what they cost without metrics, but for the
    line that is written.

    Raises ValueError if ``every`` is below 1, FileNotFoundError for a file in no folder.
    """

    def __init__(self, path: str | Path, *, every: int = 1) -> None:
        """Check the path; the first step opens it."""
        if every < 1:
            raise ValueError(f"metrics expected every of at least 1, got {every}")
        self.path = Path(path)
        self.every = every
        self._file: TextIO | None = None
        if not self.path.parent.is_dir():
            raise FileNotFoundError(f"metrics expected a file in a folder that exists, got {path}")

    def measures(self, step: int) -> bool:
        """Return whether ranks are measured and compared on a step."""
        return step % self.every == 0

    def write(self, result: StepResult) -> None:
        """Append one line and flush it."""
        if self._file is None:
            self._file = self.path.open("a")
        entry = {"step": result.step, "time": time.time(), **result.metrics()}
        self._file.write(json.dumps({key: _value(value) for key, value in entry.items()}) + "\n")
        self._file.flush()

    def close(self) -> None:
        """Close the file; a later step opens it again."""
        if self._file is not None:
            self._file.close()
            self._file = None


def _value(value: float | str) -> float | str:
    """Return a number that JSON does not have as a string: nan, inf or -inf."""
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value
