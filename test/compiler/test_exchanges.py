"""What ranks get in an exchange, as check mode's single process computes it."""

from __future__ import annotations

import pytest
import torch
from piper.reference.exchanges import Exchange, exchange
from torch import Tensor

GIVEN = [torch.arange(8.0).view(2, 4), torch.arange(8.0, 16.0).view(2, 4)]


def made(kind: str, dim: int = 0, sizes: list[list[int]] | None = None) -> list[Tensor]:
    return exchange(Exchange(kind, None, None, ("tp",), dim, None), GIVEN, sizes)


def test_a_sum_is_the_same_everywhere() -> None:
    assert all(torch.equal(value, GIVEN[0] + GIVEN[1]) for value in made("all_reduce"))


@pytest.mark.parametrize("dim", [0, 1])
def test_parts_of_a_sum(dim: int) -> None:
    total = GIVEN[0] + GIVEN[1]
    for value, part in zip(made("reduce_scatter", dim), total.chunk(2, dim), strict=True):
        assert torch.equal(value, part)


@pytest.mark.parametrize("dim", [0, 1])
def test_parts_are_joined_in_rank_order(dim: int) -> None:
    assert all(torch.equal(value, torch.cat(GIVEN, dim)) for value in made("all_gather", dim))


def test_equal_parts_change_hands() -> None:
    first, second = made("all_to_all", 1)
    assert torch.equal(first, torch.cat([GIVEN[0][:, :2], GIVEN[1][:, :2]], 1))
    assert torch.equal(second, torch.cat([GIVEN[0][:, 2:], GIVEN[1][:, 2:]], 1))


def test_rows_go_where_their_sizes_say() -> None:
    """The first rank keeps both of its rows, the second keeps one."""
    first, second = made("all_to_all", 0, [[2, 0], [1, 1]])
    assert torch.equal(first, torch.cat([GIVEN[0], GIVEN[1][:1]]))
    assert torch.equal(second, GIVEN[1][1:])
