"""Whether a table is a schedule: every stage runs every microbatch once, at home, in order."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Final

from piper.schedules.cell import Action, Cell, Pass, draw_cell, members
from piper.schedules.homes import Homes
from piper.schedules.table import Table

__all__ = ["unfinished", "validate"]

_BEFORE: Final[Mapping[str, str]] = MappingProxyType({"B": "F", "I": "F", "W": "I"})
_INSTEAD: Final[Mapping[str, str]] = MappingProxyType({"B": "I", "I": "B"})
_NEXT: Final[Mapping[str, str]] = MappingProxyType({"F": "B, or I and W", "FI": "W"})
_COMPLETE = ("FB", "FIW")


def validate(table: Table, homes: Homes, microbatches: int) -> None:
    """Check that each stage runs each microbatch once, on its home: F, then B or else I and W.

    Both forms of the backward may occur in a table. The F of a pair does not count as before its
    other member. Rows are checked one by one: whether they wait for each other in a circle is found
    by `check_progress` and `timeline`.

    Args:
        table: actions, pairs and idle cells; a row per rank.
        homes: where each stage runs.
        microbatches: how many there are.

    Raises:
        ValueError: names the rank, step and action, and marks the cell in the table.
    """
    if homes.microbatches not in (None, microbatches):
        raise ValueError(f"homes must be for {microbatches} microbatches, got {homes.microbatches}")
    table.check_compute_only()
    _check_ranks(table, homes.ranks)
    passes: dict[int, str] = {}
    for row, step, cell in _cells(table):
        for action in members(cell):
            fault = _misplaced(action, row, homes, microbatches) or _out_of_order(
                action, passes.get(_work(action, microbatches), "")
            )
            if fault is not None:
                raise table.error(fault, row, step)
        for action in members(cell):
            work = _work(action, microbatches)
            passes[work] = passes.get(work, "") + action.pass_
    for stage in range(homes.stages):
        for microbatch in range(microbatches):
            ran = passes.get(stage * microbatches + microbatch, "")
            if ran not in _COMPLETE:
                raise _missing(table, homes, stage, microbatch, ran)


def unfinished(table: Table) -> dict[str, list[Action]]:
    """What a table lacks for whole microbatches in all stages, those of only some passes included.

    Args:
        table: each action once; communication has no part in it.

    Returns:
        By what is missing: the actions that are not there, as "these", and those that lack
        "B, or I and W" or "W" after them. Empty for a table that trains.
    """
    ran: dict[tuple[int, int], str] = {}
    for _, _, action in table.actions():
        key = action.microbatch, action.stage
        ran[key] = ran.get(key, "") + action.pass_
    stages = 1 + max(stage for _, stage in ran)
    missing: dict[str, list[Action]] = {}
    for microbatch in sorted({microbatch for microbatch, _ in ran}):
        for stage in range(stages):
            passes = ran.get((microbatch, stage), "")
            if not passes:
                missing.setdefault("these", []).append(Action(stage, "F", microbatch))
            elif passes in _NEXT:
                last: Pass = "I" if "I" in passes else "F"
                missing.setdefault(_NEXT[passes], []).append(Action(stage, last, microbatch))
    return missing


def _cells(table: Table) -> Iterator[tuple[int, int, Cell]]:
    for row, cells in enumerate(table.rows):
        for step, cell in enumerate(cells):
            yield row, step, cell


def _work(action: Action, microbatches: int) -> int:
    """A number for a stage's share in a microbatch."""
    return action.stage * microbatches + action.microbatch


def _check_ranks(table: Table, ranks: int) -> None:
    if len(table.rows) > ranks:
        cell = draw_cell(next(iter(table.rows[ranks]), None))
        raise table.error(f"{cell} expected on a rank below {ranks}", ranks, 0)
    if len(table.rows) < ranks:
        raise ValueError(
            f"schedule table: expected a row for each of {ranks} ranks, got {len(table.rows)}\n"
            f"{table.format()}"
        )


def _misplaced(action: Action, row: int, homes: Homes, microbatches: int) -> str | None:
    """What is wrong with an action by itself."""
    if action.stage >= homes.stages:
        return f"{action} expected a stage below {homes.stages}"
    if action.microbatch >= microbatches:
        return f"{action} expected a microbatch below {microbatches}"
    home = homes.of(action.stage, action.microbatch)
    if home != row:
        every = "" if homes.microbatches is None else f" for microbatch {action.microbatch}"
        return f"{action} expected on rank {home}, which holds stage {action.stage}{every}"
    return None


def _out_of_order(action: Action, ran: str) -> str | None:
    """What is wrong with an action after the passes that ran of the same stage and microbatch."""
    if action.pass_ in ran:
        return f"{action} is run twice"
    before = _BEFORE.get(action.pass_)
    if before is not None and before not in ran:
        return f"{action} expected {_sibling(action, before)} before it"
    instead = _INSTEAD.get(action.pass_)
    if instead is not None and instead in ran:
        twin = _sibling(action, instead)
        return f"{action} repeats {twin}: a backward is either B, or I and W"
    return None


def _sibling(action: Action, pass_: str) -> str:
    return f"{action.stage}{pass_}{action.microbatch}"


def _missing(table: Table, homes: Homes, stage: int, microbatch: int, ran: str) -> ValueError:
    """An error about what does not follow on the passes that ran; they are in order."""
    if not ran:
        row = homes.of(stage, microbatch)
        action = Action(stage, "F", microbatch)
        return table.error(f"{action} is missing", row, len(table.rows[row]))
    last: Sequence[Pass] = [pass_ for pass_ in ("F", "I") if pass_ in ran]
    action = Action(stage, last[-1], microbatch)
    row, step = next((row, step) for row, step, other in table.actions() if other == action)
    return table.error(
        f"{action} expected {_NEXT[ran]} of microbatch {microbatch} after it", row, step
    )
