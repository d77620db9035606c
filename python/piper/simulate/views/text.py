"""A timeline as text: a row per rank, time to the right.

rank 0  |0F0|0F1|...|0B0    |0B1    |
rank 1  ....|1F0|1B0    |1F1|1B1    |
        0           6           12
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from piper.simulate.views.timeline import Range, Timeline

__all__ = ["draw_text", "format_bytes", "format_seconds"]

_IDLE = "."


def draw_text(timeline: Timeline, *, width: int = 120) -> str:
    """Draw the cells of each rank's compute stream to scale, in at most `width` columns.

    Each cell starts with `|` and has its name where that fits, else passes and microbatches, else
    passes; a cell of one column is the letter of its pass alone. If all times are whole numbers and there is room, so many columns are a unit of time
    that every name fits.
    """
    cells = [
        [item for item in timeline.ranges if item.rank == rank and item.actions]
        for rank in range(len(timeline.ranks))
    ]
    margin = max(len(name) for name in timeline.ranks) + 2
    columns = _columns([item for row in cells for item in row], timeline.end, width - margin - 1)
    scale = columns / timeline.end if timeline.end else 0.0
    lines = [
        f"{name:<{margin}}{_row(row, scale, columns)}"
        for name, row in zip(timeline.ranks, cells, strict=True)
    ]
    return "\n".join([*lines, " " * margin + _ruler(timeline, columns)])


def _columns(cells: Sequence[Range], end: float, room: int) -> int:
    """How many columns the whole time takes."""
    whole = all(float(time).is_integer() for item in cells for time in (item.start, item.end))
    if cells and whole and end:
        fitting = max(
            math.ceil((len(item.name) + 1) / (item.end - item.start))
            for item in cells
            if item.end > item.start
        )
        if fitting * end <= room:
            return int(fitting * end)
        if end <= room:
            return int(room // end * end)
    return max(1, room)


def _row(cells: Sequence[Range], scale: float, columns: int) -> str:
    row = [_IDLE] * columns
    for item in cells:
        start, end = round(item.start * scale), round(item.end * scale)
        if end == start < columns and row[start] == _IDLE:
            end += 1  # to be seen at all
        if end > start:
            row[start:end] = _block(item, end - start)
    return "".join(row).rstrip(_IDLE) + "|" if cells else ""


def _block(item: Range, size: int) -> str:
    """The cell in so many columns, with the longest of its names that fits."""
    letters = "".join(action.pass_ for action in item.actions)
    if size == 1:
        return letters[0]
    numbered = "".join(f"{action.pass_}{action.microbatch}" for action in item.actions)
    inner = next((text for text in (item.name, numbered, letters) if len(text) < size), "")
    return f"|{inner}".ljust(size)


def _ruler(timeline: Timeline, columns: int) -> str:
    """Times at about every 16th column."""
    ruler = ""
    for column, text in _ticks(timeline, columns):
        if column >= len(ruler):
            ruler = ruler.ljust(column) + text + " "
    return ruler.rstrip()


def _ticks(timeline: Timeline, columns: int) -> Iterator[tuple[int, str]]:
    step = _round_up(timeline.end * 16 / columns)
    count = 0
    while timeline.end and count * step <= timeline.end:
        yield round(count * step * columns / timeline.end), _time(count * step, timeline)
        count += 1


def _round_up(step: float) -> float:
    """The next of 1, 2, 5, 10, 20, ..."""
    if step <= 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(step))
    return next(power * nice for nice in (1, 2, 5, 10) if power * nice >= step * 0.999)


def _time(time: float, timeline: Timeline) -> str:
    return format_seconds(time) if timeline.in_seconds else f"{time:g}"


def format_seconds(time: float) -> str:
    """`1.5ms`: three digits with a unit."""
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if abs(time) >= size * 0.9995:
            return f"{time / size:.3g}{unit}"
    return f"{time * 1e9:.3g}ns" if time else "0"


def format_bytes(number: float | None) -> str:
    """Return ``1.5MiB`` of bytes: at most one decimal, in powers of 1024; ``?`` of None."""
    if number is None:
        return "?"
    value, units = float(number), ["B", "KiB", "MiB", "GiB"]
    while value >= 1024 and len(units) > 1:
        value /= 1024
        units.pop(0)
    return f"{value:.0f}B" if units[0] == "B" else f"{value:.1f}{units[0]}"
