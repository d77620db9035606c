"""What every search shares: candidates, and late acceptance to go from one to the next."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from piper.search.words import Rows

__all__ = ["Candidate", "search"]

T = TypeVar("T")


@dataclass(frozen=True)
class Candidate(Generic[T]):
    """Rows, how long they take (infinite if they cannot run), and what they were made from."""

    makespan: float
    rows: Rows
    source: T


def search(
    start: Candidate[T],
    propose: Callable[[Candidate[T], random.Random], Candidate[T]],
    *,
    steps: int,
    goal: float,
    patience: int,
) -> Candidate[T]:
    """The best of `steps` candidates, each proposed from the last one taken.

    A proposal is taken if it is no worse than what was taken now or `patience` steps ago (late
    acceptance; Burke and Bykov, 2017, doi:10.1016/j.ejor.2016.07.012), which lets the search leave
    a local optimum. It ends early at a makespan of `goal`, and always gives the same result.
    """
    rng = random.Random(0)
    best = now = start
    history = [start.makespan] * patience
    for step in range(steps):
        if best.makespan <= goal:
            break
        proposal = propose(now, rng)
        if proposal.makespan <= max(now.makespan, history[step % patience]):
            now = proposal
            best = min(best, now, key=lambda candidate: candidate.makespan)
        history[step % patience] = now.makespan
    return best
