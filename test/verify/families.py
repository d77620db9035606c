"""One representative of each family of sharded strategies, small enough to try all its mutants.

Two stages, two data ranks, three layers, so that one stage has two buckets of equal types, and two
steps, so that what one step leaves behind is used.
"""

from __future__ import annotations

import torch
from compiled import Strategy
from sharded import Sharded

__all__ = ["FAMILIES"]


def _family(case: Sharded, *, reduce_dtype: torch.dtype | None = None) -> Strategy:
    return Strategy(case, case.stages, layers=3, steps=2, reduce_dtype=reduce_dtype)


FAMILIES = {
    "ZeRO-0, each": _family(Sharded("1F1B", 2, 2, 3, zero=0, reduce="each")),
    "ZeRO-1, last": _family(Sharded("1F1B", 2, 2, 3, zero=1, reduce="last")),
    "ZeRO-1, each": _family(Sharded("1F1B", 2, 2, 3, zero=1, reduce="each")),
    "ZeRO-2, each, reduced in fp32": _family(
        Sharded("1F1B", 2, 2, 3, zero=2, reduce="each"), reduce_dtype=torch.float32
    ),
    "ZeRO-3, each, gathered per group": _family(
        Sharded("1F1B", 2, 2, 3, zero=3, reduce="each", gather="group")
    ),
    "ZeRO-3, gathered per step": _family(Sharded("1F1B", 2, 2, 3, zero=3, gather="step")),
    "HSDP 2 x 2, stage 2": _family(Sharded("1F1B", 2, 2, 2, zero=2, rep=2)),
    "DualPipe, ZeRO-3": _family(Sharded("DualPipe", 2, 2, 4, zero=3)),
}
