"""Check mode compares every value of a strategy with the single process."""

from __future__ import annotations

import piper
import pytest
import small_gpt
from oracle import BOUND, sgd
from sharded import Sharded
from small_gpt import TAGS, token_loss


@pytest.mark.parametrize(
    "case",
    [
        Sharded("1F1B", 2, 2, 2),
        Sharded("DualPipe", 2, 2, 4, zero=1),
        Sharded("ZBVZeroBubble", 2, 2, 4, zero=2),
        Sharded("1F1B", 2, 2, 2, zero=3),
    ],
    ids=str,
)
def test_all_values_are_those_of_the_single_process(case: Sharded) -> None:
    """Also where ranks share out states, and kernels see values with other strides than captured."""
    captures = small_gpt.captures(tied=True)
    (batch,) = small_gpt.batches(case, steps=1)
    strategy = case.strategy(TAGS, sgd, clip=0.5, stages=case.stages)
    program = captures.compile(strategy, batch)
    summary = piper.check(program, token_loss, batch, model=captures.model, bound=BOUND)
    assert summary.compared > 300
    assert summary.unknown <= 16  # sums over other chunks than the single process has
