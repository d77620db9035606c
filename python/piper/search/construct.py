"""Orders made by running a pipeline: whenever a rank is free, a policy picks what it runs next."""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from piper.search.letters import B, F, I, Letter, W
from piper.search.problem import Lane, Problem
from piper.search.room import Room
from piper.search.words import Words

__all__ = ["Policy", "ahead", "behind", "construct", "period"]


@dataclass(frozen=True)
class Policy:
    """How a rank picks among what is ready: the action that is due first in an ideal pipeline.

    In that pipeline a microbatch runs without waiting, and the next one follows `pace` times the
    work of the busiest rank for one microbatch later. W is due `patience` of those times after its
    I; never, if that is infinite, so that it runs where nothing else can. `inputs_first` runs I
    before any F. A rank that would start a W or F stays idle instead if an I that is due before it
    is known to come within `hold` times what it takes. `whole` runs backwards in one piece; `pairs`
    lets a forward and a backward overlap where that saves time. `shifts` are added to when F, the
    backward and W of each lane are due, three numbers a lane, in the work of the busiest rank.
    """

    pace: float = 1.0
    patience: float = math.inf
    inputs_first: bool = True
    hold: float = 0.0
    whole: bool = False
    pairs: bool = True
    shifts: tuple[float, ...] = ()


def construct(words: Words, policy: Policy) -> list[list[int]]:
    """The rows that a policy gives; they hold no more than the limit and never deadlock."""
    return _Run(words, policy).rows()


class _Choice(NamedTuple):
    """A letter that could run, least first: when it is due, its number, and when it can start."""

    due: tuple[int, float]
    letter: int
    ready: float


class _Run:
    """A pipeline as it runs."""

    def __init__(self, words: Words, policy: Policy) -> None:
        problem = words.problem
        self._words, self._policy = words, policy
        self._lanes = problem.lanes
        self._made: list[list[float]] = [[] for _ in range(4 * len(self._lanes))]
        self._split: list[deque[int]] = [deque() for _ in self._lanes]  # I done, W not
        self._free = [0.0] * problem.ranks
        self._rows: list[list[int]] = [[] for _ in range(problem.ranks)]
        self._of_rank = [
            [n for n, lane in enumerate(self._lanes) if lane.rank == rank]
            for rank in range(problem.ranks)
        ]
        self._due = _Due(problem, policy)
        self._room = Room(problem)
        self._refused: set[int] = set()  # ranks where an F waits for room
        self._events = [(0.0, rank) for rank in range(problem.ranks)]

    def rows(self) -> list[list[int]]:
        """Run until nothing is left."""
        while self._events:
            now, rank = heapq.heappop(self._events)
            if now >= self._free[rank]:
                self._act(rank, now)
        return self._rows

    def _act(self, rank: int, now: float) -> None:
        """Start a letter, or wait for one."""
        choices = sorted(self._choices(rank, now))
        ready = [choice for choice in choices if choice.ready <= now]
        later = [choice.ready for choice in choices if choice.ready > now]
        if ready:
            best = ready[0]
            time = self._words.letters[best.letter].time
            patience = now + self._policy.hold * time
            if not any(c.ready <= patience for c in choices if now < c.ready and c < best):
                self._start(rank, self._paired(best.letter, ready), now)
                return
        if later:
            heapq.heappush(self._events, (min(later), rank))

    def _choices(self, rank: int, now: float) -> Iterator[_Choice]:
        """The next action of each pass of each lane, once it is known when its input is there."""
        for lane in self._of_rank[rank]:
            for pass_ in (F, B if self._policy.whole else I):
                letter = 4 * lane + pass_
                ready = self._arrival(self._words.letters[letter])
                if ready is not None and self._is_admitted(pass_, lane, rank):
                    number = len(self._made[4 * lane + (pass_ != F)])
                    yield _Choice(self._due.of(pass_, lane, number), letter, ready)
            if self._split[lane]:
                yield _Choice(self._due.of(W, lane, self._split[lane][0]), 4 * lane + W, now)

    def _is_admitted(self, pass_: int, lane: int, rank: int) -> bool:
        """Whether memory lets an action start; notes an F that has to wait for room."""
        if pass_ != F or self._room.admits(self._lanes[lane], len(self._made[4 * lane])):
            return True
        self._refused.add(rank)
        return False

    def _arrival(self, letter: Letter) -> float | None:
        """When all inputs of a letter are there, or None while one has not even started."""
        arrival = 0.0
        number = len(self._made[letter.outputs[0]])
        if number >= len(self._lanes[letter.what[0][1]].microbatches):
            return None
        for _, source, delay in letter.inputs:
            if number >= len(self._made[source]):
                return None
            arrival = max(arrival, self._made[source][number] + delay)
        return arrival

    def _paired(self, best: int, ready: Sequence[_Choice]) -> int:
        """The pair of a letter and the first one that it can overlap with, if there is any."""
        if self._policy.pairs:
            for choice in ready:
                pair = self._words.overlap(best, choice.letter)
                if pair is not None:
                    return pair
        return best

    def _start(self, rank: int, number: int, now: float) -> None:
        letter = self._words.letters[number]
        end = now + letter.time
        self._rows[rank].append(number)
        self._free[rank] = end
        for pass_, lane in letter.what:
            self._note(pass_, lane, now)
        for channel in letter.outputs:
            self._made[channel].append(end)
            reader = self._words.reader(channel)
            if reader is not None:
                other, delay = reader
                heapq.heappush(self._events, (end + delay, other))
        heapq.heappush(self._events, (end, rank))

    def _note(self, pass_: str, lane: int, now: float) -> None:
        """Keep track of what is held; what is released may let refused forwards start."""
        home = self._lanes[lane]
        if pass_ == "F":
            self._room.start(home, len(self._made[4 * lane]))
        elif pass_ == "I":
            self._split[lane].append(len(self._made[4 * lane + 1]))
        else:
            number = len(self._made[4 * lane + 1]) if pass_ == "B" else self._split[lane].popleft()
            self._room.release(home, number)
            for rank in sorted(self._refused):
                heapq.heappush(self._events, (max(now, self._free[rank]), rank))
            self._refused.clear()


