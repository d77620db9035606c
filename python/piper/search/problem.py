"""What is searched: the actions of a pipeline, where they run, what they cost and hold."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from piper.schedules import Action, Homes, Pair, Pass
from piper.simulate import Costs

__all__ = ["Lane", "Memory", "Problem"]


@dataclass(frozen=True)
class Memory:
    """How much each rank may hold at once.

    A chunk is held from the start of its F until the end of its W or whole B.

    Args:
        limit: of every rank, or one per rank; in the unit of `chunk`.
        chunk: what a chunk of each stage holds, such as bytes, or one number for all stages; by
            default 1, so that the limit counts chunks.

    Raises:
        ValueError: a limit or chunk that is not above 0.
    """

    limit: float | Sequence[float]
    chunk: float | Sequence[float] = 1

    def __post_init__(self) -> None:
        """Check the numbers."""
        for what, given in (("limit", self.limit), ("chunk", self.chunk)):
            if isinstance(given, Sequence):
                object.__setattr__(self, what, tuple(given))
            numbers = given if isinstance(given, Sequence) else (given,)
            if not numbers or not all(number > 0 for number in numbers):
                raise ValueError(f"memory {what} must be above 0, got {given!r}")


@dataclass(frozen=True)
class Lane:
    """The microbatches of a stage that run on one rank; each of its passes takes them in order."""

    stage: int
    rank: int
    microbatches: tuple[int, ...]


@dataclass(frozen=True)
class Problem:
    """A pipeline to order; times are in the unit of the costs.

    Args:
        homes: where each stage runs.
        microbatches: how many there are.
        costs: what actions and pairs take.
        latency: what a message between ranks takes.
        memory: what ranks may hold, or None for no limit.

    Raises:
        ValueError: numbers that do not fit together, or memory that no order can do with; the
            message says what would be right.
    """

    homes: Homes
    microbatches: int
    costs: Costs
    latency: float = 0.0
    memory: Memory | None = None

    def __post_init__(self) -> None:
        """Check that everything fits."""
        if self.microbatches < 1:
            raise ValueError(f"microbatches must be at least 1, got {self.microbatches}")
        if self.homes.microbatches not in (None, self.microbatches):
            raise ValueError(
                f"homes must be for {self.microbatches} microbatches, got {self.homes.microbatches}"
            )
        if not (self.latency >= 0 and math.isfinite(self.latency)):
            raise ValueError(f"latency must be finite and at least 0, got {self.latency}")
        for name, times in self.costs.passes.items():
            if len(times) not in (1, self.stages):
                raise ValueError(
                    f"costs of {name} must be one time or one for each of {self.stages} stages, "
                    f"got {len(times)}"
                )
        pairs = self.costs.pair if isinstance(self.costs.pair, Mapping) else {}
        for stages in pairs:
            if not all(0 <= stage < self.stages for stage in stages):
                raise ValueError(
                    f"costs of pairs must be of stages below {self.stages}, got {stages}"
                )
        self._check_memory()

    def _check_memory(self) -> None:
        if self.memory is None:
            return
        for what, count, given in (
            ("limit", self.ranks, self.memory.limit),
            ("chunk", self.stages, self.memory.chunk),
        ):
            if isinstance(given, Sequence) and len(given) != count:
                kind = "ranks" if what == "limit" else "stages"
                raise ValueError(
                    f"memory {what} must be one number or one for each of {count} {kind}, "
                    f"got {len(given)}"
                )
        for rank, (limit, least) in enumerate(zip(self.limits, self.least, strict=True)):
            if limit < least:
                raise ValueError(
                    f"memory limit of rank {rank} must be at least {least:g}, which one microbatch "
                    f"holds there between its last F and its first backward, got {limit:g}"
                )

    @property
    def stages(self) -> int:
        """How many stages there are."""
        return self.homes.stages

    @property
    def ranks(self) -> int:
        """How many ranks there are."""
        return self.homes.ranks

    @cached_property
    def lanes(self) -> tuple[Lane, ...]:
        """By rank, then stage, then first microbatch."""
        found: dict[tuple[int, int, tuple[int, ...]], list[int]] = {}
        for microbatch in range(self.microbatches):
            row = self.homes.rows[microbatch if len(self.homes.rows) > 1 else 0]
            for stage, rank in enumerate(row):
                found.setdefault((rank, stage, row), []).append(microbatch)
        lanes = [Lane(stage, rank, tuple(mine)) for (rank, stage, _), mine in found.items()]
        return tuple(sorted(lanes, key=lambda lane: (lane.rank, lane.stage, lane.microbatches)))

    @cached_property
    def turns(self) -> tuple[int, ...]:
        """Which stage of its rank each lane is for its microbatches: 0 for the first."""
        return tuple(
            sum(
                (other.rank, other.microbatches) == (lane.rank, lane.microbatches)
                and other.stage < lane.stage
                for other in self.lanes
            )
            for lane in self.lanes
        )

    @cached_property
    def groups(self) -> tuple[tuple[int, ...], ...]:
        """The microbatches that run at the same places: they are alike, and run in order."""
        return tuple(dict.fromkeys(lane.microbatches for lane in self.lanes))

    @cached_property
    def limits(self) -> tuple[float, ...]:
        """What each rank may hold."""
        limit = math.inf if self.memory is None else self.memory.limit
        return tuple(limit) if isinstance(limit, Sequence) else (limit,) * self.ranks

    @cached_property
    def held(self) -> tuple[float, ...]:
        """What a chunk of each stage holds."""
        chunk = 1 if self.memory is None else self.memory.chunk
        return tuple(chunk) if isinstance(chunk, Sequence) else (chunk,) * self.stages

    @cached_property
    def least(self) -> tuple[float, ...]:
        """The least that each rank must be able to hold.

        Between its last F and its first backward a microbatch is alive in every stage, so it is
        needed; running one microbatch after the other, it is enough.
        """
        most = [0.0] * self.ranks
        for row in set(self.homes.rows):
            for rank in range(self.ranks):
                mine = sum(self.held[stage] for stage, home in enumerate(row) if home == rank)
                most[rank] = max(most[rank], mine)
        return tuple(most)

    @cached_property
    def f(self) -> tuple[float, ...]:
        """The time of F of each stage."""
        return self._times("F")

    @cached_property
    def i(self) -> tuple[float, ...]:
        """The time of I of each stage."""
        return self._times("I")

    @cached_property
    def w(self) -> tuple[float, ...]:
        """The time of W of each stage."""
        return self._times("W")

    @cached_property
    def b(self) -> tuple[float, ...]:
        """The time of a whole backward of each stage."""
        return self._times("B")

    def pair(self, forward: int, backward: int) -> float:
        """The time of a pair of the F of one stage and the whole backward of another."""
        return self.costs.of(Pair(Action(forward, "F", 0), Action(backward, "B", 0)))

    def times(self) -> list[float]:
        """Every time that the problem is made of."""
        pairs = {
            self.pair(f.stage, b.stage)
            for f in self.lanes
            for b in self.lanes
            if f.rank == b.rank and self.saved(f.stage, b.stage) > 0
        }
        return sorted({*self.f, *self.i, *self.w, *self.b, *pairs, self.latency})

    def saved(self, forward: int, backward: int) -> float:
        """What a pair saves against its members one by one; what is not above 0 is of no use."""
        apart = min(self.b[backward], self.i[backward] + self.w[backward])
        return self.f[forward] + apart - self.pair(forward, backward)

    def message(self, stage: int, microbatch: int) -> float:
        """What the message from a stage to the next one takes."""
        here, there = self.homes.of(stage, microbatch), self.homes.of(stage + 1, microbatch)
        return 0.0 if here == there else self.latency

    def _times(self, pass_: Pass) -> tuple[float, ...]:
        return tuple(self.costs.of(Action(stage, pass_, 0)) for stage in range(self.stages))
