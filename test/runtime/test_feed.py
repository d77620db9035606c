"""What each rank gets of a batch: its rows, and its early and its late piece of every sequence."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from piper_runtime.inputs.batch import part_of_sequence
from piper_runtime.inputs.feed import feed_all, feed_one
from piper_runtime.manifest import Manifest
from torch import Tensor

LENGTH, ROWS, MICROBATCHES = 8, 1, 2


def manifest(mesh: dict[str, int], *, parts: int, sequence: bool = True) -> Manifest:
    """Of a step whose rows have ids and labels with a sequence, and a weight without."""
    length = LENGTH // parts
    data = [name for name in mesh if name != "pp"]
    raw: dict[str, Any] = {
        "version": 1,
        "hash": "",
        "mesh": [
            {"name": name, "size": size, "role": "manual" if name in data else "unrolled"}
            for name, size in mesh.items()
        ],
        "microbatches": MICROBATCHES,
        "inputs": [
            {"name": "ids", "shape": [ROWS, length], "dtype": "int64", "dim": 0},
            {"name": "late", "shape": [3, length, ROWS], "dtype": "int64", "dim": 2},
            {"name": "weight", "shape": [ROWS], "dtype": "int64", "dim": 0},
        ],
        "data_axes": data,
        "states": [],
        "buckets": [],
        "comms": [],
        "programs": [f"program_pp{index}.py" for index in range(mesh.get("pp", 1))],
        "entry_points": ["train"],
        "losses": {},
    }
    if sequence:
        raw["sequence"] = {"axis": "cp", "dims": {"ids": 1, "late": 1}, "parts": parts}
    return Manifest.parse(json.dumps(raw))


def make_batch(rows: int, length: int = LENGTH) -> dict[str, Tensor]:
    """Ids that say in which row and at which position they are."""
    ids = 100 * torch.arange(rows)[:, None] + torch.arange(length)
    late = torch.stack([ids.t(), ids.t() + 1000, ids.t() + 2000])
    return {"ids": ids, "late": late, "weight": torch.arange(rows)}


@pytest.mark.parametrize(
    ("parts", "expected"),
    [
        (1, [[0, 1, 2, 3, 4, 5, 6, 7]]),
        (2, [[0, 1, 6, 7], [2, 3, 4, 5]]),
        (4, [[0, 7], [1, 6], [2, 5], [3, 4]]),
    ],
)
def test_parts_are_early_and_late_pieces(parts: int, expected: list[list[int]]) -> None:
    whole = torch.arange(8)
    found = [part_of_sequence(whole, 0, i, parts, name="x").tolist() for i in range(parts)]
    assert found == expected


def test_all_ranks_of_a_row_have_parts_of_it() -> None:
    """An entry per position along the data axes, dp outside: rows by dp, positions by cp."""
    batch = make_batch(2 * MICROBATCHES * ROWS)
    shards = feed_all(batch, manifest({"dp": 2, "cp": 2}, parts=2))
    assert [shard["ids"][:, 0].tolist() for shard in shards] == [
        [0, 100],
        [2, 102],
        [200, 300],
        [202, 302],
    ]
    assert shards[3]["ids"][1].tolist() == [302, 303, 304, 305]
    assert [shard["weight"].tolist() for shard in shards] == [[0, 1], [0, 1], [2, 3], [2, 3]]


def test_the_sequence_may_be_any_dim() -> None:
    shards = feed_all(make_batch(2), manifest({"cp": 2}, parts=2))
    for shard in shards:
        assert shard["late"].shape == (3, 4, 2)
        assert torch.equal(shard["late"][1], shard["ids"].t() + 1000)


@pytest.mark.parametrize("order", [("dp", "cp"), ("cp", "dp"), ("dp", "pp", "cp")])
def test_a_process_gets_what_it_would_of_the_whole(order: tuple[str, ...]) -> None:
    """If it feeds its rows with whole sequences, which all ranks along the axis have."""
    made = manifest(dict.fromkeys(order, 2), parts=2)
    batch = make_batch(2 * MICROBATCHES * ROWS)
    shards = feed_all(batch, made)
    for rank in range(made.mesh.world_size):
        row = made.mesh.index(rank, ("dp",))
        dims = {"ids": 0, "late": 2, "weight": 0}
        own = {name: value.chunk(2, dims[name])[row] for name, value in batch.items()}
        expected = shards[made.mesh.index(rank, made.data_axes)]
        found = feed_one(own, made, rank)
        assert found.keys() == expected.keys()
        assert all(torch.equal(found[name], expected[name]) for name in found)


def test_without_a_sequence_each_rank_has_rows_of_its_own() -> None:
    made = manifest({"dp": 2, "cp": 2}, parts=1, sequence=False)
    shards = feed_all(make_batch(4 * MICROBATCHES), made)
    assert [shard["ids"][0, 0].item() for shard in shards] == [0, 200, 400, 600]
    assert all(shard["ids"].shape == (2, LENGTH) for shard in shards)


def test_another_length_than_compiled_says_which_is_right() -> None:
    with pytest.raises(ValueError, match=r"'ids' expected shape \(2, 8\) \(.*\), got \(2, 12\)"):
        feed_all(make_batch(2, length=12), manifest({"cp": 2}, parts=2))


@pytest.mark.parametrize(("size", "parts"), [(6, 2), (7, 1), (12, 4), (0, 2)])
def test_a_length_that_ranks_cannot_share_is_to_be_padded(size: int, parts: int) -> None:
    with pytest.raises(
        ValueError,
        match=rf"input 'ids' expected a sequence, dim 1, of a multiple of {2 * parts} positions, as "
        rf"{parts} ranks have two pieces each, got {size}: pad it, with labels that the loss "
        "ignores",
    ):
        part_of_sequence(torch.zeros(2, size), 1, 0, parts, name="ids")
