"""The table that ``overlap-dualpipev.mlir`` has is the one that the schedule of that name makes."""

from __future__ import annotations

import re
from pathlib import Path

from piper.schedules import generate


def test_the_table_is_the_schedules_own() -> None:
    text = (Path(__file__).parent / "overlap-dualpipev.mlir").read_text()
    schedule = re.search(r"piper\.schedule .*? \[(.*?)\]\n", text, re.DOTALL)
    assert schedule is not None
    table = generate("DualPipeV", ranks=2, microbatches=4)
    rows = [" ".join(map(str, filter(None, row))) for row in table.rows]
    assert re.findall(r'"([^"]*)"', schedule[1]) == rows
