"""Tables in time: the golden cases, 130 more against a brute-force model, and invariances."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from piper.schedules import SCHEDULES, Action, Table, generate
from piper.simulate import Costs, Simulation, simulate
from ticks import brute_force

GOLDEN: list[dict[str, Any]] = json.loads(
    (Path(__file__).parents[1] / "schedules" / "golden.json").read_text()
)
MEASURES = (
    "makespan",
    "busy",
    "bubble_makespan",
    "bubble_span",
    "peak_chunks_until_I",
    "peak_chunks_until_W",
)


def golden_name(row: dict[str, Any]) -> str:
    numbers = "-".join(str(row[key]) for key in ("ranks", "microbatches", "F", "I", "W"))
    return f"{row['schedule']}-{row['chunks_per_rank']}-{numbers}"


@pytest.mark.parametrize("row", GOLDEN, ids=golden_name)
def test_equals_golden(row: dict[str, Any]) -> None:
    table = generate(
        row["schedule"],
        ranks=row["ranks"],
        microbatches=row["microbatches"],
        chunks=row["chunks_per_rank"],
    )
    simulation = simulate(table, Costs.uniform(row["F"], I=row["I"], W=row["W"]))
    for measure in MEASURES:
        if row[measure] is not None:
            got = getattr(simulation, measure)
            assert (list(got) if isinstance(got, tuple) else got) == row[measure], measure


def test_golden_is_whole() -> None:
    assert len(GOLDEN) == 200


@dataclass(frozen=True)
class Case:
    """A table with uneven stages, messages that take time and pairs of their own cost."""

    name: str
    table: Table
    times: dict[str, list[int]]
    pair: int | None
    latency: int

    @property
    def costs(self) -> Costs:
        F, I, W, B = (self.times[p] for p in "FIWB")  # noqa: N806
        return Costs.per_stage(F, B=B, I=I, W=W, pair=self.pair)

    def run(self) -> Simulation:
        return simulate(self.table, self.costs, latency=self.latency)


def make_case(name: str, seed: int) -> Case:
    """A case that any machine makes alike from a name and a number."""
    choice = random.Random(f"{name} {seed}")
    schedule = SCHEDULES[name]
    ranks = choice.choice((2, 4) if schedule.even_ranks else (2, 3, 4))
    chunks = schedule.chunks or choice.choice((2, 3))
    least = schedule.min_microbatches(ranks)
    microbatches = 2 * ranks * choice.choice((1, 2)) + choice.choice((0, 1))
    microbatches = max(least, microbatches)
    microbatches -= microbatches % schedule.divisor.of(ranks, microbatches)
    stages = schedule.stages(ranks, chunks)
    times = {p: [choice.randrange(1, 8) for _ in range(stages)] for p in "FIWB"}
    return Case(
        name=f"{name}-{seed}",
        table=generate(name, ranks=ranks, microbatches=microbatches, chunks=chunks),
        times=times,
        pair=choice.choice((None, choice.randrange(1, 12))),
        latency=choice.choice((0, 1, 2, 5)),
    )


CASES = [make_case(name, seed) for name in SCHEDULES for seed in range(13)]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_equals_brute_force(case: Case) -> None:
    simulation = case.run()
    outcome = brute_force(case.table.lines(), case.times, pair=case.pair, latency=case.latency)
    spans = {(a.stage, a.pass_, a.microbatch): span for a, span in simulation.spans.items()}
    assert spans == outcome.spans
    assert simulation.makespan == outcome.makespan
    assert list(simulation.busy_per_rank) == outcome.busy
    assert simulation.busy == max(outcome.busy)
    assert simulation.bubble_makespan == outcome.makespan - max(outcome.busy)
    assert simulation.bubble_span == outcome.longest_span - max(outcome.busy)
    assert list(simulation.peak_chunks_until_I) == outcome.alive_until_i
    assert list(simulation.peak_chunks_until_W) == outcome.alive_until_w


def test_cases_are_of_every_kind() -> None:
    assert len(CASES) >= 100
    assert len({case.table for case in CASES if case.latency}) > 50
    pairs = [case for case in CASES if "OVERLAP" in "".join(case.table.lines()) and case.pair]
    assert len(pairs) >= 5
    assert sum(len(set(case.times["F"])) > 1 for case in CASES) > 100


cases = st.builds(make_case, st.sampled_from(sorted(SCHEDULES)), st.integers(0, 10**6))


@given(cases, st.integers(2, 9))
def test_scaled_costs_scale_the_makespan(case: Case, scale: int) -> None:
    plain = case.run()
    scaled = Costs.per_stage(
        *([scale * t for t in case.times["F"]],),
        B=[scale * t for t in case.times["B"]],
        I=[scale * t for t in case.times["I"]],
        W=[scale * t for t in case.times["W"]],
        pair=case.pair and scale * case.pair,
    )
    simulation = simulate(case.table, scaled, latency=scale * case.latency)
    assert simulation.makespan == scale * plain.makespan
    assert simulation.bubble_span == scale * plain.bubble_span
    assert simulation.peak_chunks_until_W == plain.peak_chunks_until_W


@given(cases, st.integers(1, 5))
def test_slower_messages_never_help(case: Case, more: int) -> None:
    slower = simulate(case.table, case.costs, latency=case.latency + more)
    before = case.run()
    assert slower.makespan >= before.makespan
    assert all(slower.spans[action][1] >= end for action, (_, end) in before.spans.items())


@given(cases)
def test_the_critical_path_fills_the_makespan(case: Case) -> None:
    simulation = case.run()
    path = simulation.critical_path
    assert sum(step.end - step.start for step in path) == simulation.makespan
    assert [step.start for step in path] == [0, *(step.end for step in path[:-1])]
    ranks = {step.rank for step in path}
    assert ranks <= {None, *range(len(case.table.rows))}


def test_the_critical_path_is_by_name() -> None:
    table = Table.parse("0F0 0B0\n1F0 1B0")
    simulation = simulate(table, Costs.uniform(1, B=2), latency=3)
    assert [(step.name, step.rank) for step in simulation.critical_path] == [
        ("0F0", 0),
        ("0F0 to rank 1", None),
        ("1F0", 1),
        ("1B0", 1),
        ("1B0 to rank 0", None),
        ("0B0", 0),
    ]
    assert simulation.makespan == 12


def test_the_same_rank_needs_no_message() -> None:
    table = Table.parse("0F0 1F0 1I0 0I0 1W0 0W0")
    assert simulate(table, Costs.uniform(), latency=100).makespan == 6


def test_a_pair_is_one_block_that_releases_both_at_its_end() -> None:
    table = Table.parse("0F0 0F1 (0F2;0B0)OVERLAP_F_B 0B1 0B2\n1F0 1B0 1F1 1B1 1F2 1B2")
    simulation = simulate(table, Costs.uniform(1, B=2, pair=2.5))
    assert simulation.spans[Action(0, "F", 2)] == simulation.spans[Action(0, "B", 0)] == (4, 6.5)
    assert simulation.spans[Action(1, "F", 2)][0] == 7  # after 1B1 on its rank
    assert simulation.peak_chunks_until_I == (3, 1)


def test_communication_and_idle_cells_take_no_time() -> None:
    plain = Table.parse("0F0 0B0\n1F0 1B0")
    noisy = Table.parse("0UNSHARD 0F0 0SEND_F0 . . 0RECV_B0 0B0\n. 1RECV_F0 1F0 1B0 1SEND_B0")
    costs = Costs.uniform()
    assert simulate(noisy, costs).spans == simulate(plain, costs).spans


def test_a_missing_input_is_named_and_marked() -> None:
    with pytest.raises(
        ValueError, match=r"rank 1, step 0: 1F0 waits for 0F0, which never runs"
    ) as e:
        simulate(Table.parse("0F1\n1F0"), Costs.uniform())
    assert ">1F0<" in str(e.value)
    with pytest.raises(ValueError, match=r"0B0 waits for 1B0 or 1I0, which never runs"):
        simulate(Table.parse("0F0 0B0\n1F0"), Costs.uniform())
    with pytest.raises(ValueError, match=r"0W0 waits for 0I0, which never runs"):
        simulate(Table.parse("0F0 0W0"), Costs.uniform())


def test_an_action_that_is_there_twice_is_marked() -> None:
    with pytest.raises(ValueError, match=r"rank 0, step 1: 0F0 is run twice"):
        simulate(Table.parse("0F0 0F0"), Costs.uniform())


@pytest.mark.parametrize("latency", [0, 2])
def test_rows_that_wait_for_each_other_are_shown(latency: float) -> None:
    with pytest.raises(ValueError, match=r"wait for each other in a circle:") as caught:
        simulate(Table.parse("0F0 0B0 0F1 0B1\n1F0 1F1 1B0 1B1"), Costs.uniform(), latency=latency)
    assert "rank 0, step 1: 0B0 waits for 1B0" in str(caught.value)
    assert ">0B0<" in str(caught.value)


def test_a_circle_is_shown_in_the_table_as_given() -> None:
    with pytest.raises(ValueError, match="rank 0, step 2: 0B0 waits for 1B0") as caught:
        simulate(Table.parse("0F0 0SEND_F0 0B0 0F1 0B1\n1F0 1F1 1B0 1B1"), Costs.uniform())
    assert "0SEND_F0 >0B0<" in str(caught.value)


@pytest.mark.parametrize("latency", [-1.0, float("nan"), float("inf")])
def test_latency_is_finite_and_not_negative(latency: float) -> None:
    with pytest.raises(ValueError, match=f"latency must be finite and at least 0, got {latency}"):
        simulate(Table.parse("0F0"), Costs.uniform(), latency=latency)


def test_costs_are_of_as_many_stages_as_there_are() -> None:
    table = Table.parse("0F0 0B0\n1F0 1B0")
    with pytest.raises(ValueError, match=r"costs of F must be of 2 stages, got \(1, 2, 3\)"):
        simulate(table, Costs.per_stage([1, 2, 3]))
    assert simulate(table, Costs.per_stage([1, 2])).makespan == 7


def test_communication_alone_is_not_a_table() -> None:
    with pytest.raises(ValueError, match="must have at least one action, got none"):
        simulate(Table.parse("0UNSHARD"), Costs.uniform())
