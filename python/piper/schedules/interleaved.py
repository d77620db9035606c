"""Interleaved 1F1B: several chunks of the model per rank, so that the bubble is of one chunk."""

from __future__ import annotations

from piper.schedules.cell import Action
from piper.schedules.rows import loop_order, microbatches_per_round, one_forward_one_backward
from piper.schedules.table import Table

__all__ = ["interleaved_1f1b"]


def interleaved_1f1b(ranks: int, microbatches: int, chunks: int) -> Table:
    """The table of Interleaved1F1B, for chunks >= 2 per rank.

    Narayanan et al., 2021, arXiv:2104.04473, where microbatches are a multiple of ranks. Here they
    must be a multiple of their rounds, microbatches // ranks (at least 1), as in torch: 10 on 4
    ranks are two rounds of 5. Stage s is on rank s mod ranks.
    With ranks=2, microbatches=4, chunks=2, every cell taking one step:

    ```
      step   0    1    2    3    4    5    6    7    8    9    10   11   12   13   14   15   16
    rank 0  0F0  0F1  2F0  2F1  0F2  2B0  0F3  2B1  2F2  0B0  2F3  0B1   .   2B2   .   2B3  0B2
    rank 1   .   1F0  1F1  3F0  3B0  3F1  3B1  1F2  1B0  1F3  1B1  3F2  3B2  3F3  3B3  1B2  1B3

      step   17
    rank 0  0B3
    rank 1   .
    ```

    Bubble (ranks - 1)(F + B), with the times of one chunk. If microbatches are a multiple of ranks,
    rank r holds at most 2(ranks - r - 1) + (chunks - 1) ranks + 1 chunks' activations.
    """
    order = loop_order(ranks, microbatches, chunks)
    size = microbatches_per_round(ranks, microbatches)
    last = chunks - 1
    return Table(
        one_forward_one_backward(
            [Action(chunk * ranks + rank, "F", microbatch) for chunk, microbatch in order],
            [Action((last - chunk) * ranks + rank, "B", microbatch) for chunk, microbatch in order],
            ahead=last * size + 2 * (ranks - 1 - rank),
        )
        for rank in range(ranks)
    )
