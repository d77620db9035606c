"""Parts of values by a rank's index."""

from __future__ import annotations

import pytest
import torch
from piper_runtime.ops.partition import part
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
