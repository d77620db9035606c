"""Schedules by name. To add one: write its file, then name it here."""

from __future__ import annotations

import difflib
import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from piper.schedules.dual_pipe import dual_pipe
from piper.schedules.dual_pipe_v import dual_pipe_v
from piper.schedules.gpipe import gpipe
from piper.schedules.homes import Homes, Placement
from piper.schedules.interleaved import interleaved_1f1b
from piper.schedules.interleaved_zero_bubble import interleaved_zero_bubble
from piper.schedules.looped_bfs import looped_bfs
from piper.schedules.one_f_one_b import one_f_one_b
from piper.schedules.rows import rounds
from piper.schedules.table import Table
from piper.schedules.zbv import zbv_zero_bubble
from piper.schedules.zero_bubble import zbh1, zbh2

__all__ = ["SCHEDULES", "Divisor", "Schedule", "generate", "homes_of", "schedule_name"]


@dataclass(frozen=True)
class Divisor:
    """What the number of microbatches must be a multiple of, given ranks and microbatches."""

    of: Callable[[int, int], int]
    formula: str
    """The same for people, of `microbatches` and `ranks`, where it is at least 1."""


_ONE = Divisor(lambda ranks, microbatches: 1, "1")
_TWO = Divisor(lambda ranks, microbatches: 2, "2")
_ROUNDS = Divisor(rounds, "microbatches // ranks")


@dataclass(frozen=True)
class Schedule:
    """A named schedule and the numbers that it is defined for.

    `function` makes the table from ranks and microbatches, and from chunks where those are free.
    `chunks` is how many stages a rank holds, or None where that may be any number of at least 2.
    Microbatches are at least `least` times the ranks, and a multiple of `divisor`.
    """

    name: str
    function: Callable[..., Table]
    placement: Placement = "each"
    chunks: int | None = 1
    least: int = 0
    divisor: Divisor = _ONE
    even_ranks: bool = False

    def table(self, ranks: int, microbatches: int, chunks: int) -> Table:
        """The table; row r is what rank r runs.

        Raises:
            ValueError: a number that it is not defined for; says what would be right.
        """
        self.check(ranks, microbatches, chunks)
        if self.chunks is None:
            return self.function(ranks, microbatches, chunks)
        return self.function(ranks, microbatches)

    def homes(self, ranks: int, microbatches: int, chunks: int) -> Homes:
        """Where the table runs each stage.

        Raises:
            ValueError: as `table`.
        """
        self.check(ranks, microbatches, chunks)
        return Homes.named(
            self.placement,
            ranks=ranks,
            stages=self.stages(ranks, chunks),
            microbatches=microbatches,
        )

    def stages(self, ranks: int, chunks: int) -> int:
        """How many stages the model is cut into."""
        return ranks if self.placement == "bidirectional" else ranks * chunks

    def chunks_of(self, ranks: int, stages: int) -> int:
        """How many stages a rank holds when the model is cut into `stages`.

        Raises:
            ValueError: a number that it is not defined for; says what would be right.
        """
        if self.chunks is None:
            if stages % ranks != 0 or stages < 2 * ranks:
                raise ValueError(
                    f"{self.name} needs stages to be a multiple of ranks, at least "
                    f"2 * ranks = {2 * ranks}, got {stages}"
                )
            return stages // ranks
        right = self.stages(ranks, self.chunks)
        if stages != right:
            times = "" if right == ranks else f"{right // ranks} * "
            raise ValueError(f"{self.name} needs stages == {times}ranks = {right}, got {stages}")
        return self.chunks

    def min_microbatches(self, ranks: int) -> int:
        """The fewest microbatches that it is defined for."""
        return max(1, self.least * ranks)

    def check(self, ranks: int, microbatches: int, chunks: int) -> None:
        """Check that it is defined for these numbers.

        Raises:
            ValueError: names the schedule, the number and what would be right.
        """
        counts = {"ranks": ranks, "microbatches": microbatches, "chunks": chunks}
        for what, count in counts.items():
            if type(count) is not int:
                raise ValueError(f"{self.name} needs an int for {what}, got {count!r}")
            if count < 1:
                raise ValueError(f"{self.name} needs {what} >= 1, got {count}")
        if self.chunks is not None and chunks != self.chunks:
            raise ValueError(f"{self.name} needs chunks == {self.chunks}, got {chunks}")
        if self.chunks is None and chunks < 2:
            raise ValueError(f"{self.name} needs chunks >= 2, got {chunks}")
        if self.even_ranks and ranks % 2 != 0:
            raise ValueError(f"{self.name} needs an even number of ranks, got {ranks}")
        if microbatches < self.min_microbatches(ranks):
            raise ValueError(
                f"{self.name} needs microbatches >= {self.least} * ranks = {self.least * ranks}, "
                f"got {microbatches}"
            )
        self._check_divisor(ranks, microbatches)

    def _check_divisor(self, ranks: int, microbatches: int) -> None:
        if self._divides(ranks, microbatches):
            return
        below = next(n for n in itertools.count(microbatches, -1) if self._divides(ranks, n))
        above = next(n for n in itertools.count(microbatches) if self._divides(ranks, n))
        divisor = str(self.divisor.of(ranks, microbatches))
        if divisor != self.divisor.formula:
            divisor = f"{self.divisor.formula} = {divisor}"
        raise ValueError(
            f"{self.name} needs microbatches to be a multiple of {divisor}, such as {below} or "
            f"{above}, got {microbatches}"
        )

    def _divides(self, ranks: int, microbatches: int) -> bool:
        return microbatches % self.divisor.of(ranks, microbatches) == 0


