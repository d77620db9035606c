"""1F1B: as few microbatches in flight as the pipeline's depth allows."""

from __future__ import annotations

from piper.schedules.table import Action, Table


def one_f_one_b(stages: int, microbatches: int) -> Table:
    """The table of 1F1B, for any microbatches >= 1 (fewer than `stages` leave ranks waiting).

    PipeDream-Flush (Narayanan et al., 2021, arXiv:2006.09503); DAPPLE (arXiv:2007.01045).
    With 3 stages and 4 microbatches, a backward as long as a forward:

    ```
      step   0    1    2    3    4    5    6    7    8    9    10   11
    rank 0  0F0  0F1  0F2   .    .   0B0  0F3  0B1   .   0B2   .   0B3
    rank 1   .   1F0  1F1   .   1B0  1F2  1B1  1F3  1B2   .   1B3   .
    rank 2   .    .   2F0  2B0  2F1  2B1  2F2  2B2  2F3  2B3   .    .
    ```

    Bubble (stages - 1)(F + B), as GPipe's; rank r holds min(microbatches, stages - r) microbatches.
    """
    return Table(_row(stage, stages, microbatches) for stage in range(stages))


def _row(stage: int, stages: int, microbatches: int) -> list[Action]:
    """Forwards to fill the stages behind, then one forward and one backward, then what is left."""
    ahead = min(microbatches, stages - 1 - stage)
    row = [Action(stage, "F", microbatch) for microbatch in range(ahead)]
    for microbatch in range(microbatches):
        if microbatch + ahead < microbatches:
            row.append(Action(stage, "F", microbatch + ahead))
        row.append(Action(stage, "B", microbatch))
    return row
