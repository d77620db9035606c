"""DualPipe: the model twice, in opposite directions, each filling the other's bubble."""

from __future__ import annotations

from piper.schedules.cell import Action, Pair
from piper.schedules.eight_steps import eight_steps
from piper.schedules.lanes import Lane
from piper.schedules.table import Table

__all__ = ["dual_pipe"]


def dual_pipe(ranks: int, microbatches: int) -> Table:
    """The table of DualPipe (DeepSeek-V3, 2024, arXiv:2412.19437).

    For an even number of ranks and an even number of microbatches, at least 2 * ranks, which counts
    both directions: the first half of them runs stage s on rank s, the second half on rank
    ranks - 1 - s. So each rank holds two stages, and each stage is on two ranks.
    `0F1&3B4` is a forward and a backward that overlap.
    With ranks=4, microbatches=8, every cell taking one step:

    ```
      step   0    1    2    3    4    5    6      7        8        9        10     11   12   13
    rank 0  0F0  0F1  0F2  3F4  3I4  3W4  3F5  0F3&3B5  3F6&0B0    3B6    3F7&0B1  3B7  0I2  0W2
    rank 1   .   1F0  2F4  1F1  2F5  1F2  2B4  2F6&1B0  1F3&2B5  2F7&1B1    2B6    1B2  2I7  1I3
    rank 2   .   1F4  2F0  1F5  2F1  1F6  2B0  2F2&1B4  1F7&2B1  2F3&1B5    2B2    1B6  2I3  1I7
    rank 3  0F4  0F5  0F6  3F0  3I0  3W0  3F1  0F7&3B1  3F2&0B4    3B2    3F3&0B5  3B3  0I6  0W6

      step   14   15
    rank 0  0I3  0W3
    rank 1  2W7  1W3
    rank 2  2W3  1W7
    rank 3  0I7  0W7
    ```

    Bubble (ranks / 2 - 1)(F&B + B - 3W) for F = I >= W and F&B = F + B, where F&B is the time of a
    pair; a rank holds at most ranks + 1 activations of a stage until their input gradient.
    """
    return Table(_row(rank, ranks, microbatches // 2) for rank in range(ranks))


def _row(rank: int, ranks: int, half: int) -> list[Action | Pair]:
    """The steps of a rank: its distance to the nearer end says what it runs when."""
    forth = Lane(rank)
    back = Lane(ranks - 1 - rank, next_forward=half, next_backward=half)
    near, far = (forth, back) if rank < ranks // 2 else (back, forth)
    return eight_steps(near, far, position=near.stage, depth=ranks // 2, microbatches=half)
