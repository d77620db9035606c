"""Backwards of pairs in halves: what stays, what becomes of pairs, and that it is a schedule."""

from __future__ import annotations

import pytest
from piper.schedules import Table, check_progress, generate, halve_pairs, homes_of, validate


def test_pairs_alone_are_halved() -> None:
    table = Table.parse(["0F0 . (0F1;1B0)OVERLAP_F_B 1B1", "(2F0;3I0)OVERLAP_F_B 3W0 2B0"])
    assert halve_pairs(table).lines() == (
        "0F0 . (0F1;1I0)OVERLAP_F_B 1W0 1B1",
        "(2F0;3I0)OVERLAP_F_B 3W0 2B0",
    )


@pytest.mark.parametrize("name", ["DualPipe", "DualPipeV"])
@pytest.mark.parametrize("ranks", [2, 4])
def test_a_schedule_stays_one(name: str, ranks: int) -> None:
    microbatches = 2 * ranks + 2
    table = halve_pairs(generate(name, ranks=ranks, microbatches=microbatches))
    validate(table, homes_of(name, ranks, microbatches), microbatches)
    check_progress(table)
    assert halve_pairs(table) == table
