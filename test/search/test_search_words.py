"""Words against the simulator: the same rows take the same time and hold the same."""

from __future__ import annotations

import math
from typing import Any

import pytest
from piper.schedules import SCHEDULES, Homes, Table, generate, homes_of, validate
from piper.search.problem import Memory, Problem
from piper.search.words import Words
from piper.simulate import Costs, simulate

COSTS: dict[str, Costs] = {
    "uniform": Costs.uniform(2, I=3, W=1),
    "cheap pairs": Costs.uniform(2, I=3, W=1, pair=4),
    "cheap wholes": Costs.uniform(2, B=3.5, I=3, W=1),
    "dear wholes": Costs.uniform(2, B=6, I=3, W=1),
}


@pytest.mark.parametrize("costs", COSTS.values(), ids=COSTS)
@pytest.mark.parametrize("name", SCHEDULES)
def test_named_schedules_take_what_the_simulator_says(name: str, costs: Costs) -> None:
    table = generate(name, ranks=4, microbatches=8)
    words = Words(Problem(homes_of(name, 4, 8), 8, costs, latency=0.5))
    rows = words.read(table)
    back = words.table(rows)
    validate(back, words.problem.homes, 8)
    found = simulate(back, costs, latency=0.5)
    assert words.makespan(rows) == pytest.approx(found.makespan)
    assert words.peaks(rows) == found.peak_chunks_until_W
    assert words.makespan(rows) <= simulate(table, costs, latency=0.5).makespan


@pytest.mark.parametrize("name", ["ZBH2", "ZBVZeroBubble", "InterleavedZeroBubble"])
def test_reading_a_cut_table_and_writing_it_back_changes_nothing(name: str) -> None:
    table = generate(name, ranks=4, microbatches=8)
    words = Words(Problem(homes_of(name, 4, 8), 8, Costs.uniform()))
    assert words.table(words.read(table)) == table


def test_microbatches_are_numbered_in_order() -> None:
    table = Table.parse(["0F1 0F0 0I0 0B1 0W0"])
    words = Words(Problem(Homes.each(1), 2, Costs.uniform(B=1)))
    assert words.table(words.read(table)).lines() == ("0F0 0F1 0I0 0B1 0W0",)


def refused(problem: Problem, *rows: str) -> bool:
    words = Words(problem)
    return words.makespan(words.read(Table.parse(rows))) == math.inf


def test_refuses_rows_that_wait_for_each_other() -> None:
    problem = Problem(Homes.listed([0, 1, 0]), 1, Costs.uniform())
    assert refused(problem, "0F0 2F0 2B0 0B0", "1B0 1F0")
    assert refused(problem, "2F0 0F0 2B0 0B0", "1F0 1B0")
    assert not refused(problem, "0F0 2F0 2B0 0B0", "1F0 1B0")


def test_refuses_a_weight_before_its_input() -> None:
    assert refused(Problem(Homes.each(1), 1, Costs.uniform()), "0F0 0W0 0I0")


@pytest.mark.parametrize(("limit", "is_refused"), [(3, True), (4, False)])
def test_refuses_rows_that_hold_too_much(limit: float, is_refused: bool) -> None:
    memory = Memory(limit, chunk=2)
    problem = Problem(Homes.each(1), 3, Costs.uniform(), memory=memory)
    assert refused(problem, "0F0 0F1 0I0 0W0 0F2 0B1 0B2") is is_refused
    assert refused(problem, "0F0 0F1 0I0 0F2 0W0 0B1 0B2")  # I releases nothing


def pairs(costs: Costs) -> dict[tuple[int, int], Any]:
    return dict(Words(Problem(Homes.v(2, 4), 4, costs)).pairs)


def test_only_pairs_that_save_time_are_letters() -> None:
    assert not pairs(Costs.uniform())
    assert not pairs(Costs.uniform(pair=3))
    assert len(pairs(Costs.uniform(pair=2.9))) == 8  # two stages with two, on each of two ranks
    assert list(pairs(Costs.per_stage(pair={(0, 3): 2, (1, 1): 4}))) == [(0, 1)]
