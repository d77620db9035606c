"""A good order for a problem of any size, found by several searches one after another."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from piper.search.candidate import Candidate
from piper.search.construct import Policy
from piper.search.improve import improve
from piper.search.pattern import repeat
from piper.search.tune import policies, run, tune
from piper.search.words import Rows, Words

__all__ = ["Found", "find"]

_MOVED = ", improved by local search"


@dataclass(frozen=True)
class Found:
    """Rows, how long they take, and how they came about."""

    makespan: float
    rows: Rows
    how: str


def find(words: Words, *, goal: float, seeds: Mapping[str, Rows], effort: float) -> Found:
    """The best order found; none that takes `goal` can be beaten, so that the search ends there.

    Args:
        words: of the problem.
        goal: a lower bound of the makespan.
        seeds: orders to start from as well, by name.
        effort: a factor of how long to search; 1 is some seconds, whatever the size.
    """
    search = _Search(words, goal, effort)
    for name, rows in seeds.items():
        search.add(rows, name)
    search.by_policies()
    if words.problem.memory is not None:
        search.by_patterns()
    search.by_moves()
    return search.best


class _Search:
    """The orders found so far."""

    def __init__(self, words: Words, goal: float, effort: float) -> None:
        self._words, self._goal = words, goal
        # How many orders may be timed, which is linear in letters; to make one is 20 times that.
        self._orders = effort * 5e6 / (3 * words.problem.microbatches * words.problem.stages)
        self._found: list[Found] = []

    @property
    def best(self) -> Found:
        """The order that takes least; the first of equals."""
        return min(self._found, key=lambda found: found.makespan)

    def add(self, rows: Rows, how: str) -> None:
        """Keep an order, if it can run within the limit."""
        makespan = self._words.makespan(rows)
        if makespan < math.inf:
            self._found.append(Found(makespan, rows, how))

    def by_policies(self) -> None:
        """Run the pipeline, first by plain policies, then by changes of the best two."""
        count = self._steps(0.1 / 20, least=6, most=1000)
        runs: list[Candidate[Policy]] = []
        for policy in policies(self._words)[:count]:
            if self._is_over():
                return
            runs.append(run(self._words, policy))
            self.add(runs[-1].rows, "a pipeline run by due times")
        steps = self._steps(0.2 / 20, least=10, most=300)
        for start in sorted(runs, key=lambda candidate: candidate.makespan)[:2]:
            tuned = tune(self._words, start, steps=0 if self._is_over() else steps, goal=self._goal)
            self.add(tuned.rows, "a pipeline run by tuned due times")

    def by_patterns(self) -> None:
        """Repeat a pattern."""
        if not self._is_over():
            steps = self._steps(0.2, least=100, most=6000)
            self.add(repeat(self._words, steps=steps, goal=self._goal).rows, "a repeated pattern")

    def by_moves(self) -> None:
        """Improve the best order of each kind, then the best of all."""
        kinds = {found.how: found for found in sorted(self._found, key=lambda x: -x.makespan)}
        steps = self._steps(0.1, least=50, most=3000)
        for found in [*kinds.values(), None]:
            if self._is_over():
                return
            start = found or self.best
            rows = improve(self._words, start.rows, steps=steps, goal=self._goal)
            if rows != start.rows:
                self.add(rows, f"{start.how.removesuffix(_MOVED)}{_MOVED}")

    def _is_over(self) -> bool:
        return bool(self._found) and self.best.makespan <= self._goal

    def _steps(self, share: float, *, least: int, most: int) -> int:
        """How many orders a share of the budget is."""
        return max(least, min(most, int(share * self._orders)))
