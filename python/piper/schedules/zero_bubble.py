"""ZB-H1 and ZB-H2: the weight half of backwards fills what 1F1B leaves idle."""

from __future__ import annotations

from piper.schedules.cell import Action
from piper.schedules.rows import one_forward_one_backward
from piper.schedules.table import Table

__all__ = ["zbh1", "zbh2"]


def zbh1(ranks: int, microbatches: int) -> Table:
    """The table of ZBH1 (Qi et al., 2024, arXiv:2401.10241), for any microbatches >= 1.

    1F1B with halved backwards; rank r runs each W r input gradients later than its own, so that
    every rank holds as much as 1F1B's first.
    With ranks=3, microbatches=4, every cell taking one step:

    ```
      step   0    1    2    3    4    5    6    7    8    9    10   11   12   13
    rank 0  0F0  0F1  0F2   .    .   0I0  0W0  0F3  0I1  0W1  0I2  0W2  0I3  0W3
    rank 1   .   1F0  1F1   .   1I0  1F2  1I1  1W0  1F3  1I2  1W1  1I3  1W2  1W3
    rank 2   .    .   2F0  2I0  2F1  2I1  2F2  2I2  2W0  2F3  2I3  2W1  2W2  2W3
    ```

    Bubble (ranks - 1)(F + I - W) for W <= min(F, I) and microbatches >= ranks; every rank holds at
    most `ranks` microbatches until their W.
    """
    return Table(
        _row(rank, microbatches, ahead=ranks - 1 - rank, late=rank) for rank in range(ranks)
    )


def zbh2(ranks: int, microbatches: int) -> Table:
    """The table of ZBH2 (Qi et al., 2024, arXiv:2401.10241), for any microbatches >= 1.

    ZBH1 with twice as many forwards ahead: no rank idles between its first and its last action if
    F = I = W and microbatches >= 2 * ranks - 1, for the memory of nearly twice as many microbatches.
    With ranks=3, microbatches=5, every cell taking one step:

    ```
      step   0    1    2    3    4    5    6    7    8    9    10   11   12   13   14   15   16
    rank 0  0F0  0F1  0F2  0F3  0F4  0I0  0W0  0I1  0W1  0I2  0W2  0I3  0W3  0I4  0W4   .    .
    rank 1   .   1F0  1F1  1F2  1I0  1F3  1I1  1F4  1I2  1W0  1I3  1W1  1I4  1W2  1W3  1W4   .
    rank 2   .    .   2F0  2I0  2F1  2I1  2F2  2I2  2F3  2I3  2F4  2I4  2W0  2W1  2W2  2W3  2W4
    ```

    For W <= min(F, I) and microbatches >= 2 * ranks - 1 the bubble within the longest rank is
    (ranks - 1)(F + I - 2W), that of the whole (ranks - 1) max(F, F + I - 2W); every rank holds at
    most 2 * ranks - 1 microbatches until their W.
    """
    return Table(
        _row(rank, microbatches, ahead=2 * (ranks - 1 - rank), late=2 * rank)
        for rank in range(ranks)
    )


def _row(stage: int, microbatches: int, *, ahead: int, late: int) -> list[Action]:
    return one_forward_one_backward(
        [Action(stage, "F", microbatch) for microbatch in range(microbatches)],
        [Action(stage, "I", microbatch) for microbatch in range(microbatches)],
        ahead=ahead,
        weights=[Action(stage, "W", microbatch) for microbatch in range(microbatches)],
        late=late,
    )
