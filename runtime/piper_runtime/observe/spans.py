"""Spans: when each instruction of a step ran, and what that says about the rank that ran it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from piper_runtime.instruction import COMPUTE, Instruction
from piper_runtime.transports.base import Observer

__all__ = ["Meeting", "Recorder", "Span", "exposed", "meetings", "met_at", "work"]

Interval = tuple[int, int]
Meeting = tuple[int, str, tuple[int, ...], int, int, int]
"""Which message or collective a span is part of: the step, the communicator and its members, the
sender and the receiver (-1 for a collective), and how many like it came before in the step."""


class Span(NamedTuple):
    """One finished instruction; ``start`` and ``end`` are nanoseconds of its process's clock.

    Of an instruction that communicates, ``members`` are the world ranks of the communicator
    ``comm``, ``peer`` is that of the other end of a message, and ``value`` what both ends call it.
    ``sent`` are the bytes that an all_to_all gave to other ranks.
    """

    rank: int
    step: int
    stream: str
    kind: str
    label: str
    line: int
    microbatch: int | None
    start: int
    end: int
    comm: str = ""
    members: tuple[int, ...] = ()
    peer: int = -1
    value: str = ""
    sent: int | None = None


class Recorder:
    """An observer that keeps what it is told, and tells it to the observer that was there before.

    Several threads may call it at once: appending to a list is atomic.
    """

    __slots__ = ("_following", "_seen")

    def __init__(self, following: Observer | None = None) -> None:
        """Start with nothing seen."""
        self._seen: list[tuple[Instruction, int, int]] = []
        self._following = following

    def __call__(self, instruction: Instruction, start: int, end: int) -> None:
        """Keep an instruction; see ``Observer``."""
        self._seen.append((instruction, start, end))
        if self._following is not None:
            self._following(instruction, start, end)

    def spans(self, step: int) -> list[Span]:
        """Return what was seen, as spans of a step, and forget the instructions.

        Spans of one stream are in its order.
        """
        seen, self._seen = self._seen, []
        return [_span(step, *entry) for entry in seen]


def meetings(spans: Iterable[Span]) -> dict[Meeting, list[Span]]:
    """Return the spans of each message and collective: an end or a member each.

    Both ends of a communicator issue the same in one order, so the n-th of one end belongs to the
    n-th of the other.
    """
    found: dict[Meeting, list[Span]] = {}
    counts: Counter[tuple[int, tuple[object, ...]]] = Counter()
    for span in spans:
        if not span.comm:
            continue
        ends = (-1, -1)
        if span.kind == "send":
            ends = (span.rank, span.peer)
        elif span.kind == "recv":
            ends = (span.peer, span.rank)
        key = (span.step, span.comm, span.members, *ends)
        number = counts[span.rank, key]
        counts[span.rank, key] += 1
        found.setdefault((*key, number), []).append(span)
    return found


def met_at(spans: Iterable[Span]) -> dict[Meeting, int]:
    """Return when the last of those given came to each message and collective."""
    return {key: max(span.start for span in met) for key, met in meetings(spans).items()}


def work(spans: Iterable[Span]) -> int:
    """Return the nanoseconds in which the compute stream of a rank was busy."""
    return sum(span.end - span.start for span in spans if span.stream == COMPUTE)


def exposed(spans: Sequence[Span], met: Mapping[Meeting, int]) -> int:
    """Return the nanoseconds in which a rank communicated while its compute stream was idle.

    A message or collective is under way from when all have come to it, which is ``met``, to its end
    here: waiting for a peer does not count, waiting for bytes does.
    """
    busy = [(span.start, span.end) for span in spans if span.stream == COMPUTE]
    talks = [
        (max(span.start, min(met[key], span.end)), span.end)
        for key, own in meetings(spans).items()
        for span in own
    ]
    return _length([*talks, *busy]) - _length(busy)


def _length(intervals: list[Interval]) -> int:
    """Return the length of the union of intervals."""
    total, until = 0, None
    for start, end in sorted(intervals):
        if until is None or start > until:
            total, until = total + end - start, end
        elif end > until:
            total, until = total + end - until, end
    return total


def _span(step: int, instruction: Instruction, start: int, end: int) -> Span:
    message = instruction.message
    about = (
        instruction.rank.home.index,
        step,
        instruction.stream,
        instruction.kind,
        instruction.label,
        instruction.line,
        instruction.microbatch,
        start,
        end,
    )
    if message is None:
        return Span(*about)
    where = message.comm.name, message.comm.members, message.peer
    return Span(*about, *where, message.label, message.sent)
