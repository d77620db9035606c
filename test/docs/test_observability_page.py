"""What docs/observability.md shows of a run has the form of what its commands print today."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from torchrun import torchrun

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "docs" / "traced_run.py"
PAGE = (ROOT / "docs" / "observability.md").read_text()
RUN = "torchrun --nproc-per-node 2 docs/traced_run.py out trace.json"
COMPARE = "piper trace out trace.json --profile cpu.json --link loopback --most 4"


def shown_behind(command: str) -> list[str]:
    """The lines of the block behind that of a command."""
    _, _, rest = PAGE.partition(f"{command}\n```\n\n```text\n")
    return rest.partition("```")[0].splitlines()


def form(line: str) -> str:
    """The words of a line, without numbers and their units."""
    return " ".join(re.findall(r"[a-z_]{3,}:?", line))


@pytest.mark.slow
def test_the_run_prints_such_a_line_and_writes_such_a_trace(tmp_path: Path) -> None:
    """Numbers depend on the machine, but for the loss, and for how many instructions there are."""
    done = torchrun(SCRIPT, tmp_path / "out", tmp_path / "trace.json", count=2)
    assert done.returncode == 0, done.stderr
    (shown,) = shown_behind(RUN)
    assert form(done.stdout.strip()) == form(shown)
    loss = re.compile(r"step: 8 loss: [\d.]{6}")
    assert loss.findall(done.stdout) == loss.findall(shown) != []

    words = ["trace", "out", "trace.json", "--device", "H100", "--link", "nvlink", "--most", "4"]
    printed = subprocess.run(
        [Path(sys.executable).parent / "piper", *words],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.splitlines()
    page = shown_behind(COMPARE)
    assert printed[0] == page[0] == "trace.json: steps 5 to 7 of pp=2, transport gloo"
    for start in ("from first", "ranks: ", "kinds of", "single "):
        (ours,), (shown,) = ([x for x in text if x.startswith(start)] for text in (printed, page))
        count = re.compile(r"\(\d+ of \d+\)")
        assert count.findall(ours) == count.findall(shown)
        assert form(ours) == form(shown)
    assert [line[:7] for line in (printed[-2], page[-2])] == ["worst: "] * 2


@pytest.mark.slow
def test_the_usage_names_the_files() -> None:
    done = subprocess.run([sys.executable, SCRIPT], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "docs/traced_run.py DIR TRACE" in done.stderr