class _Due:
    """When each action is due in the ideal pipeline, behind a number by which choices rank first."""

    def __init__(self, problem: Problem, policy: Policy) -> None:
        work = period(problem)
        self._step = policy.pace * work
        self._ranks = {F: int(policy.inputs_first), I: 0, B: 0, W: int(policy.inputs_first)}
        late = policy.patience * work
        if late == math.inf:
            self._ranks[W], late = 2, 0.0
        self._times: list[list[float]] = []
        for lane in problem.lanes:
            forward = ahead(problem, lane)
            backward = forward + behind(problem, lane)
            self._times.append([forward, backward, backward + late])
        for n, shift in enumerate(policy.shifts):
            self._times[n // 3][n % 3] += shift * work

    def of(self, pass_: int, lane: int, number: int) -> tuple[int, float]:
        """What choices are compared by."""
        times = self._times[lane]
        time = times[2] if pass_ == W else times[0 if pass_ == F else 1]
        return self._ranks[pass_], time + number * self._step


def period(problem: Problem) -> float:
    """The work of the busiest rank for a microbatch, or for one of each group."""
    work = [0.0] * problem.ranks
    for lane in problem.lanes:
        s = lane.stage
        work[lane.rank] += problem.f[s] + min(problem.i[s] + problem.w[s], problem.b[s])
    return max(work)


def ahead(problem: Problem, lane: Lane) -> float:
    """What comes before an F."""
    stages = range(lane.stage)
    return sum(problem.f[s] + problem.message(s, lane.microbatches[0]) for s in stages)


def behind(problem: Problem, lane: Lane) -> float:
    """What comes between the start of an F and the start of its I."""
    stages = range(lane.stage + 1, problem.stages)
    messages = sum(problem.message(s - 1, lane.microbatches[0]) for s in stages)
    return problem.f[lane.stage] + sum(problem.f[s] + problem.i[s] for s in stages) + 2 * messages
