"""Orders that repeat one pattern for every microbatch, which suits little memory.

Each pass of each lane has an offset; microbatch k has it k periods later, and a rank runs its
passes in that order. So how long chunks live, and with it how much is held, follows from the
offsets alone (Qi et al., 2024, "Pipeline parallelism with controllable memory",
arXiv:2405.15362). Only the order counts: it starts and ends as fast as it can.
"""

from __future__ import annotations

import math
import random

from piper.search.candidate import Candidate, search
from piper.search.construct import period
from piper.search.problem import Problem
from piper.search.words import Words

__all__ = ["repeat"]

Numbers = tuple[float, ...]
"""Offsets of F, I or B, and W of each lane; or what a shape is made of, see `_offsets`."""

_DENSITIES = (2.0, 1.5, 1.0, 0.7, 0.5, 0.35, 0.25, 0.15, 0.1, 0.03, 0.01)


def repeat(words: Words, *, steps: int, goal: float) -> Candidate[Numbers]:
    """The best repeating order found: half of the steps among shapes, half among offsets.

    It starts from microbatches that never wait, or wait everywhere alike, or are over so soon that
    the next one has not started, which every limit allows.
    """
    problem = words.problem
    starts = [_shaped(words, _even(problem, density)) for density in (*_DENSITIES, 0.0)]

    def reshape(now: Candidate[Numbers], rng: random.Random) -> Candidate[Numbers]:
        return _shaped(words, _reshaped(problem, now.source, rng))

    def move(now: Candidate[Numbers], rng: random.Random) -> Candidate[Numbers]:
        return _candidate(words, _moved(problem, now.source, rng))

    start = min(starts, key=lambda candidate: candidate.makespan)
    shaped = search(start, reshape, steps=steps // 2, goal=goal, patience=30)
    free = Candidate(shaped.makespan, shaped.rows, _offsets(problem, shaped.source))
    return search(free, move, steps=steps // 2, goal=goal, patience=50)


def _even(problem: Problem, density: float) -> Numbers:
    """A shape in which every stage waits `density` times what it takes, and W never."""
    turns = 1 + max(problem.turns)
    return (density,) * (2 * turns) + (0.0,) * (turns + 1)


def _reshaped(problem: Problem, shape: Numbers, rng: random.Random) -> Numbers:
    """Some numbers of a shape changed, or all times of F and I by the same factor."""
    changed = list(shape)
    paces = 2 * (1 + max(problem.turns))
    if rng.random() < 0.2:
        factor = math.exp(rng.gauss(0, 0.2))
        return tuple(number * factor for number in shape[:paces]) + shape[paces:]
    for _ in range(rng.choice((1, 1, 2, 3))):
        n = rng.randrange(len(changed))
        changed[n] = max(0.0, changed[n] + rng.gauss(0, 0.5 if n < paces else 0.3))
    return tuple(changed)


def _offsets(problem: Problem, shape: Numbers) -> Numbers:
    """The offsets of a shape.

    A shape says of the first, second, ... stage of all ranks how many times its F it takes until
    the next stage starts, the same of I, and how many periods W waits; and last, how many periods
    pass between the last F and the first I.
    """
    turns = 1 + max(problem.turns)
    work = period(problem)
    offsets = [0.0] * (3 * len(problem.lanes))
    for group, microbatches in enumerate(problem.groups):
        mine = [(n, x) for n, x in enumerate(problem.lanes) if x.microbatches == microbatches]
        mine.sort(key=lambda lane: lane[1].stage)
        now = work * group / len(problem.groups)
        for n, lane in mine:
            offsets[3 * n] = now
            now += shape[problem.turns[n]] * problem.f[lane.stage]
        now += shape[-1] * work
        for n, lane in reversed(mine):
            turn = problem.turns[n]
            offsets[3 * n + 1] = now
            offsets[3 * n + 2] = now + problem.i[lane.stage] + shape[2 * turns + turn] * work
            now += shape[turns + turn] * problem.i[lane.stage]
    return tuple(offsets)


def _shaped(words: Words, shape: Numbers) -> Candidate[Numbers]:
    """A candidate that is made from a shape."""
    made = _candidate(words, _offsets(words.problem, shape))
    return Candidate(made.makespan, made.rows, shape)


def _moved(problem: Problem, offsets: Numbers, rng: random.Random) -> Numbers:
    """Some offsets moved: single ones, or everything behind some stage, or its backwards."""
    moved = list(offsets)
    unit = 0.4 * period(problem)
    kind = rng.random()
    if kind < 0.6:
        for _ in range(rng.choice((1, 1, 2))):
            moved[rng.randrange(len(moved))] += rng.gauss(0, unit)
        return tuple(moved)
    shift, stage, is_forward = rng.gauss(0, unit), rng.randrange(problem.stages), kind < 0.8
    for n, lane in enumerate(problem.lanes):
        if is_forward and lane.stage >= stage:
            moved[3 * n] += shift
        if lane.stage >= stage if is_forward else lane.stage <= stage:
            moved[3 * n + 1] += shift
            moved[3 * n + 2] += shift
    return tuple(moved)


def _candidate(words: Words, offsets: Numbers) -> Candidate[Numbers]:
    rows = _rows(words, offsets)
    return Candidate(words.makespan(rows), rows, offsets)


def _rows(words: Words, offsets: Numbers) -> list[list[int]]:
    """Each rank's passes of all microbatches by when they come, and at once by what they wait for."""
    problem = words.problem
    step = period(problem)
    keyed: list[list[tuple[float, int, int, int]]] = [[] for _ in range(problem.ranks)]
    for n, lane in enumerate(problem.lanes):
        turns = (lane.stage, 2 * problem.stages - lane.stage, 3 * problem.stages)
        for letter, offset, turn in zip(words.passes(n), offsets[3 * n :], turns, strict=False):
            keyed[lane.rank] += [
                (offset + k * step, k, turn, letter) for k in range(len(lane.microbatches))
            ]
    return [[key[-1] for key in sorted(row)] for row in keyed]
