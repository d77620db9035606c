"""The automatic order: a table found by search, with a proven bound beside it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from piper.schedules import Homes, Table, validate
from piper.search.bounds import lower_bound
from piper.search.exact import prove
from piper.search.heuristic import Found, find
from piper.search.plain import plain
from piper.search.problem import Memory, Problem
from piper.search.seeds import named_tables
from piper.search.words import Rows, Words
from piper.simulate import Costs, simulate

__all__ = ["AutoOrder", "auto_order"]

_SMALL = 400
"""The most letters of a problem that CP-SAT is asked about: it helps little beyond."""

_CLOSE = 1 + 1e-9
"""How far apart makespans are equal, for the sake of rounding."""


@dataclass(frozen=True)
class AutoOrder:
    """An order, how long it takes, and how much better another could be at most.

    `makespan` is what `piper.simulate` gives for the table, `bound` what no table can beat, both in
    the unit of the costs. `reason` says why not, and `how` says how the table was found.
    `peaks` is what each rank holds at most, in the unit of the memory limit.
    """

    table: Table
    makespan: float
    bound: float
    reason: str
    how: str
    peaks: tuple[float, ...]

    @property
    def gap(self) -> float:
        """By what part of the bound the table is above it; 0 for an optimum."""
        return 0.0 if self.is_optimal else self.makespan / self.bound - 1

    @property
    def is_optimal(self) -> bool:
        """Whether it is proved that no table is faster."""
        return self.makespan <= self.bound * _CLOSE

    def __str__(self) -> str:
        """The table, behind a few lines about it."""
        best = "which is the best possible" if self.is_optimal else f"a gap of {self.gap:.1%}"
        peaks = " ".join(f"{peak:g}" for peak in self.peaks)
        return (
            f"makespan {self.makespan:g}, found by {self.how}\n"
            f"no order takes less than {self.bound:g}, {best}: {self.reason}\n"
            f"held at most per rank: {peaks}\n"
            f"{self.table}"
        )


def auto_order(
    homes: Homes,
    *,
    microbatches: int,
    costs: Costs | None = None,
    latency: float = 0.0,
    memory: float | Sequence[float] | Memory | None = None,
    seeds: bool = True,
    effort: float = 1.0,
) -> AutoOrder:
    """Search for the order of the least makespan.

    Gives the same table for the same arguments in every process, however fast it runs. Backwards
    are cut into I and W where that makes the table faster, and whole elsewhere; forwards and
    backwards run as pairs where the costs say that this saves time.

    Args:
        homes: where each stage runs.
        microbatches: how many each stage runs.
        costs: what actions and pairs take; by default F, I and W of every stage take 1.
        latency: what a message between ranks takes, in the unit of the costs.
        memory: the most chunks of activations that a rank may hold at once, from F until W or B,
            or one such number per rank; a `Memory` if sizes of chunks differ. No limit by default.
        seeds: whether to start from named schedules of the same placement too. With them no such
            schedule that keeps to the limit is faster than the result.
        effort: a factor of how long to search where the bound is not reached; at 1, up to some ten
            seconds.

    Raises:
        ValueError: numbers that do not fit together, or less memory than any order needs; the
            message says what would be right.
    """
    if not (effort > 0 and math.isfinite(effort)):
        raise ValueError(f"effort must be finite and above 0, got {effort}")
    if memory is not None and not isinstance(memory, Memory):
        memory = Memory(memory)
    problem = Problem(homes, microbatches, costs or Costs.uniform(), latency, memory)
    words = Words(problem)
    bound = lower_bound(problem)
    starts = _starts(words) if seeds else {}
    found = find(words, goal=bound.time * _CLOSE, seeds=starts, effort=effort)
    time, reason = bound.time, str(bound)
    if found.makespan > bound.time * _CLOSE and words.size <= _SMALL:
        proof = prove(words, found.rows, bound=bound.time, limit=10 * effort)
        if proof.rows is not None and words.makespan(proof.rows) < found.makespan:
            found = Found(words.makespan(proof.rows), proof.rows, "CP-SAT")
        if proof.bound > time * _CLOSE:
            time, reason = proof.bound, "CP-SAT has proved it"
    rows = plain(words, found.rows, steps=math.ceil(effort * 1e6 / words.size))
    table = words.table(rows)
    validate(table, homes, microbatches)
    return AutoOrder(
        table=table,
        makespan=simulate(table, problem.costs, latency=latency).makespan,
        bound=time,
        reason=reason,
        how=found.how,
        peaks=words.peaks(rows),
    )


def _starts(words: Words) -> dict[str, Rows]:
    """The rows of named schedules, by name."""
    problem = words.problem
    starts: dict[str, Rows] = {}
    for name, table in named_tables(problem).items():
        rows = words.read(table)
        is_faster = (
            words.makespan(rows)
            < simulate(table, problem.costs, latency=problem.latency).makespan / _CLOSE
        )
        starts[f"{name} with its backwards cut" if is_faster else name] = rows
    return starts
