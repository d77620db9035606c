"""Tables: reading, printing, CSV, and errors that mark the cell."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from piper.schedules import Action, Cell, Communication, Pair, Table, members
from piper.schedules.cell import CommunicationKind, parse_cell

SMALL = ["0F0 0F1 0B0 0B1", "1F0 1B0 1F1 1B1"]
PAIR = Pair(Action(0, "F", 1), Action(3, "B", 0))

numbers = st.integers(0, 99)
actions = st.builds(Action, numbers, st.sampled_from("FBIW"), numbers)
pairs = st.builds(
    Pair,
    st.builds(Action, numbers, st.just("F"), numbers),
    st.builds(Action, numbers, st.sampled_from("BI"), numbers),
)
messages = st.builds(
    Communication, numbers, st.sampled_from(["SEND_F", "RECV_F", "SEND_B", "RECV_B"]), numbers
)
others = st.builds(Communication, numbers, st.sampled_from(["UNSHARD", "RESHARD", "REDUCE_GRAD"]))
cells = st.one_of(actions, pairs, messages, others, st.none())


def test_parses_actions() -> None:
    table = Table.parse("0F0 0I0 0W0\n. 12F34")
    assert table.rows == (
        (Action(0, "F", 0), Action(0, "I", 0), Action(0, "W", 0)),
        (None, Action(12, "F", 34)),
    )


def test_parses_pairs_in_either_order() -> None:
    assert parse_cell("(0F1;3B0)OVERLAP_F_B") == parse_cell("(3B0;0F1)OVERLAP_F_B") == PAIR
    assert str(PAIR) == "(0F1;3B0)OVERLAP_F_B"
    assert members(PAIR) == (Action(0, "F", 1), Action(3, "B", 0))


@given(cells)
def test_cells_round_trip(cell: Cell) -> None:
    assert parse_cell("" if cell is None else str(cell)) == cell


@given(st.lists(st.lists(cells)))
def test_tables_round_trip(rest: list[list[Cell]]) -> None:
    rows: list[list[Cell]] = [*rest, [PAIR]]
    table = Table(rows)
    assert Table.parse(table.lines()) == Table.of(rows) == table


def test_a_table_is_made_of_rows_in_any_form() -> None:
    row = [Action(0, "F", 0), None, "0B0"]
    assert Table.of(["1F0 1B0", row]) == Table.parse("1F0 1B0\n0F0 . 0B0")


def test_refuses_rows_of_something_else() -> None:
    wrong: Any = [3]
    with pytest.raises(TypeError, match="a row of a table must be text or cells, got 3"):
        Table.of(wrong)
    with pytest.raises(TypeError, match="a cell of a table must be text, a cell or None, got 3"):
        Table.of([wrong])


def test_lines_round_trip() -> None:
    table = Table.parse(["0F0 . 0B0", ". 1F0 1B0"])
    assert Table.parse(table.lines()) == table
    assert table.without_idle().lines() == ("0F0 0B0", "1F0 1B0")


def test_repr_is_the_call() -> None:
    assert repr(Table.parse(["0F0 . 0B0"])) == "Table.parse(['0F0 . 0B0'])"


def test_prints_aligned() -> None:
    assert str(Table.parse([". 10F0 10B0", "9F0"])) == (
        "  step   0     1     2\n"
        "rank 0   .    10F0  10B0\n"
        "rank 1  9F0"
    )  # fmt: skip


def test_prints_axis_and_marks() -> None:
    assert Table.parse(SMALL).format(axis="pp", marks=[(1, 2), (0, 0)]) == (
        "step   0    1    2    3\n"
        "pp 0 >0F0< 0F1  0B0  0B1\n"
        "pp 1  1F0  1B0 >1F1< 1B1"
    )  # fmt: skip


def test_columns_of_pairs_are_wider() -> None:
    assert str(Table.parse(["0F0 (0F1;3B0)OVERLAP_F_B 0B1", "1F0 1F1 1B0"])) == (
        "  step   0      1      2\n"
        "rank 0  0F0  0F1&3B0  0B1\n"
        "rank 1  1F0    1F1    1B0"
    )  # fmt: skip


def test_prints_below_what_does_not_fit() -> None:
    assert Table.parse(SMALL).format(width=22) == (
        "  step   0    1    2\n"
        "rank 0  0F0  0F1  0B0\n"
        "rank 1  1F0  1B0  1F1\n"
        "\n"
        "  step   3\n"
        "rank 0  0B1\n"
        "rank 1  1B1"
    )  # fmt: skip


def test_an_error_in_a_long_table_shows_what_is_around_it() -> None:
    table = Table([[Action(0, "F", step) for step in range(100)]])
    shown = str(table.error("wrong", 0, 50, also=[(0, 1)])).splitlines()
    assert shown[0] == "schedule table: rank 0, step 50: wrong"
    assert shown[1].split() == [
        "step", *map(str, range(8)), "...", *map(str, range(44, 57)), "..."
    ]  # fmt: skip
    assert ">0F50<" in shown[2]
    assert ">0F1<" in shown[2]


@pytest.mark.parametrize(
    "cell",
    [
        "3BOGUS1",
        "F0",
        "1F",
        "1f0",
        "-1F0",
        "1F0B0",
        "\u0663F0",
        "1F0 ",
        "1SEND_F",
        "1SEND_C0",
        "1UNSHARD0",
        "SEND_F0",
        "(0F1;3B0)",
        "(0F1;3B0)OVERLAP",
        "(0F1)OVERLAP_F_B",
        "(0F1;3F0)OVERLAP_F_B",
        "(0B1;3B0)OVERLAP_F_B",
        "(0F1;3W0)OVERLAP_F_B",
        "(0F1;3B0;1F1)OVERLAP_F_B",
        "(0F1; 3B0)OVERLAP_F_B",
        "(0F1;1SEND_F1)OVERLAP_F_B",
        "(0F1;)OVERLAP_F_B",
    ],
)
def test_a_cell_is_matched_whole_and_marked(cell: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"expected an action|must have|must hold"):
        parse_cell(cell)
    if " " in cell:
        return
    with pytest.raises(ValueError, match="schedule table: rank 1, step 1: ") as error:
        Table.parse(["0F0 0B0", f"1F0 {cell}"])
    assert f">{cell}<" in str(error.value)
    (tmp_path / "table.csv").write_text(f"0F0,,0B0\n,{cell},1B0\n")
    with pytest.raises(ValueError, match="rank 1, step 1") as error:
        Table.read_csv(tmp_path / "table.csv")
    assert f">{cell}<" in str(error.value)


def test_the_error_says_what_is_right() -> None:
    message = (
        r"expected an action such as 2F0, a pair such as \(0F1;3B0\)OVERLAP_F_B or communication "
        "such as 1SEND_F0, got '3BOGUS1'"
    )
    with pytest.raises(ValueError, match=message):
        Table.parse("3BOGUS1")


@pytest.mark.parametrize(
    ("kind", "microbatch", "message"),
    [
        ("SEND_F", None, "SEND_F must have a microbatch, got 1SEND_F$"),
        ("UNSHARD", 2, "UNSHARD must have no microbatch, got 1UNSHARD2"),
    ],
)
def test_only_messages_have_a_microbatch(
    kind: CommunicationKind, microbatch: int | None, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        Communication(1, kind, microbatch)


def test_a_pair_is_one_forward_and_one_backward() -> None:
    with pytest.raises(ValueError, match="one F and one B or I, got 0W1 and 3B0"):
        Pair(Action(0, "W", 1), Action(3, "B", 0))


@pytest.mark.parametrize("text", ["", ".", ". .\n.", "0UNSHARD 0SEND_F0"])
def test_refuses_a_table_without_actions(text: str) -> None:
    with pytest.raises(ValueError, match="at least one action"):
        Table.parse(text)


def test_compute_only_drops_communication() -> None:
    table = Table.parse(["0UNSHARD 0F0 . 0SEND_F0 0B0"])
    assert table.compute_only() == Table.parse(["0F0 . 0B0"])
    table.compute_only().check_compute_only()
    with pytest.raises(ValueError, match="step 0: 0UNSHARD is communication, which Piper derives"):
        table.check_compute_only()


def test_csv_round_trips(tmp_path: Path) -> None:
    table = Table.parse(["0F0 . 0B0", ". 1F0 1B0"])
    table.write_csv(tmp_path / "table.csv")
    assert (tmp_path / "table.csv").read_text().split() == ["0F0,,0B0", ",1F0,1B0"]
    assert Table.read_csv(tmp_path / "table.csv") == table


def test_csv_fills_shorter_rows(tmp_path: Path) -> None:
    table = Table.parse(["0F0 0B0", "1F0 1F1 1B0"])
    table.write_csv(tmp_path / "table.csv")
    assert (tmp_path / "table.csv").read_text().split() == ["0F0,0B0,", "1F0,1F1,1B0"]
    assert Table.read_csv(tmp_path / "table.csv").without_idle() == table


@pytest.mark.parametrize(
    ("text", "message", "mark"),
    [
        ("0F0,0B0\n1F0\n", "rank 1, step 1: row 1 expected 2 cells, as row 0 has, got 1", ">.<"),
        ("0F0\n1F0,1B0\n", "rank 1, step 1: row 1 expected 1 cells, as row 0 has, got 2", ">1B0<"),
        ("0F0,0B0\n\n", "rank 1, step 0: row 1 expected 2 cells, as row 0 has, got 0", ">.<"),
    ],
)
def test_refuses_ragged_csv(text: str, message: str, mark: str, tmp_path: Path) -> None:
    (tmp_path / "table.csv").write_text(text)
    with pytest.raises(ValueError, match=message) as error:
        Table.read_csv(tmp_path / "table.csv")
    assert mark in str(error.value).splitlines()[3]


def test_ragged_csv_may_be_asked_for(tmp_path: Path) -> None:
    (tmp_path / "table.csv").write_text("0F0,0B0\n1F0\n")
    assert Table.read_csv(tmp_path / "table.csv", ragged=True) == Table.parse(["0F0 0B0", "1F0"])
