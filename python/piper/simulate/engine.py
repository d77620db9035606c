"""The event engine: nodes that take time, on lanes, behind what they wait for.

    lane a   | n0 | n1 |  n3  |            n3 is on both lanes: a rendezvous, which starts when
    lane b        | n2 |  n3  | n4 |       it is first on each and n5, which it waits for, is done
    no lane    | n5 |

A lane is first in, first out: a node starts when those before it on all of its lanes have ended,
and so have the nodes that it waits for. A node may also need *links*, which are shared: whoever
arrives first is served first, holds all of its links for a given time and then lets go. The engine
knows nothing else; tables and programs are translated to it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush

import numpy as np
from numpy.typing import NDArray

__all__ = ["CycleError", "Graph", "Timing", "Wait"]

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Wait:
    """Node `node` waits for node `on`: for what it makes, or else since it is before it on `lane`."""

    node: int
    on: int
    lane: Hashable | None


class CycleError(ValueError):
    """Nodes that wait for each other in a circle: `waits`, each for the node of the next."""

    def __init__(self, waits: Sequence[Wait], name: Callable[[int], str]) -> None:
        """Describe the circle, a line per wait."""
        self.waits = tuple(waits)
        self.lines = tuple(
            f"{name(wait.node)} waits for {name(wait.on)}"
            + ("" if wait.lane is None else ", which comes before it there")
            for wait in self.waits
        )
        super().__init__("\n".join(["expected an order, got a circle:", *self.lines]))


@dataclass(frozen=True)
class Timing:
    """When each node started and ended, in the unit of the durations.

    `cause` is the node that decided a node's start: the last that it waited for, or who held its
    link; -1 for a node that starts at 0 behind nobody.
    """

    start: Floats
    end: Floats
    cause: Ints

    @property
    def makespan(self) -> float:
        """The end of the last node; 0 without nodes."""
        return float(self.end.max(initial=0.0))

    def critical_path(self, to: int | None = None) -> tuple[tuple[int, float, float], ...]:
        """Nodes, each with its start and the start of the next, from time 0 to the end of `to`.

        By default that is the node that ends last. No gap lies between two of them, so their times
        add up to that end. A node counts less than its duration where the next one only waited for
        its link.
        """
        path: list[tuple[int, float, float]] = []
        if to is None:
            to = int(self.end.argmax()) if len(self.end) else -1
        node, until = to, float(self.end[to]) if to >= 0 else 0.0
        while node >= 0:
            start = float(self.start[node])
            path.append((node, start, until))
            until, node = start, int(self.cause[node])
        return tuple(reversed(path))


class Graph:
    """Nodes, lanes, waits and links being collected; `run` times them."""

    def __init__(self) -> None:
        """Start without nodes."""
        self._durations: list[float] = []
        self._sources: list[int] = []
        self._targets: list[int] = []
        self._edge_lanes: list[int] = []  # by edge: the lane it goes along, or -1
        self._lanes: dict[Hashable, int] = {}
        self._tails: list[int] = []  # by lane: its last node
        self._claims: dict[int, list[tuple[int, float]]] = {}  # by node: links and their times
        self._links: dict[Hashable, int] = {}

    def __len__(self) -> int:
        """How many nodes there are."""
        return len(self._durations)

    def add(self, duration: float, *, after: Iterable[int] = ()) -> int:
        """Add a node that takes `duration` and waits for the nodes `after`; return its number.

        Raises:
            ValueError: a duration that is negative or not finite.
        """
        if not (duration >= 0 and math.isfinite(duration)):
            raise ValueError(f"duration must be finite and at least 0, got {duration}")
        node = len(self._durations)
        self._durations.append(duration)
        for other in after:
            self._connect(other, node)
        return node

    def wait(self, node: int, *, on: int) -> None:
        """Let a node wait for another."""
        self._connect(on, node)

    def enqueue(self, node: int, lane: Hashable) -> None:
        """Put a node at the end of a lane; it may be put on several."""
        number = self._lanes.setdefault(lane, len(self._tails))
        if number == len(self._tails):
            self._tails.append(node)
        else:
            self._connect(self._tails[number], node, lane=number)
            self._tails[number] = node

    def claim(self, node: int, links: Iterable[Hashable], *, time: float) -> None:
        """Let a node hold shared links, all from its start and for `time`.

        Claimed again, it holds other links for another time.

        Raises:
            ValueError: a time that is negative or beyond the node's duration.
        """
        if not 0 <= time <= self._durations[node]:
            raise ValueError(
                f"time on a link must be between 0 and the node's duration "
                f"{self._durations[node]}, got {time}"
            )
        numbers = (self._links.setdefault(link, len(self._links)) for link in links)
        self._claims.setdefault(node, []).extend((number, time) for number in numbers)

    def run(self, name: Callable[[int], str] = str) -> Timing:
        """Time all nodes; `name` says what they are called in errors.

        The cost is linear in nodes and waits, but for a heap of the nodes that are ready.

        Raises:
            CycleError: nodes that wait for each other.
        """
        count = len(self)
        first, successors = self._successors()
        pending = np.bincount(self._targets, minlength=count).tolist() if count else []
        durations, claims = self._durations, self._claims
        free: list[tuple[float, int]] = [(0.0, -1)] * len(self._links)  # from when, last held by
        start = [0.0] * count
        end = [0.0] * count
        cause = [-1] * count
        ready = [(0.0, node) for node in range(count) if not pending[node]]
        done = 0
        while ready:
            now, node = heappop(ready)
            if node in claims:
                held, holder = max(free[link] for link, _ in claims[node])
                if held > now:
                    now, cause[node] = held, holder
                for link, time in claims[node]:
                    free[link] = (now + time, node)
            done += 1
            start[node] = now
            now += durations[node]
            end[node] = now
            for successor in successors[first[node] : first[node + 1]]:
                # Until it starts, `start` holds the latest end of what it waits for.
                if now > start[successor] or cause[successor] < 0:
                    start[successor], cause[successor] = now, node
                pending[successor] -= 1
                if not pending[successor]:
                    heappush(ready, (start[successor], successor))
        if done < count:
            raise CycleError(self._find_cycle(pending), name)
        return Timing(np.array(start), np.array(end), np.array(cause, dtype=np.int64))

    def _connect(self, source: int, target: int, *, lane: int = -1) -> None:
        self._sources.append(source)
        self._targets.append(target)
        self._edge_lanes.append(lane)

    def _successors(self) -> tuple[list[int], list[int]]:
        """Who waits for node n: `targets[first[n]:first[n + 1]]`."""
        sources = np.array(self._sources, dtype=np.int64)
        order = np.argsort(sources, kind="stable")
        first = np.zeros(len(self) + 1, dtype=np.int64)
        np.cumsum(np.bincount(sources, minlength=len(self)), out=first[1:])
        return first.tolist(), np.array(self._targets, dtype=np.int64)[order].tolist()

    def _find_cycle(self, pending: Sequence[int]) -> list[Wait]:
        """Walk back from a stuck node, always to another one, until the walk meets itself."""
        blocker: dict[int, Wait] = {}
        for wait in self._waits():
            if pending[wait.node] and pending[wait.on]:
                blocker.setdefault(wait.node, wait)
        node = next(iter(blocker))
        seen: dict[int, None] = {}
        while node not in seen:
            seen[node] = None
            node = blocker[node].on
        members = list(seen)
        return _skip_along_lanes([blocker[member] for member in members[members.index(node) :]])

    def _waits(self) -> Iterator[Wait]:
        """Every wait, those for values before those along a lane, which say less."""
        edges = list(zip(self._targets, self._sources, self._edge_lanes, strict=True))
        lanes = list(self._lanes)
        yield from (Wait(node, on, None) for node, on, lane in edges if lane < 0)
        yield from (Wait(node, on, lanes[lane]) for node, on, lane in edges if lane >= 0)


def _skip_along_lanes(cycle: Sequence[Wait]) -> list[Wait]:
    """Join waits along one lane, each for the one before: the nodes between say nothing."""
    turns = (
        i for i, wait in enumerate(cycle) if wait.lane is None or wait.lane != cycle[i - 1].lane
    )
    turn = next(turns, 0)
    waits: list[Wait] = []
    for wait in (*cycle[turn:], *cycle[:turn]):
        if waits and wait.lane is not None and waits[-1].lane == wait.lane:
            waits[-1] = Wait(waits[-1].node, wait.on, wait.lane)
        else:
            waits.append(wait)
    return waits
