"""What `validate` and `with_idle` find wrong in a table, and where they say it is."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from piper.schedules import SCHEDULES, Table, generate, validate, with_idle

INVALID = {
    "no F": (["0B0", "1F0 1B0"], "rank 0, step 0: 0B0 expected 0F0 before it"),
    "W before I": (["0F0 0W0 0I0", "1F0 1B0"], "rank 0, step 1: 0W0 expected 0I0 before it"),
    "twice": (["0F0 0F0 0B0", "1F0 1B0"], "rank 0, step 1: 0F0 is run twice"),
    "B and I": (["0F0 0I0 0B0 0W0", "1F0 1B0"], "rank 0, step 2: 0B0 repeats 0I0"),
    "wrong row": (["0F0 1F0 0B0", "1B0"], "rank 0, step 1: 1F0 expected on rank 1"),
    "stage": (["0F0 0B0", "1F0 2F0 1B0"], "rank 1, step 1: 2F0 expected a stage below 2"),
    "microbatch": (["0F0 0F1 0B0", "1F0 1B0"], "0F1 expected a microbatch below 1"),
    "missing B": (["0F0 0B0", "1F0"], "1B0 is missing"),
    "missing F": (["0F0 0B0", "."], "1F0 is missing"),
    "missing W": (["0F0 0I0", "1F0 1B0"], "0W0 is missing"),
    "row count": (["0F0 0B0"], "expected 2 rows, got 1"),
}


@pytest.mark.parametrize(("rows", "message"), INVALID.values(), ids=INVALID)
def test_refuses(rows: list[str], message: str) -> None:
    with pytest.raises(ValueError, match=message) as error:
        validate(Table.parse(rows), 2, 1)
    assert "\n  step" in str(error.value), "the message shows the table"


def test_marks_the_cell() -> None:
    with pytest.raises(ValueError, match="rank 1") as error:
        validate(Table.parse(["0F0 0B0", "1F0 1F0 1B0"]), 2, 1)
    assert str(error.value).splitlines()[-1] == "rank 1  1F0 >1F0< 1B0"


def test_accepts_halved_backwards_and_idle_cells() -> None:
    validate(Table.parse(["0F0 . 0I0 0W0", ". 1F0 1B0"]), 2, 1)


def test_coordinates_say_which_row_holds_a_stage() -> None:
    table = Table.parse(["1F0 1B0", "0F0 0B0"])
    validate(table, 2, 1, coordinates=[1, 0])
    with pytest.raises(ValueError, match="1F0 expected on rank 1, which holds stage 1"):
        validate(table, 2, 1)


@given(st.sampled_from(sorted(SCHEDULES)), st.integers(1, 5), st.integers(1, 6), st.randoms())
def test_finds_any_dropped_or_doubled_action(
    name: str, stages: int, microbatches: int, chance: random.Random
) -> None:
    rows = [list(row) for row in generate(name, stages, microbatches).rows]
    row = chance.choice(rows)
    place = chance.randrange(len(row))
    if chance.random() < 0.5:
        row.insert(chance.randrange(len(row) + 1), row[place])
    else:
        row[place] = None
    with pytest.raises(ValueError, match=r"missing|twice|before it|repeats|at least one action"):
        validate(Table(rows), stages, microbatches)


def test_idle_cells_align_steps() -> None:
    assert with_idle(Table.parse(["0F0 0B0", "1F0 1B0"])).lines() == ("0F0 . . 0B0", ". 1F0 1B0 .")


def test_halved_backwards_release_the_stage_before() -> None:
    table = Table.parse(["0F0 0I0 0W0", "1F0 1I0 1W0"])
    assert with_idle(table).lines() == ("0F0 . . 0I0 0W0", ". 1F0 1I0 1W0 .")


def test_rows_that_wait_for_each_other_are_an_error() -> None:
    message = "rank 0, step 1: 0B1 waits for 0F1, 1B1, which never runs"
    with pytest.raises(ValueError, match=message) as error:
        with_idle(Table.parse(["0F0 0B1 0F1 0B0", "1F0 1F1 1B1 1B0"]))
    assert ">0B1<" in str(error.value)
