"""Which communication a rank waits for with nothing to compute, by kind and by axis."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from types import MappingProxyType

__all__ = ["KINDS", "Exposure", "Talk", "measure_exposed"]

Span = tuple[float, float]

KINDS = MappingProxyType(
    {
        "send": "messages",
        "recv": "messages",
        "all_reduce": "reductions",
        "reduce_scatter": "reductions",
        "all_gather": "gathers",
        "all_to_all": "all_to_all",
        "broadcast": "broadcasts",
        "permute": "permutes",
    }
)
"""What instructions are called here."""


@dataclass(frozen=True, slots=True)
class Talk:
    """A message or collective: its kind, the axis along which ranks differ, when it was under way,
    and the bytes that a rank has of it by link.
    """

    kind: str
    axis: str
    span: Span
    num_bytes: Mapping[str, float]


@dataclass(frozen=True)
class Exposure:
    """Communication of one kind along one axis, at one coordinate: times are in seconds.

    `under_way` is the time in which some of it is, and `exposed` the part of it in which its compute
    stream is idle: waiting for a peer does not count, waiting for bytes does. Where communication of
    several kinds or axes is under way and nothing is computed, each has an equal part of that time,
    so that all of them add up. `num_bytes` are those that a rank sends or receives, by link.
    """

    kind: str
    axis: str
    under_way: float
    exposed: float
    num_bytes: Mapping[str, float]


def measure_exposed(talks: Sequence[Talk], work: Sequence[Span]) -> tuple[Exposure, ...]:
    """Sum up what was under way at a coordinate whose compute stream was busy in `work`.

    By kind, in the order of `KINDS`, then by axis. The cost is that of sorting.
    """
    numbers = {key: number for number, key in enumerate(_keys(talks))}
    under_way, exposed = [0.0] * len(numbers), [0.0] * len(numbers)
    counts, busy = [0] * len(numbers), 0
    moments = sorted(_moments(talks, work, numbers))
    for (time, number, step), (until, _, _) in pairwise(moments):
        if number < 0:
            busy += step
        else:
            counts[number] += step
        if until == time:
            continue
        active = [number for number, count in enumerate(counts) if count]
        for number in active:
            under_way[number] += until - time
            exposed[number] += 0.0 if busy else (until - time) / len(active)
    moved: dict[tuple[str, str], dict[str, float]] = {key: {} for key in numbers}
    for talk in talks:
        sums = moved[talk.kind, talk.axis]
        for link, num_bytes in talk.num_bytes.items():
            sums[link] = sums.get(link, 0.0) + num_bytes
    return tuple(
        Exposure(*key, under_way[number], exposed[number], MappingProxyType(moved[key]))
        for key, number in numbers.items()
    )


def _keys(talks: Sequence[Talk]) -> list[tuple[str, str]]:
    """The kinds and axes that there are."""
    kinds = list(dict.fromkeys(KINDS.values()))
    found = {(talk.kind, talk.axis) for talk in talks}
    return sorted(found, key=lambda key: (kinds.index(key[0]), key[1]))


def _moments(
    talks: Sequence[Talk], work: Sequence[Span], numbers: Mapping[tuple[str, str], int]
) -> Iterator[tuple[float, int, int]]:
    """When something starts (+1) or ends (-1): a number of kind and axis, or -1 for compute."""
    spans = [(-1, span) for span in work]
    spans += [(numbers[talk.kind, talk.axis], talk.span) for talk in talks]
    for number, (start, end) in spans:
        if end > start:
            yield start, number, 1
            yield end, number, -1
