"""The pictures in docs/ are what the commands that they are made by draw today."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest
from piper.cli import main

ROOT = Path(__file__).resolve().parents[2]
PICTURE = ROOT / "docs" / "dualpipev.svg"
Drawing = tuple[list[str | None], list[str], list[float]]


def drawn(file: Path) -> Drawing:
    """The texts, the colours and the coordinates, which no version of matplotlib may change."""
    elements = [(e.tag.rpartition("}")[2], e) for e in ElementTree.parse(file).iter()]
    texts = [element.text for tag, element in elements if tag == "text"]
    fills = [fill for _, e in elements for fill in re.findall(r"fill: (#\w+)", e.get("style", ""))]
    paths = [element.get("d", "") for tag, element in elements if tag == "path"]
    numbers = [float(number) for path in paths for number in re.findall(r"-?[\d.]+", path)]
    return texts, fills, numbers


def draw(folder: Path, *options: str) -> Drawing:
    """What the command draws of a DualPipeV."""
    file = folder / "new.svg"
    assert main(["simulate", "DualPipeV", *options, "--gantt", str(file)]) == 0
    return drawn(file)


def test_dualpipev_is_as_drawn(tmp_path: Path) -> None:
    """If this fails, draw it again: the options are those below, with --gantt docs/dualpipev.svg."""
    texts, fills, numbers = draw(tmp_path, "--ranks", "4", "--microbatches", "10")
    known_texts, known_fills, known_numbers = drawn(PICTURE)
    assert texts == known_texts
    assert fills == known_fills
    assert numbers == pytest.approx(known_numbers, abs=0.1)


def test_another_schedule_is_another_drawing(tmp_path: Path) -> None:
    """So that the test above can fail: once in its texts, once in coordinates alone."""
    known = drawn(PICTURE)
    assert draw(tmp_path, "--ranks", "4", "--microbatches", "11")[0] != known[0]
    slower = draw(tmp_path, "--ranks", "4", "--microbatches", "10", "--cost", "F=1,I=1,W=1.1")
    assert slower[2] != pytest.approx(known[2], abs=0.1)


@pytest.mark.slow
def test_experts_are_as_drawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If this fails, draw it again: docs/experts.md says by which commands."""
    script = str(ROOT / "docs" / "experts.py")
    subprocess.run([sys.executable, script, "out"], cwd=tmp_path, capture_output=True, check=True)
    monkeypatch.chdir(tmp_path)
    assert main(["simulate", "out", "--device", "h800", "--gantt", "experts.svg"]) == 0
    texts, fills, numbers = drawn(tmp_path / "experts.svg")
    known_texts, known_fills, known_numbers = drawn(ROOT / "docs" / "experts.svg")
    assert texts == known_texts
    assert fills == known_fills
    assert numbers == pytest.approx(known_numbers, abs=0.1)
