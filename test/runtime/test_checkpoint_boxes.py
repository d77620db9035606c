"""Consecutive elements as boxes."""

from __future__ import annotations

from math import prod

import torch
from hypothesis import given
from hypothesis import strategies as st
from piper_runtime.checkpoint.boxes import Box, boxes


@given(st.data(), st.lists(st.integers(1, 5), max_size=4).map(tuple))
def test_boxes_are_the_elements_in_order(data: st.DataObject, shape: tuple[int, ...]) -> None:
    start = data.draw(st.integers(0, prod(shape)))
    stop = data.draw(st.integers(start, prod(shape)))
    whole = torch.arange(prod(shape)).view(shape)
    found = [*boxes(shape, start, stop)]
    parts = [
        whole[tuple(slice(o, o + s) for o, s in zip(box.offsets, box.sizes, strict=True))]
        for box in found
    ]
    assert [int(x) for part in parts for x in part.reshape(-1)] == list(range(start, stop))
    assert [part.numel() for part in parts] == [box.numel for box in found]
    assert len(found) <= max(1, 2 * len(shape) - 1)


def test_boxes_of_a_part_are_boxes_of_the_whole() -> None:
    """The last two of three parts of the columns, without their first element."""
    found = [box.moved((0, 2)) for box in boxes((2, 4), 1, 8)]
    whole = torch.arange(12).view(2, 6)
    parts = [
        whole[tuple(slice(o, o + s) for o, s in zip(box.offsets, box.sizes, strict=True))]
        for box in found
    ]
    assert [x for part in parts for x in part.flatten().tolist()] == [3, 4, 5, 8, 9, 10, 11]


def test_boxes_behind_the_end_are_clipped() -> None:
    """The second of two parts of five rows has one of padding."""
    found = [box.moved((3, 0)).clipped((5, 2)) for box in boxes((3, 2), 1, 6)]
    assert found == [Box((3, 1), (1, 1)), Box((4, 0), (1, 2))]
    assert Box((6, 0), (3, 2)).clipped((5, 2)).numel == 0


def test_the_picture() -> None:
    expected = [Box((1, 1), (1, 3)), Box((2, 0), (2, 4)), Box((4, 0), (1, 2))]
    assert [*boxes((5, 4), 5, 18)] == expected


def test_a_scalar_is_a_box_and_nothing_is_none() -> None:
    assert [*boxes((), 0, 1)] == [Box((), ())]
    assert [*boxes((3, 0), 0, 0)] == []
    assert [*boxes((2, 3), 4, 4)] == []
