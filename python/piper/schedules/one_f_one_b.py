"""1F1B: as few microbatches in flight as the pipeline's depth allows."""

from __future__ import annotations

from piper.schedules.cell import Action
from piper.schedules.rows import one_forward_one_backward
from piper.schedules.table import Table

__all__ = ["one_f_one_b"]


def one_f_one_b(ranks: int, microbatches: int) -> Table:
    """The table of 1F1B, for any microbatches >= 1 (fewer than `ranks` leave ranks waiting).

    PipeDream-Flush (Narayanan et al., 2021, arXiv:2006.09503); DAPPLE (arXiv:2007.01045).
    With ranks=3, microbatches=4, every cell taking one step:

    ```
      step   0    1    2    3    4    5    6    7    8    9    10   11
    rank 0  0F0  0F1  0F2   .    .   0B0  0F3  0B1   .   0B2   .   0B3
    rank 1   .   1F0  1F1   .   1B0  1F2  1B1  1F3  1B2   .   1B3   .
    rank 2   .    .   2F0  2B0  2F1  2B1  2F2  2B2  2F3  2B3   .    .
    ```

    Bubble (ranks - 1)(F + B), as GPipe's; rank r holds min(microbatches, ranks - r) microbatches.
    """
    return Table(
        one_forward_one_backward(
            [Action(rank, "F", microbatch) for microbatch in range(microbatches)],
            [Action(rank, "B", microbatch) for microbatch in range(microbatches)],
            ahead=ranks - 1 - rank,
        )
        for rank in range(ranks)
    )
