"""Breadth-first pipelining: every chunk runs all its microbatches before the next one does."""

from __future__ import annotations

from piper.schedules.cell import Action
from piper.schedules.table import Table

__all__ = ["looped_bfs"]


def looped_bfs(ranks: int, microbatches: int, chunks: int) -> Table:
    """The table of LoopedBFS, for chunks >= 2 per rank and any microbatches >= 1.

    Lamy-Poirier, 2022, arXiv:2211.05953. Stage s is on rank s mod ranks; backwards run in the
    reverse order of the forwards. With fewer microbatches than ranks, ranks wait at every chunk.
    With ranks=2, microbatches=3, chunks=2, every cell taking one step:

    ```
      step   0    1    2    3    4    5    6    7    8    9    10   11   12   13
    rank 0  0F0  0F1  0F2  2F0  2F1  2F2   .    .   2B2  2B1  2B0  0B2  0B1  0B0
    rank 1   .   1F0  1F1  1F2  3F0  3F1  3F2  3B2  3B1  3B0  1B2  1B1  1B0   .
    ```

    Bubble (ranks - 1)(F + B), with the times of one chunk, for microbatches >= ranks; every rank
    holds the activations of all its chunks and microbatches.
    """
    return Table(_row(range(rank, chunks * ranks, ranks), microbatches) for rank in range(ranks))


def _row(stages: range, microbatches: int) -> list[Action]:
    order = [(stage, microbatch) for stage in stages for microbatch in range(microbatches)]
    forwards = [Action(stage, "F", microbatch) for stage, microbatch in order]
    return forwards + [Action(stage, "B", microbatch) for stage, microbatch in reversed(order)]
