"""What docs/sequences.md shows is what docs/sequences.py compiles, and how sequences are cut."""

from __future__ import annotations

import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import torch
from piper_runtime.inputs.batch import part_of_sequence

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "sequences.md").read_text()


def test_strategy_is_that_of_the_script() -> None:
    _, body, *_ = (ROOT / "docs" / "sequences.py").read_text().split("    return piper.Strategy(\n")
    arguments = textwrap.dedent(body.partition("\n    )\n")[0])
    assert arguments.count("piper.") == 8
    assert f"piper.Strategy(\n{textwrap.indent(arguments, '    ')}\n)\n" in PAGE


def test_positions_and_keys_of_ranks_are_those_of_the_page() -> None:
    rows = re.findall(r"^\| (\d) \| ([\d ]+) \| ([\d +]+) = (\d+) \|$", PAGE, re.MULTILINE)
    assert len(rows) == 2
    for rank, own, seen, total in rows:
        found = part_of_sequence(torch.arange(8), 0, int(rank), len(rows), name="x").tolist()
        assert [int(position) for position in own.split()] == found
        assert [int(keys) for keys in seen.split(" + ")] == [position + 1 for position in found]
        assert int(total) == sum(position + 1 for position in found)


@pytest.mark.slow
def test_what_layers_exchange_is_what_the_script_prints(tmp_path: Path) -> None:
    """It fails if the programs exchange other bytes than formulas say."""
    command = [sys.executable, str(ROOT / "docs" / "sequences.py")]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    shown = PAGE.split("$ python docs/sequences.py\n")[1].partition("```")[0]
    assert [line.rstrip() for line in done.stdout.splitlines()] == shown.splitlines()
