"""Rows that several schedules are made of."""

from __future__ import annotations

from collections.abc import Sequence

from piper.schedules.cell import Action

__all__ = ["loop_order", "microbatches_per_round", "one_forward_one_backward", "rounds"]


def one_forward_one_backward(
    forwards: Sequence[Action],
    backwards: Sequence[Action],
    *,
    ahead: int,
    weights: Sequence[Action] = (),
    late: int = 0,
) -> list[Action]:
    """Some forwards, then one forward and one backward in turn, then what is left.

    Args:
        forwards: in issue order.
        backwards: as many; B, or I where there are weights.
        ahead: how many forwards come first.
        weights: the W of each backward, or none.
        late: how many backwards later than its own a W comes.
    """
    row = list(forwards[:ahead])
    for index, backward in enumerate(backwards):
        row += forwards[ahead + index : ahead + index + 1]
        row.append(backward)
        if index >= late:
            row += weights[index - late : index - late + 1]
    return row + list(weights[max(len(backwards) - late, 0) :])


def rounds(ranks: int, microbatches: int) -> int:
    """How many rounds interleaved schedules have: as many microbatches each as ranks, or more."""
    return max(1, microbatches // ranks)


def microbatches_per_round(ranks: int, microbatches: int) -> int:
    """The microbatches of a round, which are all microbatches where those are fewer than ranks."""
    return microbatches // rounds(ranks, microbatches)


def loop_order(ranks: int, microbatches: int, chunks: int) -> list[tuple[int, int]]:
    """The (chunk, microbatch) of each forward of a rank: a round through all chunks, then the next.

    `microbatches` must be a multiple of their rounds.
    """
    size = microbatches_per_round(ranks, microbatches)
    return [
        (chunk, microbatch)
        for first in range(0, microbatches, size)
        for chunk in range(chunks)
        for microbatch in range(first, first + size)
    ]
