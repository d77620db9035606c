"""Interleaved zero bubble: ZB-H1 with several chunks of the model per rank."""

from __future__ import annotations

from piper.schedules.cell import Action
from piper.schedules.rows import loop_order, microbatches_per_round, one_forward_one_backward
from piper.schedules.table import Table

__all__ = ["interleaved_zero_bubble"]


def interleaved_zero_bubble(ranks: int, microbatches: int, chunks: int) -> Table:
    """The table of InterleavedZeroBubble, for chunks >= 2 per rank.

    ZB1P of Qi et al., 2024, arXiv:2401.10241, over the rounds of Interleaved1F1B: microbatches must
    be a multiple of their rounds, microbatches // ranks (at least 1). Rank r runs each W r input
    gradients later than its own. Stage s is on rank s mod ranks.
    With ranks=2, microbatches=4, chunks=2, every cell taking one step:

    ```
      step   0    1    2    3    4    5    6    7    8    9    10   11   12   13   14   15   16
    rank 0  0F0  0F1  2F0  2F1   .   2I0  2W0  0F2  2I1  2W1  0F3  0I0  0W0  2F2  0I1  0W1  2F3
    rank 1   .   1F0  1F1  3F0  3I0  3F1  3I1  3W0  1F2  1I0  3W1  1F3  1I1  1W0  3F2  3I2  1W1

      step   17   18   19   20   21   22   23   24
    rank 0  2I2  2W2  2I3  2W3  0I2  0W2  0I3  0W3
    rank 1  3F3  3I3  3W2  1I2  3W3  1I3  1W2  1W3
    ```

    Bubble (ranks - 1)(F + I - W), with the times of one chunk, for W <= min(F, I) and microbatches
    a multiple of ranks; with two chunks a rank holds at most 2 * ranks chunks' activations until
    their W.
    """
    order = loop_order(ranks, microbatches, chunks)
    size = microbatches_per_round(ranks, microbatches)
    last = chunks - 1
    back = [((last - chunk) * ranks, microbatch) for chunk, microbatch in order]
    return Table(
        one_forward_one_backward(
            [Action(chunk * ranks + rank, "F", microbatch) for chunk, microbatch in order],
            [Action(first + rank, "I", microbatch) for first, microbatch in back],
            ahead=last * size + ranks - 1 - rank,
            weights=[Action(first + rank, "W", microbatch) for first, microbatch in back],
            late=rank,
        )
        for rank in range(ranks)
    )
