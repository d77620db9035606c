"""Times that no order of a problem can beat.

Three relaxations, each of which every order satisfies:

- *Chains.* Microbatch k passes each stage no sooner than its messages and the k before it allow,
  and with room for n chunks, F of microbatch k + n starts after W of microbatch k has ended. The
  longest chains before and behind an action are its head and its tail.
- *Ranks.* A rank has all its work to do between the heads and the tails of its actions. If it could
  interrupt them at will, running what has the longest tail first would be best (Jackson's
  preemptive schedule; Carlier, 1982, doi:10.1016/S0377-2217(82)80007-6), and is a bound.
- *Savings.* Work counts at its cheapest form: a backward as B or as I and W, and what a pair saves
  is taken off its members in proportion.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from piper.search.problem import Lane, Problem

__all__ = ["Bound", "Rooms", "lower_bound"]


@dataclass(frozen=True)
class Bound:
    """A time that no order beats, and why: a chain of actions, or the work of a rank."""

    time: float
    rank: int | None

    def __str__(self) -> str:
        """The reason."""
        if self.rank is None:
            return "the longest chain of actions that wait for each other"
        return f"the work of rank {self.rank}, what comes before it and what comes after"


@dataclass(frozen=True)
class _Part:
    """Work of an action: no sooner than `head`, with at least `tail` to come after it."""

    head: float
    work: float
    tail: float


class _Lane:
    """The least times of a lane, whichever form its backward takes."""

    def __init__(self, problem: Problem, lane: Lane) -> None:
        s, mates = lane.stage, _mates(problem, lane)
        ahead = [problem.pair(s, t) for t in mates if problem.saved(s, t) > 0]
        behind = [problem.pair(t, s) for t in mates if problem.saved(t, s) > 0]
        whole = [problem.b[s], *behind]
        self.count = len(lane.microbatches)
        self.rank = lane.rank
        self.is_split = not behind and problem.i[s] + problem.w[s] <= problem.b[s]
        # Until F, or I or B, has its result; from the start of I or B until the chunk is released.
        self.f = min([problem.f[s], *ahead])
        self.b = min([problem.i[s], *whole])
        self.free = min([problem.i[s] + problem.w[s], *whole])
        # What must be done, where pairs take their saving off each member in proportion.
        self.work_f, self.work_b = problem.f[s], min(problem.b[s], problem.i[s] + problem.w[s])
        self.saved_f = max([0.0, *(_share(problem, s, t) for t in mates)])
        self.saved_b = max(
            [0.0, *(problem.saved(t, s) - _saved_f(problem, t, mates) for t in mates)]
        )
        self.i = problem.i[s]
        self.room, self.turn, self.last = Rooms.of(problem, lane)


def _mates(problem: Problem, lane: Lane) -> list[int]:
    """The stages on the rank of a lane."""
    return sorted({other.stage for other in problem.lanes if other.rank == lane.rank})


def _share(problem: Problem, forward: int, backward: int) -> float:
    """The forward's share of what a pair saves."""
    f = problem.f[forward]
    b = min(problem.b[backward], problem.i[backward] + problem.w[backward])
    return problem.saved(forward, backward) * f / (f + b) if f + b > 0 else 0.0


def _saved_f(problem: Problem, forward: int, mates: Sequence[int]) -> float:
    return max([0.0, *(_share(problem, forward, backward) for backward in mates)])


class Rooms(NamedTuple):
    """What memory says of a lane.

    When F of microbatch k runs, k holds a chunk of each stage before it on the same rank, so that
    only the rest is for this stage: F of k waits for the release of chunk k - `own`. And until an
    older microbatch has run F of the last stage on the rank, `last`, none of these is released, and
    room must be left for one chunk of every other stage: F of k waits for that F of k - `turn`.
    """

    own: int
    turn: int
    last: int

    @classmethod
    def of(cls, problem: Problem, lane: Lane) -> Rooms:
        """Those of a lane; where memory does not matter, as many as it has microbatches."""
        mates = [
            other.stage
            for other in problem.lanes
            if (other.rank, other.microbatches) == (lane.rank, lane.microbatches)
        ]
        count, held = len(lane.microbatches), problem.held

        def fit(stages: Iterable[int]) -> int:
            room = problem.limits[lane.rank] - sum(held[stage] for stage in stages)
            return int(min(count, room / held[lane.stage] + 1e-9))

        return cls(
            fit(stage for stage in mates if stage < lane.stage),
            fit(stage for stage in mates if stage != lane.stage),
            max(mates),
        )


