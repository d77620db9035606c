"""Where in the user's program a directive was written."""

from __future__ import annotations

import itertools
import os
import sys
from dataclasses import dataclass
from types import FrameType

from piper.strategy.text import quoted

_PACKAGE = __name__.rpartition(".")[0]


@dataclass(frozen=True, slots=True)
class SourceLocation:
    """A place in a source file; line and column count from 1, 0 where Python does not know.

    `file` is spelled as Python compiled it: for a script, as on its command line.
    """

    file: str
    line: int
    col: int

    @classmethod
    def of_caller(cls) -> SourceLocation:
        """The call being made by the innermost frame outside this package."""
        frame: FrameType | None = sys._getframe(1)
        while frame is not None and _is_inside(frame):
            frame = frame.f_back
        if frame is None:
            return cls("<unknown>", 0, 0)
        line, col = _position(frame)
        return cls(frame.f_code.co_filename, line, col)

    def ir(self) -> str:
        """As MLIR writes it: ``loc("train.py":9:5)``; a file below the working directory by its
        path from there.
        """
        file = self.file.removeprefix(os.path.join(os.getcwd(), ""))
        return f"loc({quoted(file)}:{self.line}:{self.col})"

    def __str__(self) -> str:
        """As compilers print it: file:line:col."""
        return f"{self.file}:{self.line}:{self.col}"


def _position(frame: FrameType) -> tuple[int, int]:
    """Line and column of the call that a frame is making; Python 3.10 has no columns."""
    if sys.version_info < (3, 11):
        return frame.f_lineno, 0
    positions = frame.f_code.co_positions()
    line, _, col, _ = next(itertools.islice(positions, frame.f_lasti // 2, None))
    return line or frame.f_lineno, 0 if col is None else col + 1


def _is_inside(frame: FrameType) -> bool:
    name = str(frame.f_globals.get("__name__"))
    return name == _PACKAGE or name.startswith(f"{_PACKAGE}.")
