"""Taking the backwards of pairs in halves."""

from __future__ import annotations

from piper.schedules.cell import Action, Cell, Pair
from piper.schedules.table import Table

__all__ = ["halve_pairs"]


def halve_pairs(table: Table) -> Table:
    """The table with the backward of every pair in halves: I in the pair, W right behind it.

    `0F1&3B0` becomes `0F1&3I0 3W0`. All else stays.
    """
    return Table([half for cell in row for half in _halves(cell)] for row in table.rows)


def _halves(cell: Cell) -> tuple[Cell, ...]:
    if not isinstance(cell, Pair) or cell.backward.pass_ != "B":
        return (cell,)
    stage, microbatch = cell.backward.stage, cell.backward.microbatch
    return (
        Pair(cell.forward, Action(stage, "I", microbatch)),
        Action(stage, "W", microbatch),
    )
