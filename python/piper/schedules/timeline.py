"""When each action of a table would run, given costs and messages that take no time."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from piper.schedules.cell import Action, Cell, Pair, Pass, members
from piper.schedules.dependences import Dependences
from piper.schedules.table import Table

__all__ = ["UNIT_COSTS", "timeline", "with_idle"]

UNIT_COSTS: Final[Mapping[Pass, float]] = MappingProxyType({"F": 1, "B": 1, "I": 1, "W": 1})


def timeline(
    table: Table, costs: Mapping[Pass, float] = UNIT_COSTS, *, pair: float | None = None
) -> dict[Action, tuple[float, float]]:
    """Start and end of each action when rows run in order and stages form a chain.

    A cell starts when its row is free and its inputs are there (see `Dependences`). The actions of
    a pair start and end together.

    Args:
        table: a schedule of actions and pairs.
        costs: the time of each pass, in any unit; those that the table has.
        pair: the time of a pair; by default that of its members one after the other.

    Raises:
        ValueError: rows that wait for each other in a circle, which the message shows; an
            action that appears twice, or communication.
    """
    table.check_compute_only()
    dependences = Dependences(table)
    free = [0.0] * len(table.rows)
    ends = [0.0] * len(dependences.cells)
    times: dict[Action, tuple[float, float]] = {}
    for number in dependences.order():
        cell = dependences.cells[number]
        row, _ = dependences.places[number]
        start = max([free[row], *(ends[need] for need in dependences.inputs[number])])
        actions = members(cell)
        together = pair is not None and isinstance(cell, Pair)
        cost = pair if together else sum(costs[action.pass_] for action in actions)
        free[row] = ends[number] = start + (cost or 0)
        times.update(dict.fromkeys(actions, (start, ends[number])))
    return times


def with_idle(table: Table) -> Table:
    """The table aligned by step with its idle cells, when every cell takes one step; to print.

    Raises:
        ValueError: rows that wait for each other in a circle.
    """
    times = timeline(table, pair=1)
    length = int(max(end for _, end in times.values()))
    rows: list[list[Cell]] = [[None] * length for _ in table.rows]
    for row, cells in enumerate(table.rows):
        for cell in cells:
            for action in members(cell)[:1]:
                rows[row][int(times[action][0])] = cell
    return Table(rows)
