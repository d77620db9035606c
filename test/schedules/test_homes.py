"""Where stages run: the placements with a name, lists, and what is no placement."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from piper.schedules import Homes

ranks = st.integers(1, 6)


def test_placements() -> None:
    assert Homes.each(3).rows == ((0, 1, 2),)
    assert Homes.loop(2, 6).rows == ((0, 1, 0, 1, 0, 1),)
    assert Homes.v(2, 4).rows == ((0, 1, 1, 0),)
    assert Homes.v(3, 9).rows == ((0, 1, 2, 2, 1, 0, 0, 1, 2),)
    assert Homes.bidirectional(2, 4).rows == ((0, 1), (0, 1), (1, 0), (1, 0))
    assert Homes.listed([1, 1, 0]).rows == ((1, 1, 0),)


def test_a_home_may_depend_on_the_microbatch() -> None:
    homes = Homes.bidirectional(4, 8)
    assert [homes.of(1, microbatch) for microbatch in (0, 3, 4, 7)] == [1, 1, 2, 2]
    assert (homes.stages, homes.ranks, homes.microbatches, homes.chunks) == (4, 4, 8, 2)
    assert Homes.v(2, 4).of(3, 100) == 0
    assert Homes.v(2, 4).microbatches is None


def test_equal_rows_are_one_row() -> None:
    homes = Homes(((0, 1, 1, 0),) * 4)
    assert homes == Homes.v(2, 4)
    assert (homes.rows, homes.microbatches, str(homes)) == (((0, 1, 1, 0),), None, "v")
    assert homes.renaming(Homes.listed([1, 0, 0, 1])) == (1, 0)


def test_chunks_is_the_most_stages_of_a_rank() -> None:
    assert Homes.listed([0, 1, 1, 1]).chunks == 3
    assert Homes.each(4).chunks == 1


@pytest.mark.parametrize(
    ("homes", "text"),
    [
        (Homes.each(2), "each"),
        (Homes.loop(2, 4), "loop"),
        (Homes.v(2, 4), "v"),
        (Homes.bidirectional(2, 2), "bidirectional"),
        (Homes.listed([0, 0, 1, 1]), "[0, 0, 1, 1]"),
        (Homes(((0, 1), (1, 0), (0, 1))), "[[0, 1], [1, 0], [0, 1]]"),
    ],
)
def test_text_is_the_name_if_there_is_one(homes: Homes, text: str) -> None:
    assert str(homes) == text


@given(ranks, st.integers(1, 4), st.randoms())
def test_renaming(size: int, chunks: int, chance: Any) -> None:
    names = list(range(size))
    chance.shuffle(names)
    homes = Homes.v(size, size * chunks)
    renamed = Homes.listed([names[rank] for rank in homes.rows[0]])
    assert homes.renaming(renamed) == tuple(names)


def test_no_renaming_between_different_placements() -> None:
    assert Homes.v(2, 4).renaming(Homes.loop(2, 4)) is None
    assert Homes.listed([0, 0, 1]).renaming(Homes.listed([0, 1, 2])) is None
    assert Homes.each(2).renaming(Homes.bidirectional(2, 2)) is None
    assert Homes.each(2).renaming(Homes.each(3)) is None
    assert Homes.listed([0, 1, 0]).renaming(Homes.listed([0, 0, 1])) is None


wrong: Any = "a"


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ((), r"at least one stage, got \(\)"),
        (((),), r"at least one stage, got \(\(\),\)"),
        (((0, 1), (0,)), r"one rank for each of 2 stages, got \(0,\) for microbatch 1"),
        (((0, -1),), r"homes must be ints of at least 0, got \(\(0, -1\),\)"),
        (((0, wrong),), "homes must be ints of at least 0, got"),
        (((0, 2, 2),), r"a stage on every rank, got \[0, 2, 2\] without 1"),
    ],
)
def test_refuses_rows(rows: tuple[tuple[int, ...], ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Homes(rows)


def test_refuses_numbers_that_do_not_fit() -> None:
    with pytest.raises(
        ValueError, match="a loop needs stages to be a multiple of ranks = 2, got 3"
    ):
        Homes.loop(2, 3)
    with pytest.raises(ValueError, match="a v needs stages to be a multiple of ranks = 4, got 2"):
        Homes.v(4, 2)
    with pytest.raises(ValueError, match="even number of ranks, at least 2, got 3"):
        Homes.bidirectional(3, 4)
    with pytest.raises(ValueError, match="even number of microbatches, at least 2, got 5"):
        Homes.bidirectional(2, 5)
    with pytest.raises(ValueError, match="each needs stages == ranks = 2, got 3"):
        Homes.named("each", ranks=2, stages=3, microbatches=1)
    with pytest.raises(ValueError, match="bidirectional needs stages == ranks = 2, got 4"):
        Homes.named("bidirectional", ranks=2, stages=4, microbatches=2)
