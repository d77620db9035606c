"""ZB-V: two chunks per rank, placed as a V, with the memory of 1F1B."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import cast

from piper.schedules.cell import Action, Pass
from piper.schedules.table import Table

__all__ = ["zbv_zero_bubble"]


def zbv_zero_bubble(ranks: int, microbatches: int) -> Table:
    """The table of ZBVZeroBubble (Qi et al., 2024, arXiv:2401.10241), for any microbatches >= 1.

    Rank r holds stages r and 2 * ranks - 1 - r. Fewer than 2 * ranks - 1 microbatches run in the
    order of that many, with the others left out.
    With ranks=2, microbatches=4, every cell taking one step:

    ```
      step   0    1    2    3    4    5    6    7    8    9    10   11   12   13   14   15   16
    rank 0  0F0  0F1  0F2  3F0  3I0  3W0  3F1  3I1  3W1  0F3  0I0  0W0  3F2  3I2  3W2  0I1  0W1
    rank 1   .   1F0  2F0  1F1  2F1  2I0  2W0  1F2  1I0  1W0  2F2  2I1  2W1  1F3  1I1  1W1  2F3

      step   17   18   19   20   21   22   23   24
    rank 0  3F3  3I3  3W3  0I2  0W2  0I3  0W3   .
    rank 1  2I2  2W2  1I2  2I3  1I3  1W2  2W3  1W3
    ```

    With the times of one chunk and microbatches >= 2 * ranks - 1, the bubble within the longest
    rank is 0 if F = I = W and 2(ranks - 1)(I - W) for I >= F >= W; every rank holds at most
    2 * ranks chunks' activations until their W.
    """
    return Table(_row(rank, ranks, microbatches) for rank in range(ranks))


def _row(rank: int, ranks: int, microbatches: int) -> list[Action]:
    """What a rank runs: each pass of each stage takes the microbatches in order."""
    count: Counter[tuple[int, Pass]] = Counter()
    row: list[Action] = []
    for stage, passes in _turns(rank, ranks, max(microbatches, 2 * ranks - 1)):
        for pass_ in cast(Sequence[Pass], passes):
            row.append(Action(stage, pass_, count[stage, pass_]))
            count[stage, pass_] += 1
    return [action for action in row if action.microbatch < microbatches]


def _turns(rank: int, ranks: int, microbatches: int) -> list[tuple[int, str]]:
    """The passes that a rank runs in turn, with more forwards at the end than microbatches."""
    down, up = rank, 2 * ranks - 1 - rank
    return [
        # Fill both ways of the V.
        *[(down, "F")] * (2 * (ranks - rank) - 1),
        *[(up, "F"), (down, "F")] * rank,
        *[(up, "FIW")] * (ranks - rank),
        # Run them in turn.
        *[(down, "FIW"), (up, "FIW")] * (microbatches - ranks),
        # Drain the input gradients first: other ranks wait for them.
        *[(down, "I"), (up, "I")] * rank,
        *[(down, "IW")] * (ranks - rank),
        *[(up, "W")] * rank,
        *[(down, "W")] * rank,
    ]
