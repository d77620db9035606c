"""What a schedule costs: measures on the timeline that only tests need."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from piper.schedules import Action, Cell, Table, members, timeline


@dataclass(frozen=True)
class Measures:
    """Times in the unit of the costs, peaks in chunks, per row."""

    makespan: float
    busy: float
    bubble_makespan: float
    bubble_span: float
    peak_chunks_until_I: tuple[int, ...]  # noqa: N815 (as the golden file spells it)
    peak_chunks_until_W: tuple[int, ...]  # noqa: N815


def measure(table: Table, f: float, i: float, w: float) -> Measures:
    """Run a table without idle cells; a pair takes as long as its members one by one."""
    times = timeline(table, {"F": f, "B": i + w, "I": i, "W": w})
    busy = max(sum(end - start for start, end in _spans(row, times)) for row in table.rows)
    makespan = max(end for _, end in times.values())
    span = max(_spans(row, times)[-1][1] - _spans(row, times)[0][0] for row in table.rows)
    return Measures(
        makespan,
        busy,
        makespan - busy,
        span - busy,
        tuple(peak(row, "I") for row in table.rows),
        tuple(peak(row, "W") for row in table.rows),
    )


def _spans(
    row: tuple[Cell, ...], times: dict[Action, tuple[float, float]]
) -> list[tuple[float, float]]:
    return [times[members(cell)[0]] for cell in row]


def peak(row: tuple[Cell, ...], until: Literal["I", "W"]) -> int:
    """Most chunks whose forward has started and whose backward has not come to its end or half."""
    live = most = 0
    for cell in row:
        live += sum(action.pass_ == "F" for action in members(cell))
        most = max(most, live)
        live -= sum(action.pass_ in ("B", until) for action in members(cell))
    return most