SCHEDULES: Final[Mapping[str, Schedule]] = MappingProxyType(
    {
        schedule.name: schedule
        for schedule in (
            Schedule("GPipe", gpipe),
            Schedule("1F1B", one_f_one_b),
            Schedule("Interleaved1F1B", interleaved_1f1b, "loop", None, divisor=_ROUNDS),
            Schedule("LoopedBFS", looped_bfs, "loop", None),
            Schedule("ZBH1", zbh1),
            Schedule("ZBH2", zbh2),
            Schedule(
                "InterleavedZeroBubble", interleaved_zero_bubble, "loop", None, divisor=_ROUNDS
            ),
            Schedule("ZBVZeroBubble", zbv_zero_bubble, "v", 2),
            Schedule(
                "DualPipe", dual_pipe, "bidirectional", 2, least=2, divisor=_TWO, even_ranks=True
            ),
            Schedule("DualPipeV", dual_pipe_v, "v", 2, least=2),
        )
    }
)
"""Every named schedule."""


def schedule_name(name: str, *, others: Sequence[str] = ()) -> str:
    """The registered spelling of a schedule's name, which is looked up without regard to case.

    `others` are names that mean something besides.

    Raises:
        ValueError: no such schedule; the message suggests the nearest and lists all.
    """
    names = [*SCHEDULES, *others]
    spellings = {known.lower(): known for known in names}
    if name.lower() in spellings:
        return spellings[name.lower()]
    near = difflib.get_close_matches(name.lower(), spellings, n=1)
    hint = f", did you mean {spellings[near[0]]!r}?" if near else ","
    raise ValueError(f"unknown schedule {name!r}{hint} known are {', '.join(names)}")


def generate(name: str, *, ranks: int, microbatches: int, chunks: int | None = None) -> Table:
    """The table of a named schedule.

    Args:
        name: in any case.
        ranks: how many rows there are.
        microbatches: how many each stage runs.
        chunks: how many stages a rank holds; by default what the schedule needs, or 2.

    Raises:
        ValueError: unknown name, or numbers that the schedule is not defined for.
    """
    schedule = SCHEDULES[schedule_name(name)]
    return schedule.table(ranks, microbatches, _chunks(schedule, chunks))


def homes_of(name: str, ranks: int, microbatches: int, chunks: int | None = None) -> Homes:
    """Where the table of a named schedule runs each stage; the arguments are those of `generate`.

    Raises:
        ValueError: as `generate`.
    """
    schedule = SCHEDULES[schedule_name(name)]
    return schedule.homes(ranks, microbatches, _chunks(schedule, chunks))


def _chunks(schedule: Schedule, chunks: int | None) -> int:
    return (schedule.chunks or 2) if chunks is None else chunks
