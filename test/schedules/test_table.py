"""Tables: reading, printing, CSV, and errors that mark the cell."""

from __future__ import annotations

from pathlib import Path

import pytest
from piper.schedules import Action, Table
from torch.distributed.pipelining.schedules import _Action

SMALL = ["0F0 0F1 0B0 0B1", "1F0 1B0 1F1 1B1"]


def test_parses_actions() -> None:
    table = Table.parse("0F0 0I0 0W0\n. 12F34")
    assert table.rows == (
        (Action(0, "F", 0), Action(0, "I", 0), Action(0, "W", 0)),
        (None, Action(12, "F", 34)),
    )


def test_lines_round_trip() -> None:
    table = Table.parse(["0F0 . 0B0", ". 1F0 1B0"])
    assert Table.parse(table.lines()) == table
    assert table.without_idle().lines() == ("0F0 0B0", "1F0 1B0")


def test_prints_aligned() -> None:
    assert str(Table.parse([". 10F0 10B0", "9F0"])) == (
        "  step   0     1     2\n"
        "rank 0   .    10F0  10B0\n"
        "rank 1  9F0"
    )  # fmt: skip


def test_prints_axis_and_mark() -> None:
    assert Table.parse(SMALL).format(axis="pp", mark=(1, 2)) == (
        "step   0    1    2    3\n"
        "pp 0  0F0  0F1  0B0  0B1\n"
        "pp 1  1F0  1B0 >1F1< 1B1"
    )  # fmt: skip


@pytest.mark.parametrize("cell", ["3BOGUS1", "F0", "1F", "1f0", "1SEND_F1", "-1F0", "1F0B0"])
def test_a_cell_is_matched_whole_and_marked(cell: str) -> None:
    with pytest.raises(ValueError, match="rank 1, step 1: expected a stage") as error:
        Table.parse(["0F0 0B0", f"1F0 {cell}"])
    assert f">{cell}<" in str(error.value)


@pytest.mark.parametrize("text", ["", ".", ". .\n."])
def test_refuses_a_table_without_actions(text: str) -> None:
    with pytest.raises(ValueError, match="at least one action"):
        Table.parse(text)


def test_csv_round_trips(tmp_path: Path) -> None:
    table = Table.parse(["0F0 . 0B0", ". 1F0 1B0"])
    table.write_csv(tmp_path / "table.csv")
    assert (tmp_path / "table.csv").read_text().split() == ["0F0,,0B0", ",1F0,1B0"]
    assert Table.read_csv(tmp_path / "table.csv") == table


def test_csv_error_marks_the_cell(tmp_path: Path) -> None:
    (tmp_path / "table.csv").write_text("0F0,,0B0\n,1UNSHARD,1B0\n")
    with pytest.raises(ValueError, match=r"rank 1, step 1.*\n.*\n.*\n.*>1UNSHARD<"):
        Table.read_csv(tmp_path / "table.csv")


def test_actions_are_spelled_as_torch_spells_them() -> None:
    for text in ("2F0", "0B11", "3I1", "10W2"):
        (row,) = Table.parse(text).rows
        assert str(row[0]) == text == str(_Action.from_str(text))
