"""The named schedules: valid for all sizes, with the bubble and the memory of the closed forms."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from piper.schedules import SCHEDULES, Table, generate, schedule_name, validate, with_idle
from simulate import measure
from torch.distributed.pipelining.schedules import _validate_schedule

GOLDEN: list[dict[str, Any]] = [
    row
    for row in json.loads((Path(__file__).parent / "golden.json").read_text())
    if row["schedule"] in SCHEDULES
]

names = st.sampled_from(sorted(SCHEDULES))
stage_counts = st.integers(1, 8)
microbatch_counts = st.integers(1, 16)
costs = st.integers(1, 9)


@given(names, stage_counts, microbatch_counts)
def test_is_valid(name: str, stages: int, microbatches: int) -> None:
    table = generate(name, stages, microbatches)
    validate(table, stages, microbatches)
    assert table == table.without_idle()


@given(names, stage_counts, microbatch_counts)
def test_is_valid_for_torch(name: str, stages: int, microbatches: int) -> None:
    from torch.distributed.pipelining.schedules import _Action

    rows = generate(name, stages, microbatches).rows
    order = {rank: [_Action.from_str(str(cell)) for cell in row] for rank, row in enumerate(rows)}
    _validate_schedule(order, stages, stages, microbatches)


@given(names, stage_counts, microbatch_counts, costs, costs)
def test_bubble(name: str, stages: int, microbatches: int, f: int, b: int) -> None:
    table = generate(name, stages, microbatches)
    measures = measure(table, {"F": f, "B": b})
    assert measures.bubble_makespan == (stages - 1) * (f + b)


@given(stage_counts, microbatch_counts)
def test_peaks(p: int, m: int) -> None:
    unit: Any = {"F": 1, "B": 1}
    assert measure(generate("GPipe", p, m), unit).peaks == (m,) * p
    assert measure(generate("1F1B", p, m), unit).peaks == tuple(min(m, p - r) for r in range(p))


@pytest.mark.parametrize("row", GOLDEN, ids=lambda row: f"{row['schedule']}-{row['ranks']}")
def test_equals_golden(row: dict[str, Any]) -> None:
    table = generate(row["schedule"], row["ranks"], row["microbatches"])
    measures = measure(table, {"F": row["F"], "B": row["I"] + row["W"]})
    assert measures.makespan == row["makespan"]
    assert measures.busy == row["busy"]
    assert measures.bubble_makespan == row["bubble_makespan"]
    assert measures.bubble_span == row["bubble_span"]
    assert list(measures.peaks) == row["peak_chunks_until_I"] == row["peak_chunks_until_W"]


def test_golden_is_not_empty() -> None:
    assert len(GOLDEN) == 40


@pytest.mark.parametrize("name", SCHEDULES)
def test_docstring_shows_the_table(name: str) -> None:
    picture = with_idle(generate(name, 3, 4)).format()
    doc = SCHEDULES[name].__doc__ or ""
    assert picture.splitlines() == [line[4:] for line in doc.split("```")[1].splitlines()[1:-1]]


@pytest.mark.parametrize("name", ["1f1b", "1F1B", "gpipe", "GPIPE"])
def test_names_ignore_case(name: str) -> None:
    assert schedule_name(name) in SCHEDULES
    assert isinstance(generate(name, 2, 2), Table)


def test_unknown_name_suggests_the_nearest() -> None:
    with pytest.raises(ValueError, match=r"unknown schedule 'g-pipe', did you mean 'GPipe'\?"):
        generate("g-pipe", 2, 2)
    with pytest.raises(ValueError, match="unknown schedule 'zzz', known are GPipe, 1F1B"):
        generate("zzz", 2, 2)


@pytest.mark.parametrize(("stages", "microbatches"), [(0, 1), (1, 0), (-1, 4)])
def test_refuses_counts_below_one(stages: int, microbatches: int) -> None:
    with pytest.raises(ValueError, match="must be at least 1, got"):
        generate("1F1B", stages, microbatches)
