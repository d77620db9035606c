"""The arithmetic of collectives between processes."""

from __future__ import annotations

import pytest
import torch
from piper_runtime.transports.base import rank_order_sum
from piper_runtime.transports.exchange import sum_into


@pytest.mark.parametrize("size", [2, 3, 4, 5])
def test_every_member_adds_in_rank_order(size: int) -> None:
    parts = torch.randn(size, 100, generator=torch.Generator().manual_seed(size))
    wanted = rank_order_sum(list(parts))
    assert size == 2 or not torch.equal(wanted, rank_order_sum(list(parts.flip(0))))
    for member in range(size):
        arrived = list(parts.clone())
        own = arrived[member]
        sum_into(own, arrived)
        assert torch.equal(own, wanted)
