"""Batches: names of leaves, cutting, and every message of the signature check."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from piper_runtime.inputs.batch import InputSpec, leaves, microbatches, shards

IDS = InputSpec("ids", (2, 3), "int64", 0)
COLUMNS = InputSpec("columns", (3, 2), "float32", 1)
MASK = InputSpec("mask", (3,), "bool", None)


def batch() -> dict[str, torch.Tensor]:
    return {
        "ids": torch.arange(24).view(8, 3),
        "columns": torch.arange(24.0).view(3, 8),
        "mask": torch.tensor([True, False, True]),
    }


def test_leaves_are_named_by_path() -> None:
    nested = {"ids": 1, "a": {"b": [2, None]}}
    assert leaves(nested) == {"ids": 1, "a.b.0": 2, "a.b.1": None}
    assert leaves((3, 4)) == {"0": 3, "1": 4}
    assert leaves("alone") == {"batch": "alone"}


def test_leaves_with_one_name_are_refused() -> None:
    with pytest.raises(ValueError, match=r"distinct names, got two 'a\.b'"):
        leaves({"a": {"b": 1}, "a.b": 2})


def test_shards_are_outer_and_microbatches_inner() -> None:
    parts = shards(batch(), [IDS, COLUMNS, MASK], num_shards=2, num_microbatches=2)
    assert [part["ids"].shape for part in parts] == [(4, 3), (4, 3)]
    inner = microbatches(parts[1], [IDS, COLUMNS, MASK], num_microbatches=2)
    assert torch.equal(inner[0]["ids"], batch()["ids"][4:6])
    assert torch.equal(inner[1]["columns"], batch()["columns"][:, 6:8])
    assert all(torch.equal(part["mask"], batch()["mask"]) for part in (*parts, *inner))
    assert inner[0]["ids"].data_ptr() == parts[1]["ids"].data_ptr(), "a view where it can be"
    assert all(value.is_contiguous() for part in inner for value in part.values())


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("ids", torch.zeros(6, 3, dtype=torch.int64), r"'ids' expected shape \(8, 3\) \(4 micro"),
        ("ids", torch.zeros(8, 3), "'ids' expected dtype int64, got float32"),
        ("ids", [[1]], "batch expected input 'ids', got"),
        ("columns", 3.0, "'columns' expected a tensor, got float"),
        ("mask", torch.ones(6, dtype=torch.bool), r"\(3,\) \(replicated\), got \(6,\)"),
        ("more", torch.zeros(1), "expected only inputs .*, got tensor 'more'"),
    ],
)
def test_other_batches_are_refused(name: str, value: Any, message: str) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        shards(batch() | {name: value}, [IDS, COLUMNS, MASK], num_shards=2, num_microbatches=2)


def test_leaves_that_are_not_tensors_are_ignored() -> None:
    extra = batch() | {"note": "text", "nothing": None}
    assert "note" not in shards(extra, [IDS, COLUMNS, MASK], num_shards=1, num_microbatches=4)[0]
