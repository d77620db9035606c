"""What `validate` finds wrong in a table, and where it says it is."""

from __future__ import annotations

import re

import pytest
from piper.schedules import Homes, Table, validate

EACH = Homes.each(2)

INVALID: dict[str, tuple[list[str], str, str]] = {
    "no F": (["0B0", "1F0 1B0"], "rank 0, step 0: 0B0 expected 0F0 before it", ">0B0<"),
    "W before I": (
        ["0F0 0W0 0I0", "1F0 1B0"],
        "rank 0, step 1: 0W0 expected 0I0 before it",
        ">0W0<",
    ),
    "W after B": (["0F0 0B0 0W0", "1F0 1B0"], "rank 0, step 2: 0W0 expected 0I0 before", ">0W0<"),
    "twice": (["0F0 0F0 0B0", "1F0 1B0"], "rank 0, step 1: 0F0 is run twice", ">0F0<"),
    "B twice": (["0F0 0B0 0B0", "1F0 1B0"], "rank 0, step 2: 0B0 is run twice", ">0B0<"),
    "B and I": (
        ["0F0 0I0 0B0 0W0", "1F0 1B0"],
        "rank 0, step 2: 0B0 repeats 0I0: a backward is either B, or I and W",
        ">0B0<",
    ),
    "I after B": (["0F0 0B0 0I0", "1F0 1B0"], "rank 0, step 2: 0I0 repeats 0B0", ">0I0<"),
    "wrong row": (
        ["0F0 1F0 0B0", "1B0"],
        "rank 0, step 1: 1F0 expected on rank 1, which holds stage 1",
        ">1F0<",
    ),
    "stage": (
        ["0F0 0B0", "1F0 2F0 1B0"],
        "rank 1, step 1: 2F0 expected a stage below 2",
        ">2F0<",
    ),
    "microbatch": (["0F0 0F1 0B0", "1F0 1B0"], "0F1 expected a microbatch below 1", ">0F1<"),
    "missing B": (
        ["0F0 0B0", "1F0"],
        "rank 1, step 0: 1F0 expected B, or I and W of microbatch 0 after it",
        ">1F0<",
    ),
    "missing F": (["0F0 0B0", "."], "rank 1, step 1: 1F0 is missing", ">.<"),
    "missing W": (
        ["0F0 0I0", "1F0 1B0"],
        "rank 0, step 1: 0I0 expected W of microbatch 0 after it",
        ">0I0<",
    ),
    "pair of one microbatch": (
        ["(0F0;0B0)OVERLAP_F_B", "1F0 1B0"],
        "rank 0, step 0: 0B0 expected 0F0 before it",
        ">0F0&0B0<",
    ),
    "second of a pair": (
        ["0F0 0B0", "(1F0;0B0)OVERLAP_F_B 1B0"],
        "rank 1, step 0: 0B0 expected on rank 0",
        ">1F0&0B0<",
    ),
    "unknown rank": (
        ["0F0 0B0", "1F0 1B0", "2F0 2B0"],
        "rank 2, step 0: 2F0 expected on a rank below 2",
        ">2F0<",
    ),
    "empty row too many": (["0F0 0B0", "1F0 1B0", ""], "rank 2, step 0: . expected", ">.<"),
    "communication": (
        ["0F0 0SEND_F0 0B0", "1F0 1B0"],
        r"step 1: 0SEND_F0 is communication, which Piper derives: use the table's .compute_only\(\)",
        ">0SEND_F0<",
    ),
}


@pytest.mark.parametrize(("rows", "message", "mark"), INVALID.values(), ids=INVALID)
def test_refuses_and_marks(rows: list[str], message: str, mark: str) -> None:
    with pytest.raises(ValueError, match=message) as error:
        validate(Table.parse(rows), EACH, 1)
    marked = re.findall(">[^<]*<", str(error.value))
    assert marked == [mark]


def test_marks_the_place() -> None:
    with pytest.raises(ValueError, match="rank 1") as error:
        validate(Table.parse(["0F0 0B0", "1F0 1F0 1B0"]), EACH, 1)
    assert str(error.value).splitlines()[-1] == "rank 1  1F0 >1F0< 1B0"


def test_too_few_rows_have_no_cell_to_mark() -> None:
    message = "expected a row for each of 2 ranks, got 1\n  step   0    1\nrank 0  0F0  0B0"
    with pytest.raises(ValueError, match=message):
        validate(Table.parse(["0F0 0B0"]), EACH, 1)


def test_homes_must_be_for_as_many_microbatches() -> None:
    with pytest.raises(ValueError, match="homes must be for 4 microbatches, got 2"):
        validate(Table.parse(["0F0 0B0", "1F0 1B0"]), Homes.bidirectional(2, 2), 4)


def test_accepts_halved_backwards_and_idle_cells() -> None:
    validate(Table.parse(["0F0 . 0I0 0W0", ". 1F0 1B0"]), EACH, 1)


def test_a_stage_may_halve_some_of_its_backwards() -> None:
    validate(Table.parse(["0F0 0F1 0B0 0I1 0W1", "1F0 1I0 1F1 1W0 1B1"]), EACH, 2)


def test_accepts_pairs() -> None:
    validate(Table.parse(["0F0 (0F1;0B0)OVERLAP_F_B 0B1"]), Homes.each(1), 2)
    validate(Table.parse(["0F0 (0F1;0I0)OVERLAP_F_B 0W0 0B1"]), Homes.each(1), 2)


def test_homes_say_which_row_holds_a_stage() -> None:
    table = Table.parse(["1F0 1B0", "0F0 0B0"])
    validate(table, Homes.listed([1, 0]), 1)
    with pytest.raises(ValueError, match="1F0 expected on rank 1, which holds stage 1"):
        validate(table, EACH, 1)


def test_homes_may_depend_on_the_microbatch() -> None:
    homes = Homes.bidirectional(2, 2)
    validate(Table.parse(["0F0 1F1 1B1 0B0", "0F1 1F0 1B0 0B1"]), homes, 2)
    message = "0F1 expected on rank 1, which holds stage 0 for microbatch 1"
    with pytest.raises(ValueError, match=message):
        validate(Table.parse(["0F0 0F1 1B1 0B0", "1F1 1F0 1B0 0B1"]), homes, 2)
