"""Phases: what takes a while says so on stderr, in the process of rank 0.

    piper: capture 4.1s
    piper: kernels 3 of 12 ...

On a terminal a phase shows while it runs; elsewhere nothing is printed. The environment variable
``PIPER_PROGRESS`` decides otherwise: with 0 nothing is ever said, with 1 each phase prints a line
when it ends, on a terminal or not.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TextIO

__all__ = ["VARIABLE", "phase", "tell"]

VARIABLE = "PIPER_PROGRESS"
ERASE = "\r\x1b[K"


@contextmanager
def phase(name: str, *, total: int | None = None) -> Iterator[Callable[[], None]]:
    """Say how long the block takes; call what it gives once per part, of ``total`` parts.

    Raises ValueError if ``PIPER_PROGRESS`` is neither 0, 1 nor empty.
    """
    choice = _choice()
    quiet = choice == "0" or os.environ.get("RANK", "0") != "0"
    live = not quiet and sys.stderr.isatty()
    line = _Line(name, total, sys.stderr if live or (choice and not quiet) else None, live)
    line.show()
    try:
        yield line.advance
    except BaseException:
        line.end("failed after ")
        raise
    line.end("")


def tell(line: str) -> None:
    """Print a line that matters on a terminal and elsewhere, unless ``PIPER_PROGRESS`` is 0."""
    if _choice() != "0":
        print(f"piper: {line}", file=sys.stderr)


def _choice() -> str:
    choice = os.environ.get(VARIABLE, "")
    if choice not in ("", "0", "1"):
        raise ValueError(f"{VARIABLE} expected 0 or 1, got {choice!r}")
    return choice


class _Line:
    """What is printed of one phase."""

    def __init__(self, name: str, total: int | None, stream: TextIO | None, live: bool) -> None:
        self._name, self._total, self._stream, self._live = name, total, stream, live
        self._done = 0
        self._start = time.perf_counter()

    def advance(self) -> None:
        self._done += 1
        self.show()

    def show(self) -> None:
        """Write over what was shown before, where that is possible."""
        if self._stream is not None and self._live:
            self._stream.write(f"{ERASE}{self._text()} ...")
            self._stream.flush()

    def end(self, how: str) -> None:
        if self._stream is not None:
            erase = ERASE if self._live else ""
            seconds = time.perf_counter() - self._start
            self._stream.write(f"{erase}{self._text()} {how}{seconds:.1f}s\n")
            self._stream.flush()

    def _text(self) -> str:
        parts = "" if self._total is None else f" {self._done} of {self._total}"
        return f"piper: {self._name}{parts}"
