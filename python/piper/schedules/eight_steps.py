"""The eight steps of DualPipe, which its V form shares."""

from __future__ import annotations

from piper.schedules.cell import Action, Pair
from piper.schedules.lanes import Lane, LaneRow

__all__ = ["eight_steps"]


def eight_steps(
    near: Lane, far: Lane, *, position: int, depth: int, microbatches: int
) -> list[Action | Pair]:
    """The row of one rank, in the steps of DeepSeek's DualPipe (arXiv:2412.19437).

    Args:
        near: the lane whose microbatches come by this rank first.
        far: the lane whose microbatches come by here on their way back.
        position: how far from where near's microbatches enter, from 0.
        depth: how many positions there are until the two lanes meet.
        microbatches: of each lane; at least 2 * depth.
    """
    row = LaneRow()
    before_the_middle = depth - 1 - position
    row.forward(near, times=2 * before_the_middle)  # 1: fill
    for _ in range(position + 1):  # 2: fill both ways
        row.forward(near)
        row.forward(far)
    for _ in range(before_the_middle):  # 3: first backwards, halved so that they pass on early
        row.input(far)
        row.weight()
        row.forward(far)
    for turn in range(microbatches - 2 * depth + position + 1):  # 4: both lanes, overlapped
        if turn == 0 and before_the_middle == 0:
            # Apart, the first forward here is done earlier: a smaller bubble.
            row.forward(near)
            row.backward(far)
        else:
            row.pair(near, far)
        row.pair(far, near)
    for _ in range(before_the_middle):  # 5: near has no forwards left
        row.backward(far)
        row.pair(far, near)
    for turn, lane in enumerate((far, near) * (position + 1)):  # 6: drain, the later half halved
        if turn <= position:
            row.backward(lane)
        else:
            row.input(lane)
    for _ in range(before_the_middle):  # 7: weights while input gradients are on their way
        row.weight()
        row.input(near)
    row.weight(times=position + 1)  # 8: weights that are left
    return row.cells
