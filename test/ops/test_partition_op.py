"""Parts of values by a rank's index."""

from __future__ import annotations

import pytest
import torch
from piper_runtime.ops.partition import clear_padding, part
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

own = torch.ops.piper


def index_of(number: int) -> Tensor:
    return torch.tensor([number])


@pytest.mark.parametrize("dim", [0, 1, 2])
@pytest.mark.parametrize("parts", [1, 2, 3, 6])
def test_parts_are_chunks(dim: int, parts: int) -> None:
    x = torch.rand(6, 12, 18)
    for number, expected in enumerate(x.chunk(parts, dim)):
        found = part(x, index_of(number), dim, parts)
        assert torch.equal(found, expected)
        assert found.is_contiguous() or parts == 1


@pytest.mark.parametrize("size", [1, 5, 6])
def test_the_last_parts_have_zeros_behind_the_whole(size: int) -> None:
    x = torch.rand(3, size)
    found = [part(x, index_of(number), 1, 4) for number in range(4)]
    assert {tuple(one.shape) for one in found} == {(3, -(-size // 4))}
    joined = torch.cat(found, 1)
    assert torch.equal(joined[:, :size], x)
    assert not joined[:, size:].any()


@pytest.mark.parametrize("size", [1, 5, 6, 8])
def test_padding_is_cleared(size: int) -> None:
    """What is no part of the whole, whatever is there; the part itself stays as it is."""
    width = -(-size // 4)
    for number in range(4):
        x = torch.full((3, width, 2), torch.nan)
        own = max(0, min(width, size - number * width))
        x[:, :own] = 1.0
        found = clear_padding(x, 1, index=index_of(number), parts=4, size=size)
        assert torch.equal(found, x.nan_to_num(0.0))
        assert found.data_ptr() != x.data_ptr()


def test_a_part_is_no_view() -> None:
    """What writes to it leaves the whole as it is."""
    x = torch.zeros(4, 2)
    part(x, index_of(1), 0, 2).fill_(1.0)
    assert not x.any()


def test_shapes_are_known_without_values() -> None:
    with FakeTensorMode():
        x, index = torch.empty(4, 6, dtype=torch.bfloat16), torch.empty(1, dtype=torch.int64)
        found = own.part.default(x, index, 1, 3)
    assert (found.shape, found.dtype) == ((4, 2), torch.bfloat16)


def test_an_index_out_of_range_is_an_error() -> None:
    with pytest.raises(IndexError, match="out of range"):
        part(torch.rand(4), index_of(2), 0, 2)


def test_the_checker_of_torch_agrees() -> None:
    """Schema, fake kernel and what is computed belong together."""
    torch.library.opcheck(own.part.default, (torch.rand(4, 6), index_of(1), 1, 3))
