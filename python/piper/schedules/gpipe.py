"""GPipe: all forwards, then all backwards."""

from __future__ import annotations

from piper.schedules.cell import Action
from piper.schedules.table import Table

__all__ = ["gpipe"]


def gpipe(ranks: int, microbatches: int) -> Table:
    """The table of GPipe (Huang et al., 2019, arXiv:1811.06965), for any microbatches >= 1.

    With ranks=3, microbatches=4, every cell taking one step:

    ```
      step   0    1    2    3    4    5    6    7    8    9    10   11
    rank 0  0F0  0F1  0F2  0F3   .    .    .    .   0B0  0B1  0B2  0B3
    rank 1   .   1F0  1F1  1F2  1F3   .    .   1B0  1B1  1B2  1B3   .
    rank 2   .    .   2F0  2F1  2F2  2F3  2B0  2B1  2B2  2B3   .    .
    ```

    Bubble (ranks - 1)(F + B); every rank holds the activations of all its microbatches.
    Backwards run in the order of the forwards, as torch's do; the paper's picture reverses them.
    """
    return Table(
        [Action(stage, "F", microbatch) for microbatch in range(microbatches)]
        + [Action(stage, "B", microbatch) for microbatch in range(microbatches)]
        for stage in range(ranks)
    )
