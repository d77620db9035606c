"""Memory over a step: the parts of its table, and its picture."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from handmade import Rows, chunk, facts
from piper.simulate.memory import Memory
from piper.simulate.predicted import entry_memory
from piper.simulate.views import draw_memory, format_bytes, over_step
from piper_runtime.manifest import BucketSpec

BUCKET = BucketSpec("w$b", ("w",), (0,), "float32", 1000, "float32")
CHUNK = chunk("one", size=4000)


def memory(rows: Rows, *, per_parameter: float | None = 8) -> Memory:
    program = facts(rows, chunks=[CHUNK], buckets=[BUCKET])
    return entry_memory(program, "train", per_parameter=per_parameter)[0]


def mountain(height: int) -> Rows:
    """Runs, then frees of what they made in the opposite order."""
    rows = Rows()
    made = [rows.run(CHUNK.name) for _ in range(height)]
    for value in reversed(made):
        rows.add("free", value)
    return rows


def test_parts_have_the_most_of_their_instructions() -> None:
    points = over_step(memory(mountain(4)), 4)
    assert [point["activations"] for point in points] == [8000, 16000, 12000, 4000]
    assert {point["parameters"] for point in points} == {4000}
    assert {point["optimizer"] for point in points} == {0}  # nothing is updated


def test_a_short_step_has_a_part_per_instruction() -> None:
    points = over_step(memory(mountain(1)), 10)
    assert [point["activations"] for point in points] == [4000, 0]
    assert over_step(memory(Rows()), 10) == []


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (None, "?"),
        (0, "0B"),
        (1023, "1023B"),
        (1536, "1.5KiB"),
        (3 * 2**40, "3072.0GiB"),
    ],
)
def test_bytes_have_a_unit(number: int | None, text: str) -> None:
    assert format_bytes(number) == text


def test_a_picture_has_ranks_kinds_and_a_unit(tmp_path: Path) -> None:
    rows = mountain(3)
    [gradient] = rows.add("read", results=1, symbol="w$b", slot="grad")
    rows.add("update", gradient, results=1, bucket="w$b")
    ranks = {"pp 0": memory(rows), "pp 1": memory(mountain(30))}
    file = tmp_path / "memory.svg"
    draw_memory(ranks, file, title="a title")
    text = file.read_text()
    said = set(re.findall(r">([^<>]+)</text>", text))
    assert {"a title", "pp 0", "pp 1", "activations", "communication", "optimizer"} <= said
    assert {name for name in said if name.endswith("iB")} >= {"0KiB", "100KiB"}
    draw_memory(ranks, tmp_path / "again.svg", title="a title")
    assert (tmp_path / "again.svg").read_text() == text
    draw_memory({"all ranks": memory(Rows())}, tmp_path / "empty.png")
    assert (tmp_path / "empty.png").read_bytes().startswith(b"\x89PNG")


def test_a_long_step_is_drawn_by_its_peaks(tmp_path: Path) -> None:
    long, short = mountain(4000), mountain(400)
    for name, rows in (("long", long), ("short", short)):
        draw_memory({"pp 0": memory(rows)}, tmp_path / f"{name}.svg")
    size = {name: (tmp_path / f"{name}.svg").stat().st_size for name in ("long", "short")}
    assert size["long"] < 2 * size["short"]


def test_what_cannot_be_drawn_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"must be a file .svg or .png, got 'memory.pdf'"):
        draw_memory({"pp 0": memory(Rows())}, tmp_path / "memory.pdf")
    with pytest.raises(ValueError, match="a picture of memory must have ranks, got none"):
        draw_memory({}, tmp_path / "memory.svg")
