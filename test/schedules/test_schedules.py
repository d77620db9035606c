"""The named schedules: valid for all sizes, with the bubble and the memory of the closed forms."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from piper.schedules import (
    SCHEDULES,
    Pair,
    Schedule,
    Table,
    check_progress,
    generate,
    homes_of,
    schedule_name,
    validate,
    with_idle,
)
from simulate import measure

GOLDEN: list[dict[str, Any]] = json.loads((Path(__file__).parent / "golden.json").read_text())

names = st.sampled_from(sorted(SCHEDULES))
rank_counts = st.integers(1, 8)
microbatch_counts = st.integers(1, 24)
costs = st.integers(1, 9)


def chunk_counts(schedule: Schedule) -> st.SearchStrategy[int]:
    return st.integers(2, 4) if schedule.chunks is None else st.just(schedule.chunks)


def is_defined(schedule: Schedule, ranks: int, microbatches: int, chunks: int) -> bool:
    try:
        schedule.check(ranks, microbatches, chunks)
    except ValueError:
        return False
    return True


@st.composite
def sizes(draw: st.DrawFn) -> tuple[str, int, int, int]:
    """Name, ranks, microbatches and chunks that a schedule is defined for."""
    chosen = draw(names)
    schedule = SCHEDULES[chosen]
    chunks = draw(chunk_counts(schedule))
    ranks = draw(rank_counts) * (2 if schedule.even_ranks else 1)
    least = schedule.min_microbatches(ranks)
    microbatches = draw(st.integers(least, least + 24))
    assume(is_defined(schedule, ranks, microbatches, chunks))
    return chosen, ranks, microbatches, chunks


def make(name: str, ranks: int, microbatches: int, chunks: int) -> Table:
    return generate(name, ranks=ranks, microbatches=microbatches, chunks=chunks)


@given(sizes())
def test_is_valid(size: tuple[str, int, int, int]) -> None:
    name, ranks, microbatches, chunks = size
    table = make(*size)
    homes = homes_of(name, ranks, microbatches, chunks)
    validate(table, homes, microbatches)
    check_progress(table)
    assert table == table.without_idle()
    assert homes.ranks == ranks
    assert homes.chunks == chunks


@pytest.mark.parametrize("row", GOLDEN, ids=lambda row: f"{row['schedule']}-{row['ranks']}")
def test_equals_golden(row: dict[str, Any]) -> None:
    size = row["schedule"], row["ranks"], row["microbatches"], row["chunks_per_rank"]
    found = measure(make(*size), row["F"], row["I"], row["W"])
    fields = [
        "makespan",
        "busy",
        "bubble_makespan",
        "bubble_span",
        "peak_chunks_until_I",
        "peak_chunks_until_W",
    ]
    known = {field: row[field] for field in fields if row[field] is not None}
    assert len(known) == (4 if row["schedule"] == "DualPipe" else 6)
    for field, value in known.items():
        got = getattr(found, field)
        assert (list(got) if isinstance(got, tuple) else got) == value, field


def test_golden_has_every_schedule() -> None:
    assert len(GOLDEN) == 200
    assert {row["schedule"] for row in GOLDEN} == SCHEDULES.keys() - {"LoopedBFS"}


@given(st.sampled_from(["GPipe", "1F1B"]), rank_counts, microbatch_counts, costs, costs)
def test_bubble_of_one_chunk(name: str, p: int, m: int, f: int, w: int) -> None:
    assert measure(make(name, p, m, 1), f, f, w).bubble_makespan == (p - 1) * (2 * f + w)


@given(rank_counts, st.integers(1, 4), st.integers(2, 4), costs, costs, costs)
def test_bubble_of_interleaved(p: int, k: int, v: int, f: int, i: int, w: int) -> None:
    found = measure(make("Interleaved1F1B", p, k * p, v), f, i, w)
    assert found.bubble_makespan == (p - 1) * (f + i + w)
    first = [2 * (p - r - 1) + (v - 1) * p + 1 for r in range(p)]
    assert found.peak_chunks_until_I == tuple(min(peak, v * k * p) for peak in first)


@given(rank_counts, st.integers(0, 9), st.integers(2, 4), costs, costs, costs)
def test_looped_bfs(p: int, more: int, v: int, f: int, i: int, w: int) -> None:
    m = p + more
    found = measure(make("LoopedBFS", p, m, v), f, i, w)
    assert found.bubble_makespan == (p - 1) * (f + i + w)
    assert found.peak_chunks_until_I == (v * m,) * p


@given(rank_counts, microbatch_counts)
def test_peaks_of_one_chunk(p: int, m: int) -> None:
    assert measure(make("GPipe", p, m, 1), 1, 1, 1).peak_chunks_until_I == (m,) * p
    one = measure(make("1F1B", p, m, 1), 1, 1, 1)
    assert one.peak_chunks_until_I == tuple(min(m, p - r) for r in range(p))


@given(rank_counts, st.integers(0, 9), costs, costs, costs)
def test_zbh1(p: int, more: int, f: int, i: int, w: int) -> None:
    assume(w <= min(f, i))
    found = measure(make("ZBH1", p, p + more, 1), f, i, w)
    assert found.bubble_makespan == (p - 1) * (f + i - w)
    assert found.peak_chunks_until_W == (p,) * p


@given(rank_counts, st.integers(0, 9), costs, costs, costs)
def test_zbh2(p: int, more: int, f: int, i: int, w: int) -> None:
    assume(w <= min(f, i))
    found = measure(make("ZBH2", p, 2 * p - 1 + more, 1), f, i, w)
    assert found.bubble_span == (p - 1) * (f + i - 2 * w)
    assert found.bubble_makespan == (p - 1) * max(f, f + i - 2 * w)
    assert found.peak_chunks_until_W == (2 * p - 1,) * p


@given(rank_counts, st.integers(1, 4), st.integers(2, 4), costs, costs, costs)
def test_interleaved_zero_bubble(p: int, k: int, v: int, f: int, i: int, w: int) -> None:
    assume(w <= min(f, i))
    found = measure(make("InterleavedZeroBubble", p, k * p, v), f, i, w)
    assert found.bubble_makespan == (p - 1) * (f + i - w)
    if v == 2:
        assert max(found.peak_chunks_until_W) == 2 * p


@given(rank_counts, st.integers(0, 9), costs, costs, costs)
def test_zbv(p: int, more: int, f: int, i: int, w: int) -> None:
    assume(i >= f >= w)
    found = measure(make("ZBVZeroBubble", p, 2 * p - 1 + more, 2), f, i, w)
    assert found.bubble_span == 2 * (p - 1) * (i - w)
    assert max(found.peak_chunks_until_W) == 2 * p


@given(rank_counts, st.integers(0, 9), costs, costs)
def test_dual_pipe_v(p: int, more: int, f: int, w: int) -> None:
    assume(f >= w)
    found = measure(make("DualPipeV", p, 2 * p + more, 2), f, f, w)
    pair, b = 2 * f + w, f + w
    assert found.bubble_makespan == (p - 1) * (pair + b - 3 * w)
    assert max(found.peak_chunks_until_I) == min(2 * p + 1, 2 * (2 * p + more))


@given(st.integers(1, 4), st.integers(0, 9), costs, costs)
def test_dual_pipe(half: int, more: int, f: int, w: int) -> None:
    assume(f >= w)
    p = 2 * half
    found = measure(make("DualPipe", p, 2 * (p + more), 2), f, f, w)
    pair, b = 2 * f + w, f + w
    assert found.bubble_makespan == (half - 1) * (pair + b - 3 * w)
    assert max(found.peak_chunks_until_I) == p + 1


@pytest.mark.parametrize("name", ["ZBH1", "DualPipeV"])
def test_large_tables_are_checked(name: str) -> None:
    table = generate(name, ranks=64, microbatches=512)
    validate(table, homes_of(name, 64, 512), 512)
    check_progress(table)


@given(sizes())
def test_only_dual_pipes_overlap(size: tuple[str, int, int, int]) -> None:
    has_pairs = any(isinstance(cell, Pair) for row in make(*size).rows for cell in row)
    assert has_pairs == size[0].startswith("DualPipe")


@given(sizes())
def test_weights_of_a_stage_run_in_order(size: tuple[str, int, int, int]) -> None:
    last: dict[tuple[int, int], int] = {}
    for row, _, action in make(*size).actions():
        if action.pass_ == "W":
            assert action.microbatch > last.get((row, action.stage), -1)
            last[row, action.stage] = action.microbatch


@pytest.mark.parametrize("name", SCHEDULES)
def test_docstring_shows_the_table(name: str) -> None:
    doc = SCHEDULES[name].function.__doc__ or ""
    said = re.search(r"ranks=(\d+), microbatches=(\d+)(?:, chunks=(\d+))?", doc)
    assert said is not None
    chunks = None if said[3] is None else int(said[3])
    table = generate(name, ranks=int(said[1]), microbatches=int(said[2]), chunks=chunks)
    shown = [line[4:] for line in doc.split("```")[1].splitlines()[1:-1]]
    assert with_idle(table).format(width=96).splitlines() == shown


@pytest.mark.parametrize("name", SCHEDULES)
def test_docstring_gives_the_paper(name: str) -> None:
    assert re.search(r"arXiv:\d{4}\.\d{5}", SCHEDULES[name].function.__doc__ or "")


@pytest.mark.parametrize("name", SCHEDULES)
def test_names_ignore_case(name: str) -> None:
    assert schedule_name(name.lower()) == schedule_name(name.upper()) == name


def test_unknown_name_suggests_the_nearest() -> None:
    with pytest.raises(ValueError, match=r"unknown schedule 'g-pipe', did you mean 'GPipe'\?"):
        generate("g-pipe", ranks=2, microbatches=2)
    with pytest.raises(ValueError, match="unknown schedule 'zzz', known are GPipe, 1F1B, Interl"):
        generate("zzz", ranks=2, microbatches=2)


REFUSED: dict[str, tuple[str, int, int, int | None, str]] = {
    "ranks": ("1F1B", 0, 1, None, "1F1B needs ranks >= 1, got 0"),
    "microbatches": ("GPipe", 1, 0, None, "GPipe needs microbatches >= 1, got 0"),
    "chunks": ("Interleaved1F1B", 2, 4, 0, "Interleaved1F1B needs chunks >= 1, got 0"),
    "one chunk": ("LoopedBFS", 2, 4, 1, "LoopedBFS needs chunks >= 2, got 1"),
    "fixed": ("ZBVZeroBubble", 2, 4, 3, "ZBVZeroBubble needs chunks == 2, got 3"),
    "two chunks": ("1F1B", 2, 4, 2, "1F1B needs chunks == 1, got 2"),
    "odd ranks": ("DualPipe", 3, 8, None, "DualPipe needs an even number of ranks, got 3"),
    "odd microbatches": (
        "DualPipe",
        2,
        9,
        None,
        "DualPipe needs microbatches to be a multiple of 2, such as 8 or 10, got 9",
    ),
    "few for DualPipe": (
        "DualPipe",
        4,
        6,
        None,
        r"DualPipe needs microbatches >= 2 \* ranks = 8, got 6",
    ),
    "few for DualPipeV": (
        "DualPipeV",
        4,
        4,
        None,
        r"DualPipeV needs microbatches >= 2 \* ranks = 8, got 4",
    ),
    "rounds": (
        "Interleaved1F1B",
        4,
        13,
        3,
        "Interleaved1F1B needs .* a multiple of microbatches // ranks = 3, such as 12 or 15, got 13",
    ),
    "rounds of zero bubble": (
        "InterleavedZeroBubble",
        2,
        5,
        2,
        "InterleavedZeroBubble needs .* ranks = 2, such as 4 or 6, got 5",
    ),
}


@pytest.mark.parametrize(
    ("name", "ranks", "microbatches", "chunks", "message"), REFUSED.values(), ids=REFUSED
)
def test_refuses_numbers(
    name: str, ranks: int, microbatches: int, chunks: int | None, message: str
) -> None:
    with pytest.raises(ValueError, match=f"^{message}$"):
        generate(name, ranks=ranks, microbatches=microbatches, chunks=chunks)
    with pytest.raises(ValueError, match=f"^{message}$"):
        homes_of(name, ranks, microbatches, chunks)


@given(names, rank_counts, microbatch_counts)
def test_the_formula_of_a_divisor_is_its_number(name: str, ranks: int, microbatches: int) -> None:
    divisor = SCHEDULES[name].divisor
    said = eval(divisor.formula, {"ranks": ranks, "microbatches": microbatches})
    assert divisor.of(ranks, microbatches) == max(1, said)


@pytest.mark.parametrize("name", SCHEDULES)
@pytest.mark.parametrize("what", ["ranks", "microbatches", "chunks"])
@pytest.mark.parametrize("wrong", [2.5, "2", True, None])
def test_refuses_what_is_no_int(name: str, what: str, wrong: Any) -> None:
    schedule = SCHEDULES[name]
    counts = {"ranks": 2, "microbatches": 8, "chunks": schedule.chunks or 2, what: wrong}
    message = re.escape(f"{name} needs an int for {what}, got {wrong!r}")
    with pytest.raises(ValueError, match=f"^{message}$"):
        schedule.table(**counts)
    with pytest.raises(ValueError, match=f"^{message}$"):
        schedule.homes(**counts)


@given(names, rank_counts, st.integers(1, 4))
def test_the_minimum_is_enough_and_no_less_is(name: str, ranks: int, chunks: int) -> None:
    schedule = SCHEDULES[name]
    assume(not (schedule.even_ranks and ranks % 2))
    chunks = schedule.chunks or chunks + 1
    least = schedule.min_microbatches(ranks)
    assert is_defined(schedule, ranks, least, chunks)
    assert not any(is_defined(schedule, ranks, fewer, chunks) for fewer in range(least))


@given(names, rank_counts, st.integers(1, 4))
def test_chunks_follow_from_stages(name: str, ranks: int, chunks: int) -> None:
    schedule = SCHEDULES[name]
    chunks = schedule.chunks or chunks + 1
    assert schedule.chunks_of(ranks, schedule.stages(ranks, chunks)) == chunks


@pytest.mark.parametrize(
    ("name", "stages", "message"),
    [
        ("1F1B", 8, "1F1B needs stages == ranks = 4, got 8"),
        ("ZBVZeroBubble", 4, r"ZBVZeroBubble needs stages == 2 \* ranks = 8, got 4"),
        ("DualPipe", 8, "DualPipe needs stages == ranks = 4, got 8"),
        ("LoopedBFS", 4, r"a multiple of ranks, at least 2 \* ranks = 8, got 4"),
        ("Interleaved1F1B", 9, r"Interleaved1F1B needs stages to be a multiple of .* got 9"),
    ],
)
def test_refuses_stages(name: str, stages: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        SCHEDULES[name].chunks_of(4, stages)
