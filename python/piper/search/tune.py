"""Search among policies: which one makes the best order by running the pipeline."""

from __future__ import annotations

import itertools
import math
import random
from dataclasses import replace

from piper.search.candidate import Candidate, search
from piper.search.construct import Policy, construct
from piper.search.words import Words

__all__ = ["policies", "tune"]

_PACES = (1.0, 0.5, 2.0)
_PATIENCES = (math.inf, 1.0, 0.5)
_HOLDS = (0.0, 0.5)


def policies(words: Words) -> list[Policy]:
    """Policies to start from, the most promising first."""
    wholes = (False, True) if words.has_wholes else (False,)
    pairs = (True, False) if words.pairs else (True,)
    grid = itertools.product(_HOLDS, _PATIENCES, wholes, pairs, (True, False), _PACES)
    return [
        Policy(pace, patience, inputs_first, hold, whole, overlap)
        for hold, patience, whole, overlap, inputs_first, pace in grid
    ]


def run(words: Words, policy: Policy) -> Candidate[Policy]:
    """The order that a policy makes."""
    rows = construct(words, policy)
    return Candidate(words.makespan(rows), rows, policy)


def tune(words: Words, start: Candidate[Policy], *, steps: int, goal: float) -> Candidate[Policy]:
    """The best order found by changing a policy, mostly by when some passes of a lane are due."""
    count = 3 * len(words.problem.lanes)

    def propose(now: Candidate[Policy], rng: random.Random) -> Candidate[Policy]:
        policy = now.source
        if rng.random() < 0.8:
            shifts = list(policy.shifts or (0.0,) * count)
            for _ in range(rng.choice((1, 1, 2, 3))):
                shifts[rng.randrange(count)] += rng.gauss(0, 0.5)
            return run(words, replace(policy, shifts=tuple(shifts)))
        changed = replace(
            policy,
            pace=rng.choice(_PACES),
            patience=rng.choice(_PATIENCES),
            inputs_first=rng.random() < 0.5,
            hold=rng.choice((0.0, 0.3, 0.7, 1.0)),
            whole=words.has_wholes and rng.random() < 0.5,
        )
        return run(words, changed)

    return search(start, propose, steps=steps, goal=goal, patience=10)