class _Chains:
    """The longest chains before and behind each F and each I or B of alike microbatches.

    `head_f[s][k]` is how soon F of stage s and microbatch k can start, `tail_f[s][k]` how long the
    step lasts from then on at least; the same of I or B.
    """

    def __init__(self, lanes: Sequence[_Lane], hops: Sequence[float]) -> None:
        """Take the lanes of a group by stage, and the time of the message behind each."""
        self.lanes, self.hops = lanes, hops
        self.count = lanes[0].count
        self.head_f, self.head_b, self.tail_f, self.tail_b = (
            [[0.0] * self.count for _ in lanes] for _ in range(4)
        )
        for k in range(self.count):
            self._heads(k)
        for k in reversed(range(self.count)):
            self._tails(k)

    def longest(self) -> float:
        """The longest chain through any action."""
        return max(
            head + tail
            for heads, tails in ((self.head_f, self.tail_f), (self.head_b, self.tail_b))
            for row, other in zip(heads, tails, strict=True)
            for head, tail in zip(row, other, strict=True)
        )

    def _heads(self, k: int) -> None:
        f, b, stages = self.head_f, self.head_b, range(len(self.lanes))
        for s, lane in enumerate(self.lanes):
            before = [0.0]
            if s > 0:
                before.append(f[s - 1][k] + self.lanes[s - 1].f + self.hops[s - 1])
            if k > 0:
                before.append(f[s][k - 1] + lane.f)
            if k >= lane.room:
                before.append(b[s][k - lane.room] + lane.free)
            if k >= lane.turn and lane.last != s:
                before.append(f[lane.last][k - lane.turn] + self.lanes[lane.last].f)
            f[s][k] = max(before)
        for s in reversed(stages):
            before = [f[s][k] + self.lanes[s].f]
            if s + 1 < len(self.lanes):
                before.append(b[s + 1][k] + self.lanes[s + 1].b + self.hops[s])
            if k > 0:
                before.append(b[s][k - 1] + self.lanes[s].b)
            b[s][k] = max(before)

    def _tails(self, k: int) -> None:
        for s, lane in enumerate(self.lanes):
            self.tail_b[s][k] = max(lane.free, lane.b + self.behind_b(s, k))
            if k + lane.room < self.count:
                again = lane.free + self.tail_f[s][k + lane.room]
                self.tail_b[s][k] = max(self.tail_b[s][k], again)
        for s in reversed(range(len(self.lanes))):
            self.tail_f[s][k] = self.lanes[s].f + self.behind_f(s, k)

    def behind_f(self, s: int, k: int) -> float:
        """How long the step lasts after the end of an F at least."""
        behind = [self.tail_b[s][k]]
        if s + 1 < len(self.lanes):
            behind.append(self.hops[s] + self.tail_f[s + 1][k])
        if k + 1 < self.count:
            behind.append(self.tail_f[s][k + 1])
        for mate, lane in enumerate(self.lanes):
            if lane.last == s and lane.rank == self.lanes[s].rank and k + lane.turn < self.count:
                behind.append(self.tail_f[mate][k + lane.turn])
        return max(behind)

    def behind_b(self, s: int, k: int) -> float:
        """How long the step lasts after the end of an I or B at least, but for its W."""
        behind = [0.0]
        if s > 0:
            behind.append(self.hops[s - 1] + self.tail_b[s - 1][k])
        if k + 1 < self.count:
            behind.append(self.tail_b[s][k + 1])
        return max(behind)

    def released(self, s: int, k: int) -> float:
        """How long the step lasts after the end of a W at least."""
        room = self.lanes[s].room
        return self.tail_f[s][k + room] if k + room < self.count else 0.0

    def parts(self, s: int, *, alone: bool) -> Iterator[_Part]:
        """The work of a stage; `alone` if its microbatches are all that its rank runs.

        Then the first F and the last backward have no partner for a pair: before the first backward
        of a rank comes all F of that microbatch, and after the last F all backwards.
        """
        lane = self.lanes[s]
        for k in range(self.count):
            f = lane.work_f - (0.0 if alone and k == 0 else lane.saved_f)
            b = lane.work_b - (0.0 if alone and k == self.count - 1 else lane.saved_b)
            i = min(lane.i, b)
            w = b - i
            head = self.head_b[s][k]
            yield _Part(self.head_f[s][k], f, self.behind_f(s, k))
            again = min(w, lane.free) + self.released(s, k) if k + lane.room < self.count else 0.0
            yield _Part(head, i, max(w, again, self.behind_b(s, k)))
            yield _Part(head + i, w, self.released(s, k) if lane.is_split else 0.0)


def lower_bound(problem: Problem) -> Bound:
    """A time that no order of a problem can beat."""
    groups = [_chains(problem, group) for group in problem.groups]
    bounds = [Bound(max(chains.longest() for chains in groups), None)]
    for rank in range(problem.ranks):
        parts = [
            part
            for chains in groups
            for s, lane in enumerate(chains.lanes)
            if lane.rank == rank
            for part in chains.parts(s, alone=len(groups) == 1)
        ]
        bounds.append(Bound(_preemptive(parts), rank))
    return max(bounds, key=lambda bound: bound.time)


def _chains(problem: Problem, group: Sequence[int]) -> _Chains:
    mine = [lane for lane in problem.lanes if lane.microbatches == tuple(group)]
    mine.sort(key=lambda lane: lane.stage)
    hops = [problem.message(stage, group[0]) for stage in range(problem.stages - 1)]
    return _Chains([_Lane(problem, lane) for lane in mine], hops)


def _preemptive(parts: Sequence[_Part]) -> float:
    """When all is over if a rank may interrupt its work, always for that with the longest tail."""
    coming = sorted(parts, key=lambda part: part.head, reverse=True)
    ready: list[tuple[float, float]] = []  # tail, negative, and work left
    now = most = 0.0
    while coming or ready:
        if not ready:
            now = max(now, coming[-1].head)
        while coming and coming[-1].head <= now:
            part = coming.pop()
            heapq.heappush(ready, (-part.tail, part.work))
        tail, work = heapq.heappop(ready)
        ran = min(work, coming[-1].head - now) if coming else work
        now += ran
        if ran < work:
            heapq.heappush(ready, (tail, work - ran))
        else:
            most = max(most, now - tail)
    return most
