"""The order that a search finds: proved optimal where that can be, never behind a named one."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from importlib import util
from pathlib import Path
from typing import Any

import piper
import pytest
from pipelines import show
from piper.schedules import Homes, Placement, homes_of, validate
from piper.search import AutoOrder, Memory, Problem, auto_order
from piper.search.seeds import named_tables
from piper.simulate import Costs, simulate


def load_benchmark() -> Any:
    """The settings that the table in the documentation is made of."""
    path = Path(__file__).parents[2] / "benchmarks" / "auto_order.py"
    spec = util.spec_from_file_location("auto_order_benchmark", path)
    assert spec is not None
    assert spec.loader is not None
    module = util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


BENCHMARK = load_benchmark()
PAGE = Path(__file__).parents[2] / "docs" / "search.md"
GOLDEN = [
    pytest.param(setting, id=f"{'-'.join(map(str, setting.size))}-{times}-{setting.memory}")
    for times, setting in BENCHMARK.golden()
]
TIMES = [(1, 1, 1), (4, 4, 2), (2, 3, 1), (3, 2, 1)]
"""F, I and W of the golden file."""


def check(found: AutoOrder, homes: Homes, microbatches: int, costs: Costs, latency: float) -> None:
    """It is a schedule, and what it says of itself is what the simulator says."""
    validate(found.table, homes, microbatches)
    run = simulate(found.table, costs, latency=latency)
    assert run.makespan == found.makespan
    assert run.peak_chunks_until_W == found.peaks
    assert found.bound <= found.makespan * (1 + 1e-9)
    assert found.table == found.table.without_idle()


def room(placement: Placement, ranks: int) -> list[int | None]:
    """Little memory, that of a known schedule, a chunk more, and no limit."""
    if placement == "bidirectional":
        return [ranks, ranks + 1, None]
    chunks = 1 if placement == "each" else 2
    little = (ranks * chunks + 1) // 2 + chunks - 1
    return [*sorted({little, ranks * chunks, ranks * chunks + 1}), None]


def small() -> Iterator[Any]:
    """Every placement, cost and memory up to 4 ranks and 8 microbatches.

    Those are slow that neither the bound nor a very small proof decides.
    """
    placements: tuple[Placement, ...] = ("each", "loop", "v", "bidirectional")
    for ranks, microbatches in [(2, 2), (2, 4), (2, 8), (3, 3), (3, 6), (4, 4), (4, 8)]:
        for placement in placements:
            if placement == "bidirectional" and ranks % 2:
                continue
            for times in TIMES:
                for memory in room(placement, ranks):
                    case = (placement, ranks, microbatches, times, memory)
                    is_roomy = memory is None or (placement == "each" and memory >= ranks)
                    is_fast = is_roomy or (microbatches == 2 and times == TIMES[1])
                    marks = () if is_fast else pytest.mark.slow
                    yield pytest.param(*case, id="-".join(map(str, case)), marks=marks)


@pytest.mark.parametrize(("placement", "ranks", "microbatches", "times", "memory"), list(small()))
def test_small_orders_are_optimal_without_seeds(
    placement: Placement,
    ranks: int,
    microbatches: int,
    times: tuple[int, int, int],
    memory: int | None,
) -> None:
    """The makespan is what is proved to be the least."""
    stages = ranks if placement in ("each", "bidirectional") else 2 * ranks
    homes = Homes.named(placement, ranks=ranks, stages=stages, microbatches=microbatches)
    costs = Costs.uniform(times[0], I=times[1], W=times[2])
    found = auto_order(
        homes, microbatches=microbatches, costs=costs, memory=memory, seeds=False, effort=8
    )
    check(found, homes, microbatches, costs, 0.0)
    assert found.is_optimal, found
    assert found.gap == 0
    assert memory is None or max(found.peaks) <= memory


def check_golden(setting: Any) -> None:
    found = setting.auto(effort=0.1)
    check(found, setting.size.homes, setting.size.microbatches, setting.costs, setting.latency)
    assert max(found.peaks) <= setting.memory
    assert found.makespan <= setting.named()[0]


@pytest.mark.parametrize("setting", GOLDEN[::16])
def test_no_named_schedule_is_faster_in_the_same_memory(setting: Any) -> None:
    check_golden(setting)


@pytest.mark.slow
@pytest.mark.parametrize("setting", GOLDEN)
def test_no_golden_schedule_is_faster_in_the_same_memory(setting: Any) -> None:
    check_golden(setting)


def test_golden_settings_are_all_there() -> None:
    settings: list[Any] = [param.values[0] for param in GOLDEN]
    assert len({setting.size for setting in settings}) == 25
    assert len(settings) == 240


@pytest.mark.parametrize("name", BENCHMARK.UNEVEN)
def test_it_is_faster_than_every_named_schedule_where_stages_or_messages_are_uneven(
    name: str,
) -> None:
    """In the same memory, and not because it starts from one of them."""
    setting = BENCHMARK.UNEVEN[name]
    found = setting.auto(effort=0.2, seeds=False)
    check(found, setting.size.homes, setting.size.microbatches, setting.costs, setting.latency)
    assert max(found.peaks) <= setting.memory
    assert found.makespan < setting.named()[0]
    assert found.is_optimal


@pytest.mark.slow
def test_documentation_shows_what_the_benchmark_prints(capsys: pytest.CaptureFixture[str]) -> None:
    BENCHMARK.print_uneven(0.2)
    assert capsys.readouterr().out in PAGE.read_text()


@pytest.mark.slow
@pytest.mark.parametrize(("placement", "times"), BENCHMARK.golden_groups())
def test_documentation_shows_what_the_benchmark_finds(placement: Placement, times: str) -> None:
    """Row by row; at this effort each search ends after some seconds of work."""
    assert BENCHMARK.golden_row(placement, times, 0.2) in PAGE.read_text().splitlines()


def test_documentation_has_a_row_for_all_golden_settings() -> None:
    lines = PAGE.read_text().splitlines()
    start = lines.index(
        "| placement | F, I, W | settings | slower | as fast | faster | most | best possible "
        "| largest gap |"
    )
    wanted = [
        f"| {placement} | {times} | {len(settings)} |"
        for (placement, times), settings in BENCHMARK.golden_groups().items()
    ]
    rows = lines[start + 2 : start + 2 + len(wanted)]
    assert ["|".join(row.split("|")[:4]) + "|" for row in rows] == wanted
    assert not lines[start + 2 + len(wanted)]


def test_limits_may_differ_by_rank() -> None:
    """In the memory that 1F1B takes on each rank, faster than it because its backwards are cut."""
    found = auto_order(Homes.each(4), microbatches=8, memory=(4, 3, 2, 1), effort=0.2)
    assert found.peaks == (4, 3, 2, 1)
    assert found.makespan == 30
    assert found.how == "1F1B with its backwards cut"
    assert found.is_optimal


def test_chunks_may_differ_by_stage() -> None:
    memory = Memory(12e9, chunk=[3e9, 3e9, 3e9, 5e9])
    found = auto_order(Homes.each(4), microbatches=8, memory=memory, effort=0.2)
    assert found.peaks == (12e9, 12e9, 12e9, 10e9)
    assert found.is_optimal


def test_costs_are_even_unless_given() -> None:
    even = auto_order(Homes.each(3), microbatches=6, costs=Costs.uniform(), memory=3)
    assert auto_order(Homes.each(3), microbatches=6, memory=3) == even


def test_seeds_are_the_schedules_of_the_placement() -> None:
    def names(homes: Homes, microbatches: int = 8) -> list[str]:
        return list(named_tables(Problem(homes, microbatches, Costs.uniform())))

    assert names(Homes.each(4)) == ["GPipe", "1F1B", "ZBH1", "ZBH2"]
    assert names(Homes.v(4, 8)) == ["ZBVZeroBubble", "DualPipeV"]
    assert names(Homes.v(4, 8), microbatches=7) == ["ZBVZeroBubble"]
    assert names(Homes.bidirectional(4, 8)) == ["DualPipe"]
    assert names(Homes.listed([0, 0, 1])) == []
    renamed = Problem(Homes.listed([2, 0, 1]), 4, Costs.uniform())
    for table in named_tables(renamed).values():
        validate(table, renamed.homes, 4)


def test_a_seed_that_cannot_be_beaten_is_taken() -> None:
    found = auto_order(Homes.each(4), microbatches=8, memory=4)
    assert found.how == "ZBH1"
    assert "ZBH1" not in auto_order(Homes.each(4), microbatches=8, memory=4, seeds=False).how


def test_it_says_how_good_it_is() -> None:
    text = str(auto_order(Homes.each(2), microbatches=2, memory=2))
    lines = text.splitlines()
    assert lines[0].startswith("makespan 7, found by ")
    assert lines[1] == (
        "no order takes less than 7, which is the best possible: the work of rank 0, what comes "
        "before it and what comes after"
    )
    assert lines[2] == "held at most per rank: 2 2"
    assert lines[4].startswith("rank 0  0F0  0F1")


def test_it_says_how_good_it_may_not_be() -> None:
    """Without the effort to prove more."""
    homes = homes_of("ZBVZeroBubble", 4, 8)
    costs = Costs.uniform(2, I=3, W=1)
    found = auto_order(homes, microbatches=8, costs=costs, memory=8, effort=1e-3)
    assert not found.is_optimal
    assert found.gap == found.makespan / found.bound - 1 > 0
    assert f"no order takes less than 102, a gap of {found.gap:.1%}: the work" in str(found)


def test_more_effort_finds_more() -> None:
    homes = homes_of("ZBVZeroBubble", 4, 8)
    costs = Costs.uniform(4, I=4, W=2)
    little, more = (
        auto_order(homes, microbatches=8, costs=costs, memory=9, seeds=False, effort=effort)
        for effort in (1e-3, 0.3)
    )
    assert more.makespan < little.makespan


def test_every_process_finds_the_same() -> None:
    other = subprocess.run(
        [sys.executable, "-c", "from pipelines import show; print(show(), end='')"],
        cwd=Path(__file__).parent,
        env={**os.environ, "PYTHONHASHSEED": "7"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert other.stdout == show()
    assert other.stdout.count("makespan") == 2


def strategy(**options: Any) -> piper.Strategy:
    """Four stages and eight microbatches."""
    directives = [piper.place(stages=4), piper.split(microbatches=8)]
    return piper.Strategy(mesh={"pp": 4}, directives=[*directives, piper.order("Auto", **options)])


def test_a_strategy_prints_the_table_found() -> None:
    made = strategy(memory=4)
    found = auto_order(Homes.each(4), microbatches=8, memory=4)
    assert made.table == found.table
    assert found.table.lines()[0] in str(made)
    assert strategy(memory=4).table == made.table


def test_a_strategy_is_ordered_for_its_placement_and_costs() -> None:
    costs = Costs.per_stage([2, 2, 2, 3])
    directives = [
        piper.place(stages=4, coordinates="v"),
        piper.split(microbatches=4),
        piper.order("auto", costs=costs, latency=0.5, memory=4, effort=0.1),
    ]
    made = piper.Strategy(mesh={"pp": 2}, directives=directives)
    found = auto_order(
        Homes.v(2, 4), microbatches=4, costs=costs, latency=0.5, memory=4, effort=0.1
    )
    assert made.table == found.table


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"memory": 0.5}, "memory limit of rank 0 must be at least 1, .* got 0.5"),
        ({"memory": -1}, "memory limit must be above 0, got -1"),
        ({"memory": Memory(10.0, chunk=[1.0, 2.0])}, "memory chunk must be .* 4 stages, got 2"),
        ({"costs": Costs.per_stage(F=[1, 2])}, "costs of F must be .* each of 4 stages, got 2"),
        ({"effort": 0}, "effort must be finite and above 0, got 0"),
        ({"latency": -1.0}, r"latency must be finite and at least 0, got -1\.0"),
    ],
)
def test_options_that_do_not_fit(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        strategy(**options)


def test_options_of_a_search_need_one() -> None:
    with pytest.raises(TypeError, match=r"options memory, effort are for a search.*'1F1B'"):
        piper.order("1F1B", memory=3, effort=2)


def test_unknown_options_are_refused() -> None:
    with pytest.raises(TypeError, match="unexpected keyword argument 'limit'"):
        strategy(limit=4)
