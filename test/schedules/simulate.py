"""What a schedule costs: measures on the timeline that only tests need."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from piper.schedules import Action, Pass, Table, timeline


@dataclass(frozen=True)
class Measures:
    """Times in the unit of the costs, `peaks` in microbatches of one stage, per row."""

    makespan: float
    busy: float
    bubble_makespan: float
    bubble_span: float
    peaks: tuple[int, ...]


def measure(table: Table, costs: Mapping[Pass, float]) -> Measures:
    """Run a table whose backwards are whole; an activation lives until its B ends."""
    times = timeline(table, costs)
    rows = [[action for action in row if action] for row in table.rows]
    busy = max(sum(costs[action.pass_] for action in row) for row in rows)
    makespan = max(end for _, end in times.values())
    span = max(times[row[-1]][1] - times[row[0]][0] for row in rows)
    return Measures(makespan, busy, makespan - busy, span - busy, tuple(map(peak, rows)))


def peak(row: list[Action]) -> int:
    """Most microbatches whose forward has started and whose backward has not ended."""
    live = most = 0
    for action in row:
        live += action.pass_ == "F"
        most = max(most, live)
        live -= action.pass_ == "B"
    return most
