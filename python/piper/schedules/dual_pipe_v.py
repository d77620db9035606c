"""DualPipeV: half of DualPipe, its two directions joined to one V."""

from __future__ import annotations

from piper.schedules.eight_steps import eight_steps
from piper.schedules.lanes import Lane
from piper.schedules.table import Table

__all__ = ["dual_pipe_v"]


def dual_pipe_v(ranks: int, microbatches: int) -> Table:
    """The table of DualPipeV, for microbatches >= 2 * ranks.

    DeepSeek-V3, 2024, arXiv:2412.19437, cut in half as by Qi et al. ("DualPipe could be better
    without the Dual", 2025). Rank r holds stages r and 2 * ranks - 1 - r.
    `0F1&3B0` is a forward and a backward that overlap.
    With ranks=2, microbatches=5, every cell taking one step:

    ```
      step   0    1    2    3    4    5    6      7        8        9        10       11       12
    rank 0  0F0  0F1  0F2  3F0  3I0  3W0  3F1  0F3&3B1  3F2&0B0  0F4&3B2  3F3&0B1    3B3    3F4&0B2
    rank 1   .   1F0  2F0  1F1  2F1  1F2  2B0  2F2&1B0  1F3&2B1  2F3&1B1  1F4&2B2  2F4&1B2    2B3

      step   13   14   15   16   17
    rank 0  3B4  0I3  0W3  0I4  0W4
    rank 1  1B3  2I4  1I4  2W4  1W4
    ```

    With the times of one chunk, bubble (ranks - 1)(F&B + B - 3W) for F = I >= W and F&B = F + B,
    where F&B is the time of a pair; a rank holds at most 2 * ranks + 1 chunks' activations until
    their input gradient.
    """
    return Table(
        eight_steps(
            Lane(rank),
            Lane(2 * ranks - 1 - rank),
            position=rank,
            depth=ranks,
            microbatches=microbatches,
        )
        for rank in range(ranks)
    )
