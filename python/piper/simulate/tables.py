"""When each cell of a table runs, what that leaves idle, and how many chunks are alive meanwhile.

The model: a rank runs its cells in order. F of a stage needs F of the stage before; B and I need
their own F and the B or I of the stage behind; W needs its own I. A whole backward releases its
input gradient at its end, and a pair is one block that releases both results at its end. A message
to another rank takes `latency`, and no rank waits for it that does not need it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from piper.schedules import Action, Pair, Table, check_progress, members
from piper.schedules.cell import draw_cell
from piper.simulate.costs import Costs
from piper.simulate.engine import CycleError, Graph, Timing

__all__ = ["Simulation", "Step", "simulate"]

Row = list[tuple[int, Action | Pair]]
"""The cells of a rank that take time, each with its step."""


@dataclass(frozen=True, slots=True)
class Step:
    """A stretch of a critical path: what ran on which rank, or a message between ranks (None)."""

    name: str
    rank: int | None
    start: float
    end: float


@dataclass(frozen=True)
class Simulation:
    """What a table costs; times are in the unit of the costs, tuples have an entry per rank.

    `busy` is the work of the rank that has most of it. `bubble_makespan` is the makespan less that:
    what a step loses if no step starts before the last one has ended everywhere. `bubble_span` is
    the longest time between the start and the end of one rank, less that: what a step loses if each
    rank starts the next one at once.

    A chunk is alive from the start of its F until the end of its B, or else of its I or of its W.
    """

    table: Table
    spans: Mapping[Action, tuple[float, float]]
    makespan: float
    busy: float
    busy_per_rank: tuple[float, ...]
    bubble_makespan: float
    bubble_span: float
    peak_chunks_until_I: tuple[int, ...]  # noqa: N815 (passes are called so everywhere)
    peak_chunks_until_W: tuple[int, ...]  # noqa: N815
    critical_path: tuple[Step, ...]


def simulate(table: Table, costs: Costs, *, latency: float = 0.0) -> Simulation:
    """Run a table in time; messages between ranks arrive `latency` after what they carry is made.

    Raises:
        ValueError: an action that is there twice, one whose input nobody makes, or cells that wait
            for each other in a circle (each with the cell marked); a cost that does not fit.
    """
    plan = _Plan(table)
    plan.connect(costs, latency)
    timing = plan.run()
    spans = {
        action: (float(timing.start[node]), float(timing.end[node]))
        for action, node in plan.nodes.items()
    }
    rows = plan.rows
    work = tuple(float(sum(costs.of(cell) for _, cell in row)) for row in rows)
    busy = max(work)
    longest = max(_span(timing, plan.nodes, row) for row in rows if row)
    return Simulation(
        table=table,
        spans=MappingProxyType(spans),
        makespan=timing.makespan,
        busy=busy,
        busy_per_rank=work,
        bubble_makespan=timing.makespan - busy,
        bubble_span=longest - busy,
        peak_chunks_until_I=tuple(_peak(row, "BI") for row in rows),
        peak_chunks_until_W=tuple(_peak(row, "BW") for row in rows),
        critical_path=tuple(plan.steps(timing)),
    )


def _span(timing: Timing, nodes: Mapping[Action, int], row: Row) -> float:
    """From the start of a row's first cell to the end of its last."""
    first, last = (nodes[members(cell)[0]] for _, cell in (row[0], row[-1]))
    return float(timing.end[last] - timing.start[first])


def _peak(row: Row, ends: str) -> int:
    """Most chunks at once, alive from the start of F until the end of a pass in `ends`."""
    live = most = 0
    for _, cell in row:
        passes = [action.pass_ for action in members(cell)]
        live += passes.count("F")
        most = max(most, live)
        live -= sum(pass_ in ends for pass_ in passes)
    return most


class _Plan:
    """A table as a graph: a node per cell, on the lane of its rank, and a node per message."""

    def __init__(self, table: Table) -> None:
        """Note where each action is."""
        self.table = table
        self.rows: list[Row] = [
            [(step, cell) for step, cell in enumerate(row) if isinstance(cell, Action | Pair)]
            for row in table.rows
        ]
        self.nodes: dict[Action, int] = {}
        self._graph = Graph()
        self._names: list[tuple[int | None, str]] = []  # by node: rank, name
        self._home: dict[Action, tuple[int, int]] = {}
        for row, cells in enumerate(self.rows):
            for step, cell in cells:
                for action in members(cell):
                    if action in self._home:
                        raise table.error(f"{action} is run twice", row, step)
                    self._home[action] = (row, step)
        self._last = max(action.stage for action in self._home)

    def connect(self, costs: Costs, latency: float) -> None:
        """Add the cells, then what they wait for."""
        if latency < 0:
            raise ValueError(f"latency must be at least 0, got {latency}")
        for row, cells in enumerate(self.rows):
            for _, cell in cells:
                node = self._graph.add(costs.of(cell))
                self._graph.enqueue(node, row)
                self._names.append((row, draw_cell(cell)))
                self.nodes.update(dict.fromkeys(members(cell), node))
        for action in self._home:
            for need in self._needs(action):
                self._link(need, action, latency)

    def run(self) -> Timing:
        """Time the graph."""
        try:
            return self._graph.run()
        except CycleError:
            check_progress(self.table.compute_only())  # says it in the words of tables
            raise

    def steps(self, timing: Timing) -> Iterator[Step]:
        """The critical path by name, without what takes no time."""
        for node, start, end in timing.critical_path():
            rank, name = self._names[node]
            if end > start:
                yield Step(name, rank, start, end)

    def _link(self, need: Action, action: Action, latency: float) -> None:
        """Let an action wait for another, behind a message if that is made on another rank."""
        node, maker = self.nodes[action], self.nodes[need]
        here, there = self._home[action][0], self._home[need][0]
        if here != there and latency:
            maker = self._graph.add(latency, after=[maker])
            self._names.append((None, f"{need} to rank {here}"))
        self._graph.wait(node, on=maker)

    def _needs(self, action: Action) -> Sequence[Action]:
        """What an action waits for, all of which must be in the table."""
        stage, microbatch = action.stage, action.microbatch
        if action.pass_ == "F":
            return [self._there(action, [Action(stage - 1, "F", microbatch)])] if stage else []
        if action.pass_ == "W":
            return [self._there(action, [Action(stage, "I", microbatch)])]
        own = self._there(action, [Action(stage, "F", microbatch)])
        if stage == self._last:
            return [own]
        behind = [Action(stage + 1, "B", microbatch), Action(stage + 1, "I", microbatch)]
        return [own, self._there(action, behind)]

    def _there(self, action: Action, wanted: Sequence[Action]) -> Action:
        """The first of the actions that the table has."""
        for need in wanted:
            if need in self._home:
                return need
        needs = " or ".join(map(str, wanted))
        raise self.table.error(f"{action} waits for {needs}, which never runs", *self._home[action])
