"""Whether a table is a schedule: every stage runs every microbatch once, in a possible order."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Final

from piper.schedules.table import Action, Pass, Table

_BEFORE: Final[Mapping[Pass, Pass]] = MappingProxyType({"B": "F", "I": "F", "W": "I"})
_INSTEAD: Final[Mapping[Pass, Pass]] = MappingProxyType({"B": "I", "I": "B"})


def validate(
    table: Table, stages: int, microbatches: int, *, coordinates: Sequence[int] | None = None
) -> None:
    """Check that each stage runs each microbatch once: F, then B or else I and W, on its own row.

    `coordinates[stage]` is the row of a stage; without it stage i is on row i. Rows are checked one
    by one: whether they wait for each other in a circle is found by `timeline`.

    Raises:
        ValueError: names the row, step and action, and marks the cell in the table.
    """
    home = range(stages) if coordinates is None else coordinates
    num_rows = max(home) + 1
    if len(table.rows) != num_rows:
        raise ValueError(
            f"schedule table: expected {num_rows} rows, got {len(table.rows)}\n{table.format()}"
        )
    seen: dict[Action, None] = {}
    for row, step, action in table.actions():
        fault = _misplaced(action, row, home, microbatches) or _out_of_order(action, seen)
        if fault is not None:
            raise table.error(fault, row, step)
        seen[action] = None
    _check_complete(table, seen, stages, microbatches)


def _misplaced(action: Action, row: int, home: Sequence[int], microbatches: int) -> str | None:
    """What is wrong with an action by itself."""
    if action.stage >= len(home):
        return f"{action} expected a stage below {len(home)}"
    if action.microbatch >= microbatches:
        return f"{action} expected a microbatch below {microbatches}"
    if home[action.stage] != row:
        return f"{action} expected on rank {home[action.stage]}, which holds stage {action.stage}"
    return None


def _out_of_order(action: Action, seen: Collection[Action]) -> str | None:
    """What is wrong with an action after those that its row has run."""
    if action in seen:
        return f"{action} is run twice"
    before = _BEFORE.get(action.pass_)
    if before is not None and (needed := replace(action, pass_=before)) not in seen:
        return f"{action} expected {needed} before it"
    instead = _INSTEAD.get(action.pass_)
    if instead is not None and (twin := replace(action, pass_=instead)) in seen:
        return f"{action} repeats {twin}: a backward is either B, or I and W"
    return None


def _check_complete(table: Table, seen: Collection[Action], stages: int, microbatches: int) -> None:
    """Check that no forward or backward is left out, given that those present are in order."""
    for stage, microbatch in itertools.product(range(stages), range(microbatches)):
        halved = Action(stage, "I", microbatch) in seen
        passes: tuple[Pass, ...] = ("F", "I", "W") if halved else ("F", "B")
        for action in (Action(stage, pass_, microbatch) for pass_ in passes):
            if action not in seen:
                raise ValueError(f"schedule table: {action} is missing\n{table.format()}")
