"""The tables of docs/zero.md; that they are what its script prints is tested with all pages."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "zero.md").read_text()
ROWS = [
    re.split(r"  +", line)
    for line in PAGE.split("bytes by it  bytes sent\n")[1].partition("```")[0].splitlines()
]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: "-".join(row[:-3]))
def test_collectives_send_what_their_formula_says(row: list[str]) -> None:
    """Of P bytes on n = 4 ranks, with M = 4 microbatches."""
    formula, by_it, sent = row[-3:]
    factors = formula.removesuffix("(n-1)/n P").replace("M", "4").split()
    expected = 264704 * 3 // 4
    for factor in factors:
        expected *= int(factor)
    assert int(by_it) == int(sent) == expected


def test_every_stage_and_policy_has_its_rows() -> None:
    """Of the collectives that its kinds of slots need, and no other."""
    found = {tuple(row[:-3]) for row in ROWS}
    assert found == {
        ("0", "last", "all_reduce"),
        ("0", "each", "all_reduce"),
        ("1", "last", "reduce_scatter"),
        ("1", "last", "all_gather"),
        ("1", "last", "step", "reduce_scatter"),
        ("1", "last", "step", "all_gather"),
        ("1", "each", "all_reduce"),
        ("1", "each", "all_gather"),
        ("2", "last", "reduce_scatter"),
        ("2", "last", "all_gather"),
        ("2", "each", "reduce_scatter"),
        ("2", "each", "all_gather"),
        ("3", "last", "step", "reduce_scatter"),
        ("3", "last", "step", "all_gather"),
        ("3", "each", "step", "reduce_scatter"),
        ("3", "each", "step", "all_gather"),
        ("3", "each", "each", "reduce_scatter"),
        ("3", "each", "each", "all_gather"),
    }
