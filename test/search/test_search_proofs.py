"""Bounds and proofs against all orders, tried one by one."""

from __future__ import annotations

import pytest
from all_orders import Pipeline
from pipelines import TINY, Sizes, draw
from piper.schedules import Homes
from piper.search import Memory, Problem, auto_order, lower_bound
from piper.search.exact import prove
from piper.search.pattern import repeat
from piper.search.scale import Scale
from piper.search.words import Words
from piper.simulate import Costs


def least(problem: Problem) -> float:
    return Pipeline(
        problem.homes,
        problem.microbatches,
        problem.costs,
        problem.latency,
        problem.limits,
        problem.held,
    ).least()


def check(problem: Problem) -> None:
    """The bound is one, the proof is right from a poor start, and the search finds the best."""
    best = least(problem)
    assert lower_bound(problem).time <= best * (1 + 1e-9)
    words = Words(problem)
    start = repeat(words, steps=0, goal=0.0).rows
    assert words.makespan(start) >= best
    proof = prove(words, start, bound=0.0, limit=5)
    assert proof.bound == pytest.approx(best, rel=1e-5)
    if proof.rows is not None:
        assert words.makespan(proof.rows) == pytest.approx(best)
    found = auto_order(
        problem.homes,
        microbatches=problem.microbatches,
        costs=problem.costs,
        latency=problem.latency,
        memory=problem.memory,
        seeds=False,
        effort=0.1,
    )
    assert found.is_optimal
    assert found.makespan == pytest.approx(best)
    assert all(peak <= limit for peak, limit in zip(found.peaks, problem.limits, strict=True))


@pytest.mark.parametrize("seed", range(12))
def test_small_pipelines(seed: int) -> None:
    check(draw(seed, *TINY[seed % len(TINY)]))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(12, 200))
def test_more_small_pipelines(seed: int) -> None:
    check(draw(seed, *TINY[seed % len(TINY)]))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(40))
def test_actions_that_take_no_time(seed: int) -> None:
    check(draw(seed, *TINY[seed % len(TINY)], Sizes(times=(0, 1, 2))))


def test_times_without_a_common_unit_keep_the_bound() -> None:
    """They are rounded down, by a millionth of the makespan each."""
    costs = Costs.per_stage([1.2345678, 2**0.5], I=[1.1, 3**0.5], W=[0.9, 1])
    problem = Problem(Homes.each(2), 3, costs, memory=Memory(2))
    words = Words(problem)
    rows = repeat(words, steps=0, goal=0.0).rows
    assert not Scale.of(problem, words.makespan(rows)).is_exact
    proof = prove(words, rows, bound=0.0, limit=5)
    best = least(problem)
    assert best * (1 - 1e-4) <= proof.bound <= best
    assert proof.rows is not None
    assert words.makespan(proof.rows) == pytest.approx(best, rel=1e-4)


def test_times_with_a_common_unit_are_exact() -> None:
    problem = Problem(Homes.each(2), 2, Costs.uniform(1.2e-3, I=1.8e-3, W=0.6e-3), 0.3e-3)
    scale = Scale.of(problem, 0.01)
    assert scale.is_exact
    assert [scale.units(time) for time in (0.3e-3, 0.6e-3, 1.8e-3)] == [1, 2, 6]


BOUNDS: dict[str, tuple[Problem, float, str]] = {
    "ZBH1, by its first rank": (
        Problem(Homes.each(4), 8, Costs.uniform(), memory=Memory(4)),
        27,
        "the work of rank 0, what comes before it and what comes after",
    ),
    "by the last rank": (
        Problem(Homes.each(4), 8, Costs.uniform(4, I=4, W=2)),
        92,
        "the work of rank 3, what comes before it and what comes after",
    ),
    "one at a time": (
        Problem(Homes.each(2), 3, Costs.uniform(1, I=2, W=3), memory=Memory(1)),
        3 * (1 + 1 + 2 + 2 + 3),
        "the longest chain of actions that wait for each other",
    ),
    "one microbatch, slow messages": (
        Problem(Homes.each(3), 1, Costs.uniform(), 5.0),
        3 + 3 + 1 + 4 * 5,
        "the longest chain of actions that wait for each other",
    ),
    "all but the ends paired": (
        Problem(Homes.each(1), 5, Costs.uniform(pair=2)),
        1 + 4 * 2 + 2,
        "the work of rank 0, what comes before it and what comes after",
    ),
    "cheap wholes": (
        Problem(Homes.each(1), 5, Costs.uniform(B=1.5)),
        5 * 2.5,
        "the work of rank 0, what comes before it and what comes after",
    ),
}


@pytest.mark.parametrize(("problem", "time", "reason"), BOUNDS.values(), ids=BOUNDS)
def test_bounds(problem: Problem, time: float, reason: str) -> None:
    bound = lower_bound(problem)
    assert bound.time == pytest.approx(time)
    assert str(bound) == reason
