"""``Lines``: which line of a program makes a call.

A frame looks its line up from the start of its function. A rank program is one long function: for
each of its n lines that would be a search of n. Here a function's lines are listed once.
"""

from __future__ import annotations

from bisect import bisect_right
from types import CodeType, FrameType

__all__ = ["Lines"]


class Lines:
    """The lines of the functions that were asked for; ``at`` takes no longer in a longer one."""

    __slots__ = ("_tables",)

    def __init__(self) -> None:
        """Know no function yet."""
        self._tables: dict[int, _Table] = {}

    def at(self, frame: FrameType) -> int:
        """Return the line that a frame is at, as its ``f_lineno``."""
        code = frame.f_code
        table = self._tables.get(id(code))
        if table is None:
            table = self._tables[id(code)] = _Table(code)
        return table.lines[bisect_right(table.starts, frame.f_lasti) - 1]


class _Table:
    """Where in a function's code its lines start. It keeps the code: an id is used again."""

    __slots__ = ("code", "lines", "starts")

    def __init__(self, code: CodeType) -> None:
        ranges = [(start, line or 0) for start, _, line in code.co_lines()]
        self.code = code
        self.starts = [start for start, _ in ranges]
        self.lines = [line for _, line in ranges]
