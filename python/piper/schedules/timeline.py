"""When each action of a table would run, given costs and messages that take no time."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from collections.abc import Set as AbstractSet
from types import MappingProxyType
from typing import Final

from piper.schedules.table import Action, Cell, Pass, Table

UNIT_COSTS: Final[Mapping[Pass, float]] = MappingProxyType({"F": 1, "B": 1, "I": 1, "W": 1})


def timeline(
    table: Table, costs: Mapping[Pass, float] = UNIT_COSTS
) -> dict[Action, tuple[float, float]]:
    """Start and end of each action when rows run in order and stages form a chain.

    An action starts when its row is free and its inputs are there: F needs the F of the stage
    before, B and I the stage's own F and the B or I of the stage after, W its own I.

    Raises:
        ValueError: rows that wait for each other in a circle, with the first that waits marked.
    """
    actions = {action for _, _, action in table.actions()}
    inputs = {action: actions.intersection(_inputs(action)) for action in actions}
    queues = [deque(cell for cell in row if cell is not None) for row in table.rows]
    free = [0.0] * len(queues)
    done: dict[Action, tuple[float, float]] = {}
    while (row := _ready_row(queues, inputs, done)) is not None:
        action = queues[row].popleft()
        start = max([free[row], *(done[need][1] for need in inputs[action])])
        free[row] = start + costs[action.pass_]
        done[action] = (start, free[row])
    for row, step, action in table.actions():
        if action not in done:
            late = ", ".join(sorted(str(need) for need in inputs[action] - done.keys()))
            raise table.error(f"{action} waits for {late}, which never runs", row, step)
    return done


def _ready_row(
    queues: list[deque[Action]],
    inputs: Mapping[Action, AbstractSet[Action]],
    done: Mapping[Action, object],
) -> int | None:
    """The first row whose next action has all its inputs."""
    rows = enumerate(queues)
    return next((row for row, queue in rows if queue and inputs[queue[0]] <= done.keys()), None)


def _inputs(action: Action) -> Iterator[Action]:
    """What an action may have to wait for; of B and I at the next stage, one is in the table."""
    stage, microbatch = action.stage, action.microbatch
    match action.pass_:
        case "F":
            yield Action(stage - 1, "F", microbatch)
        case "W":
            yield Action(stage, "I", microbatch)
        case "B" | "I":
            yield Action(stage, "F", microbatch)
            yield Action(stage + 1, "B", microbatch)
            yield Action(stage + 1, "I", microbatch)


def with_idle(table: Table) -> Table:
    """The table aligned by step with its idle cells, when every action takes one step; to print.

    Raises:
        ValueError: rows that wait for each other in a circle.
    """
    times = timeline(table)
    length = int(max(end for _, end in times.values()))
    rows: list[list[Cell]] = [[None] * length for _ in table.rows]
    for row, _, action in table.actions():
        rows[row][int(times[action][0])] = action
    return Table(rows)
