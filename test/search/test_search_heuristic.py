"""The parts of the search: whatever they make can run, within the limit, and gets no slower."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pipelines import Sizes, draw
from piper.schedules import Homes, check_progress, validate
from piper.search import Memory, Problem, auto_order, lower_bound
from piper.search.candidate import Candidate, search
from piper.search.construct import Policy, construct
from piper.search.heuristic import find
from piper.search.improve import improve
from piper.search.pattern import repeat
from piper.search.plain import plain
from piper.search.room import Room
from piper.search.tune import policies, run, tune
from piper.search.words import Rows, Words
from piper.simulate import Costs, simulate

SHAPES = [
    (Homes.each(1), 4),
    (Homes.each(4), 6),
    (Homes.v(3, 6), 5),
    (Homes.loop(2, 6), 4),
    (Homes.bidirectional(4, 8), 8),
    (Homes.listed([0, 1, 1, 2, 0]), 4),
]


def make(seed: int, shape: tuple[Homes, int], has_zeros: bool) -> Problem:
    homes, microbatches = shape
    return draw(seed, homes, microbatches, Sizes(times=(0, 1, 2)) if has_zeros else None)


problems = st.builds(make, st.integers(0, 10**6), st.sampled_from(SHAPES), st.booleans())
chosen = st.builds(
    Policy,
    pace=st.sampled_from([0.0, 0.5, 1.0, 2.0]),
    patience=st.sampled_from([0.0, 0.5, 2.0, math.inf]),
    inputs_first=st.booleans(),
    hold=st.sampled_from([0.0, 0.5, 1.0]),
    whole=st.booleans(),
    pairs=st.booleans(),
    shifts=st.lists(st.floats(-2, 2), max_size=3).map(tuple),
)


def check(words: Words, rows: Rows) -> float:
    """Rows are a schedule within the limit; return its makespan."""
    problem = words.problem
    table = words.table(rows)
    validate(table, problem.homes, problem.microbatches)
    check_progress(table)
    limits = zip(words.peaks(rows), problem.limits, strict=True)
    assert all(peak <= limit * (1 + 1e-9) for peak, limit in limits)
    makespan = simulate(table, problem.costs, latency=problem.latency).makespan
    assert words.makespan(rows) == pytest.approx(makespan)
    assert makespan >= lower_bound(problem).time * (1 - 1e-9)
    return makespan


@settings(max_examples=40)
@given(problems, chosen)
def test_every_policy_makes_a_schedule(problem: Problem, policy: Policy) -> None:
    words = Words(problem)
    check(words, construct(words, policy))


@settings(max_examples=20)
@given(problems)
def test_every_search_makes_schedules_that_get_no_slower(problem: Problem) -> None:
    words = Words(problem)
    start = run(words, Policy())
    tuned = tune(words, start, steps=5, goal=0.0)
    assert check(words, tuned.rows) <= start.makespan
    check(words, repeat(words, steps=10, goal=0.0).rows)
    improved = improve(words, tuned.rows, steps=20, goal=0.0)
    assert check(words, improved) <= tuned.makespan * (1 + 1e-9)
    assert check(words, plain(words, improved, steps=50)) <= words.makespan(improved) * (1 + 1e-9)


def test_running_a_pipeline_makes_known_schedules() -> None:
    """As fast as ZBH1 with room for p, and 1F1B where W costs nothing."""
    words = Words(Problem(Homes.each(4), 8, Costs.uniform(), memory=Memory(4)))
    assert min(run(words, policy).makespan for policy in policies(words)) == 27
    words = Words(Problem(Homes.each(3), 6, Costs.uniform(W=0), memory=Memory([3, 2, 1])))
    assert run(words, Policy()).makespan == 6 * 2 + 2 * 2


def test_holding_waits_for_an_input_gradient() -> None:
    """Rank 0 would start a long W just before an I that rank 1 makes comes in."""
    costs = Costs.per_stage([1, 1], I=[1.5, 2.5], W=[4, 0])
    words = Words(Problem(Homes.each(2), 2, costs))
    rows = construct(words, Policy(hold=1.0))
    assert words.table(rows).lines()[0] == "0F0 0F1 0I0 0I1 0W0 0W1"
    rows = construct(words, Policy(hold=0.0))
    assert words.table(rows).lines()[0] == "0F0 0F1 0I0 0W0 0I1 0W1"


def test_policies_only_differ_where_that_has_an_effect() -> None:
    uniform = policies(Words(Problem(Homes.each(2), 4, Costs.uniform())))
    assert not any(policy.whole for policy in uniform)
    assert all(policy.pairs for policy in uniform)
    special = policies(Words(Problem(Homes.each(2), 4, Costs.uniform(B=1.5, pair=2))))
    assert len(special) == len(set(special)) == 4 * len(uniform)


def test_patterns_beat_greed_where_memory_is_short() -> None:
    """Two chunks per rank and room for little more than one microbatch."""
    words = Words(Problem(Homes.v(3, 6), 6, Costs.uniform(), memory=Memory(4)))
    greedy = min(run(words, policy).makespan for policy in policies(words))
    assert repeat(words, steps=1000, goal=0.0).makespan < greedy


def test_room_keeps_a_way_out() -> None:
    """With room for three, a second forward of stage 0 would leave none for stage 3."""
    problem = Problem(Homes.v(2, 4), 3, Costs.uniform(), memory=Memory(2))
    room = Room(problem)
    first = problem.lanes[0]
    assert room.admits(first, 0)
    room.start(first, 0)
    assert not room.admits(first, 1)
    roomy = Room(Problem(Homes.v(2, 4), 3, Costs.uniform(), memory=Memory(3)))
    roomy.start(first, 0)
    assert roomy.admits(first, 1)
    roomy.start(first, 1)
    assert not roomy.admits(first, 2)


def test_room_comes_back() -> None:
    problem = Problem(Homes.each(1), 2, Costs.uniform(), memory=Memory(1))
    room, lane = Room(problem), problem.lanes[0]
    room.start(lane, 0)
    assert not room.admits(lane, 1)
    room.release(lane, 0)
    assert room.admits(lane, 1)


def test_whole_backwards_are_kept_where_halves_do_not_help() -> None:
    found = auto_order(Homes.each(1), microbatches=2)
    assert {action.pass_ for _, _, action in found.table.actions()} == {"F", "B"}
    dear = auto_order(Homes.each(1), microbatches=2, costs=Costs.uniform(B=3))
    assert {action.pass_ for _, _, action in dear.table.actions()} == {"F", "I", "W"}
    assert dear.makespan == 2 * 3


def test_backwards_are_cut_where_that_helps() -> None:
    found = auto_order(Homes.each(4), microbatches=8, memory=4)
    by_rank = [{a.pass_ for row, _, a in found.table.actions() if row == rank} for rank in range(4)]
    assert by_rank[0] == {"F", "B"}
    assert all({"I", "W"} <= passes for passes in by_rank[1:])
    assert found.makespan == 27


def test_search_accepts_late_and_returns_the_best() -> None:
    """A walk on a line, from 0 over a hill to a lower valley."""
    heights = [2.0, 3.0, 4.0, 1.0, 0.0, 5.0]

    def step(now: Candidate[int], rng: random.Random) -> Candidate[int]:
        place = min(5, max(0, now.source + rng.choice((-1, 1))))
        return Candidate(heights[place], [], place)

    start = Candidate(heights[1], [], 1)
    assert search(start, step, steps=500, goal=-1.0, patience=20).source in (0, 4)
    assert search(start, step, steps=500, goal=2.0, patience=20).source == 0
    assert search(start, step, steps=0, goal=-1.0, patience=20) is start


def test_the_best_seed_is_kept() -> None:
    """A goal that is reached ends the search at once."""
    words = Words(Problem(Homes.each(2), 4, Costs.uniform()))
    best = construct(words, Policy())
    found = find(words, goal=words.makespan(best), seeds={"mine": best}, effort=1)
    assert (found.how, found.rows) == ("mine", best)
