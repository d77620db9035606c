"""When each cell of a table runs, what that leaves idle, and how many chunks are alive meanwhile.

The model: a rank runs its cells in order. F of a stage needs F of the stage before; B and I need
their own F and the B or I of the stage behind; W needs its own I. A whole backward releases its
input gradient at its end, and a pair is one block that releases both results at its end. A message
to another rank takes `latency`, and no rank waits for it that does not need it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from piper.schedules import Action, Pair, Table, members
from piper.schedules.cell import draw_cell
from piper.schedules.dependences import Dependences
from piper.simulate.costs import Costs
from piper.simulate.engine import CycleError, Graph, Timing

__all__ = ["Simulation", "Step", "simulate"]

Row = list[Action | Pair]
"""The cells of a rank that take time."""


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
            for each other in a circle (each with the cell marked); costs of another number of stages;
            a latency below 0 or not finite.
    """
    if not (latency >= 0 and math.isfinite(latency)):
        raise ValueError(f"latency must be finite and at least 0, got {latency}")
    plan = _Plan(table)
    plan.connect(costs, latency)
    timing = plan.run()
    spans = {
        action: (float(timing.start[node]), float(timing.end[node]))
        for action, node in plan.nodes.items()
    }
    rows = plan.rows
    work = tuple(float(sum(costs.of(cell) for cell in row)) for row in rows)
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
    first, last = (nodes[members(cell)[0]] for cell in (row[0], row[-1]))
    return float(timing.end[last] - timing.start[first])


def _peak(row: Row, ends: str) -> int:
    """Most chunks at once, alive from the start of F until the end of a pass in `ends`."""
    live = most = 0
    for cell in row:
        passes = [action.pass_ for action in members(cell)]
        live += passes.count("F")
        most = max(most, live)
        live -= sum(pass_ in ends for pass_ in passes)
    return most


class _Plan:
    """A table as a graph: a node per cell, on the lane of its rank, and a node per message."""

    def __init__(self, table: Table) -> None:
        """Find what each cell waits for."""
        self._dependences = Dependences(table)
        self._dependences.check_inputs()
        self.rows: list[Row] = [[] for _ in table.rows]
        for (row, _), cell in self._cells():
            self.rows[row].append(cell)
        self.nodes: dict[Action, int] = {}
        self._graph = Graph()
        self._names: list[tuple[int | None, str]] = []  # by node: rank, name

    def connect(self, costs: Costs, latency: float) -> None:
        """Add the cells, then what they wait for."""
        for (row, _), cell in self._cells():
            node = self._graph.add(costs.of(cell))
            self._graph.enqueue(node, row)
            self._names.append((row, draw_cell(cell)))
            self.nodes.update(dict.fromkeys(members(cell), node))
        costs.check_stages(1 + max(action.stage for action in self.nodes))
        places = self._dependences.places
        for number, (row, _) in enumerate(places):
            for need, maker in self._dependences.needs(number):
                node = self.nodes[need]
                if places[maker][0] != row and latency:
                    node = self._graph.add(latency, after=[node])
                    self._names.append((None, f"{need} to rank {row}"))
                self._graph.wait(number, on=node)

    def run(self) -> Timing:
        """Time the graph."""
        try:
            return self._graph.run()
        except CycleError:
            self._dependences.order()  # says it in the words of tables
            raise

    def steps(self, timing: Timing) -> Iterator[Step]:
        """The critical path by name, without what takes no time."""
        for node, start, end in timing.critical_path():
            rank, name = self._names[node]
            if end > start:
                yield Step(name, rank, start, end)

    def _cells(self) -> Iterator[tuple[tuple[int, int], Action | Pair]]:
        """Row and step of each cell, and the cell; its number is also that of its node."""
        yield from zip(self._dependences.places, self._dependences.cells, strict=True)
