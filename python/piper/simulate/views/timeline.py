"""What all pictures are drawn from: ranges on lanes of ranks, flows between them, counters."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from piper_runtime.instruction import COMPUTE

from piper.schedules import Action, Pass, members
from piper.schedules.cell import draw_cell
from piper.simulate.tables import Simulation

__all__ = ["Counter", "Flow", "Range", "Timeline", "chunk_places", "table_timeline"]


@dataclass(frozen=True, slots=True)
class Range:
    """Something that takes time on a lane of a rank.

    `actions` are one of a cell and two of a pair; what is `inside` a cell has none and lies within
    the range of the cell.
    """

    rank: int
    lane: str
    name: str
    start: float
    end: float
    actions: tuple[Action, ...] = ()
    inside: bool = False
    details: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Flow:
    """What goes from a range to another: their numbers in the timeline."""

    name: str
    source: int
    target: int


@dataclass(frozen=True, slots=True)
class Counter:
    """A number of a rank over time, such as bytes: (time, value) where it changes."""

    rank: int
    name: str
    points: tuple[tuple[float, float], ...]


@dataclass(frozen=True)
class Timeline:
    """All ranges of all ranks; times are in seconds, or in the unit of a table's costs.

    `chunks[rank, stage]` is the place of a stage among those of its rank.
    """

    ranks: tuple[str, ...]
    in_seconds: bool
    ranges: tuple[Range, ...]
    flows: tuple[Flow, ...]
    counters: tuple[Counter, ...]
    chunks: Mapping[tuple[int, int], int]

    @property
    def end(self) -> float:
        """The end of the last range."""
        return max((item.end for item in self.ranges), default=0.0)

    def lanes(self) -> dict[tuple[int, str], list[Range]]:
        """The ranges of each (rank, lane) that has any; ranks in order, compute first."""
        found: dict[tuple[int, str], list[Range]] = {}
        for item in self.ranges:
            found.setdefault((item.rank, item.lane), []).append(item)
        return dict(sorted(found.items(), key=_lane_order))


def table_timeline(simulation: Simulation) -> Timeline:
    """The cells of a table, a lane per rank, and what goes from rank to rank."""
    ranges: list[Range] = []
    places: dict[Action, int] = {}
    for rank, cells in enumerate(simulation.table.rows):
        for cell in cells:
            actions = members(cell)
            if actions:
                places.update(dict.fromkeys(actions, len(ranges)))
                start, end = simulation.spans[actions[0]]
                ranges.append(Range(rank, COMPUTE, draw_cell(cell), start, end, actions))
    return Timeline(
        ranks=tuple(f"rank {rank}" for rank in range(len(simulation.table.rows))),
        in_seconds=False,
        ranges=tuple(ranges),
        flows=tuple(_flows(places, ranges)),
        counters=(),
        chunks=chunk_places(ranges),
    )


def _lane_order(entry: tuple[tuple[int, str], object]) -> tuple[int, bool, str]:
    (rank, lane), _ = entry
    return rank, lane != COMPUTE, lane


def chunk_places(ranges: Sequence[Range]) -> dict[tuple[int, int], int]:
    """The place of each stage among those of its rank."""
    held: dict[int, set[int]] = {}
    for item in ranges:
        held.setdefault(item.rank, set()).update(action.stage for action in item.actions)
    return {
        (rank, stage): place
        for rank, stages in held.items()
        for place, stage in enumerate(sorted(stages))
    }


def _flows(places: Mapping[Action, int], ranges: Sequence[Range]) -> Iterator[Flow]:
    """Activations and gradients that go from a rank to another."""
    for action, source in places.items():
        for need in _receivers(action):
            target = places.get(need)
            if target is not None and ranges[target].rank != ranges[source].rank:
                yield Flow(str(action), source, target)


def _receivers(action: Action) -> Iterator[Action]:
    """Who may use the activation or the gradient that an action makes for another stage."""
    backward: tuple[Pass, ...] = ("B", "I")
    if action.pass_ == "F":
        yield Action(action.stage + 1, "F", action.microbatch)
    elif action.pass_ in backward and action.stage:
        yield from (Action(action.stage - 1, pass_, action.microbatch) for pass_ in backward)
