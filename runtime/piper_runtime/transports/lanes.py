"""Lanes: streams of a device, and what the host knows of the order between them.

A clock says, per stream, the last instruction that comes before what a stream does next. A stream
that waits for a point of another takes over the clock of that point, so no wait is issued twice:

    compute | 0 F | 1 record          clock {compute: 1}
    send    |     | wait | 2 send     clock {compute: 1, send: 2}
    compute | 3 F |   wait | 4 free   clock {compute: 4, send: 2}
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from torch import Tensor

from piper_runtime.devices import Event, Stream
from piper_runtime.instruction import Instruction

__all__ = ["NOTHING", "Lane", "Lanes", "Mark"]

NOTHING = -1  # the number of what was issued before the call
UNKNOWN = -2
Clock = dict[str, int]


@dataclass(frozen=True, slots=True)
class Mark:
    """A recorded point of a lane, behind instruction ``number`` and all that ``clock`` says."""

    number: int
    event: Event
    clock: Clock


@dataclass(slots=True)
class Lane:
    """A stream of the device.

    ``clock`` is what its next work comes behind; ``last`` is the last instruction issued to it.
    ``issued`` are those that are not known to be done, ``marks`` the points not known to be passed,
    both in order; ``kept`` are the tensors that an instruction uses until compute comes behind it.
    """

    name: str
    stream: Stream
    slot: int
    last: int = NOTHING
    clock: Clock = field(default_factory=dict)
    issued: deque[Instruction] = field(default_factory=deque)
    marks: deque[Mark] = field(default_factory=deque)
    kept: deque[tuple[int, tuple[Tensor, ...]]] = field(default_factory=deque)

    def issue(self, instruction: Instruction) -> None:
        """Note that an instruction was issued to the lane, behind all others."""
        self.last = self.clock[self.name] = instruction.number
        self.issued.append(instruction)

    def keep(self, number: int, tensors: tuple[Tensor, ...]) -> None:
        """Keep what an instruction uses from going back to the allocator."""
        self.kept.append((number, tensors))

    def release(self, until: int) -> None:
        """Let go of what instructions up to ``until`` use."""
        while self.kept and self.kept[0][0] <= until:
            self.kept.popleft()

    def head(self) -> Instruction | None:
        """Return the first instruction that is not known to be done, after asking the device."""
        last = self.last  # before asking: the host may issue more meanwhile
        if self.issued and self.stream.idle():
            self._passed(last)
        while self.marks and self.marks[0].event.done():
            self._passed(self.marks.popleft().number)
        return self.issued[0] if self.issued else None

    def _passed(self, number: int) -> None:
        while self.issued and self.issued[0].number <= number:
            self.issued.popleft()

    def clear(self) -> None:
        """Forget a call whose instructions are done."""
        self.last = NOTHING
        for held in (self.clock, self.issued, self.marks, self.kept):
            held.clear()


class Lanes:
    """The lanes of a rank, and the waits between them."""

    def __init__(self, compute: Lane) -> None:
        """Start with compute alone."""
        self.compute = compute
        self.by_name = {compute.name: compute}
        self._marks: dict[int, Mark] = {}

    def mark(self, lane: Lane) -> Mark:
        """Return the point behind everything issued to a lane so far."""
        mark = self._marks.get(lane.last)
        if mark is None:
            mark = self._marks[lane.last] = Mark(lane.last, lane.stream.record(), dict(lane.clock))
            lane.marks.append(mark)
        return mark

    def follow(self, lane: Lane, before: Instruction) -> bool:
        """Let what a lane does next come behind an instruction; return whether it has to wait.

        What has no point of its own is waited for at the end of its lane.
        """
        name = before.stream
        if name == lane.name or lane.clock.get(name, UNKNOWN) >= before.number:
            return False
        mark = self._marks.get(before.number)
        self._wait(lane, self.mark(self.by_name[name]) if mark is None else mark)
        return True

    def follow_all(self, lane: Lane, other: Lane) -> bool:
        """Let what a lane does next come behind all that was issued to another, in this call or
        before; return whether it has to wait.
        """
        if lane.clock.get(other.name, UNKNOWN) >= other.last:
            return False
        self._wait(lane, self.mark(other))
        return True

    def release(self) -> None:
        """Let go of what instructions use that compute comes behind."""
        for lane in self.by_name.values():
            lane.release(self.compute.clock.get(lane.name, NOTHING))

    def oldest(self) -> Instruction | None:
        """Return the first instruction that is not known to be done."""
        heads = [lane.issued[0] for lane in self.by_name.values() if lane.issued]
        return min(heads, key=lambda head: head.number, default=None)

    def clear(self) -> None:
        """Forget a call whose instructions are done."""
        self._marks.clear()
        for lane in self.by_name.values():
            lane.clear()
        self.compute.clock[self.compute.name] = NOTHING

    def _wait(self, lane: Lane, mark: Mark) -> None:
        lane.stream.wait(mark.event)
        for name, number in mark.clock.items():
            lane.clock[name] = max(number, lane.clock.get(name, UNKNOWN))
