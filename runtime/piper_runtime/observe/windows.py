"""Windows: consecutive steps of a trainer that somebody looks at, and what is written of them."""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from piper_runtime.instruction import Instruction
from piper_runtime.observe.clocks import Clocks, Order
from piper_runtime.observe.spans import Span, meetings
from piper_runtime.observe.trace import Bounds, Recording, write_trace
from piper_runtime.program import Program
from piper_runtime.transports.base import Transport

__all__ = ["Steps", "Submit", "TraceWindow", "Window"]

Steps = int | Iterable[int] | None
"""A step, consecutive steps, or all steps while a window is open; the first step is 1."""
Submit = Callable[[Instruction], None]


class Window(ABC):
    """Looks on from its first step to its last and then writes ``path``."""

    what: str
    records = False
    """Whether it needs the spans of its steps."""

    def __init__(self, path: str | Path, steps: Steps, *, done: int) -> None:
        """Check where and when, after ``done`` steps; raises ValueError or FileNotFoundError."""
        self.path = Path(path)
        self.steps = _consecutive(self.what, steps, done)
        self._state = "waiting"
        if not self.path.parent.is_dir():
            raise FileNotFoundError(
                f"{self.what} expected a file in a folder that exists, got {path}"
            )

    def wants(self, step: int) -> bool:
        """Return whether a step belongs to the window."""
        return self._state != "done" and (self.steps is None or step in self.steps)

    def begin(self) -> None:
        """Get ready for a step that belongs to the window."""
        if self._state == "waiting":
            self._state = "open"
            self.open()

    def end(self, spans: Sequence[Span], bounds: Bounds) -> None:
        """Take what was seen of the step; after the last one, write."""
        self.add(spans, bounds)
        if self.steps is not None and bounds[0] == self.steps[-1]:
            self._finish()

    def close(self, last: int) -> None:
        """Finish at the end of the block; says so if no step of the window came until ``last``."""
        if self._state == "waiting":
            steps = "a step" if self.steps is None else f"step {self.steps[0]}"
            self._say(f"was not written: expected {steps}, the last was {last}")
        self._finish()

    def cancel(self) -> None:
        """Stop without writing, after an error."""
        if self._state == "open":
            self.discard()
            self._say("was not written: a step failed")
        self._state = "done"

    # What kinds of windows differ in.

    def wrap(self, submit: Submit) -> Submit:
        """Return what instructions of a step are handed to."""
        return submit

    def open(self) -> None:
        """Start to look."""
        return

    def add(self, spans: Sequence[Span], bounds: Bounds) -> None:
        """Keep a step."""
        return

    def discard(self) -> None:
        """Stop looking."""
        return

    @abstractmethod
    def write(self) -> None:
        """Stop looking and write what was seen."""

    def _finish(self) -> None:
        state, self._state = self._state, "done"
        if state == "open":
            self.write()

    def _say(self, text: str) -> None:
        print(f"piper: {self.what} {self.path} {text}", file=sys.stderr)


class TraceWindow(Window):
    """Records every instruction; the process of rank 0 writes those of all ranks."""

    what = "trace"
    records = True

    def __init__(
        self,
        path: str | Path,
        steps: Steps,
        *,
        done: int,
        program: Program,
        transport: Transport,
        clocks: Callable[[], Clocks],
    ) -> None:
        """Check that all ranks want the same steps; raises ValueError."""
        super().__init__(path, steps, done=done)
        self._program, self._transport, self._clocks = program, transport, clocks
        self._bounds: list[Bounds] = []
        self._spans: list[Span] = []
        wanted = transport.gather(self.steps)
        odd = [rank for rank, theirs in enumerate(wanted) if theirs != wanted[0]]
        if odd:
            raise ValueError(
                f"trace expected the same steps on all ranks, got {wanted[0]} on rank 0 and "
                f"{wanted[odd[0]]} on rank {odd[0]}"
            )

    def add(self, spans: Sequence[Span], bounds: Bounds) -> None:
        """Keep a step."""
        self._spans += spans
        self._bounds.append(bounds)

    def write(self) -> None:
        """Gather the spans of all processes and write one file."""
        transport = self._transport
        own = Recording(transport.ranks, tuple(self._bounds), tuple(self._spans))
        recordings = transport.gather(own)
        clocks = self._clocks()
        if 0 not in transport.ranks:
            return
        ahead = clocks.solve(_messages(recordings))
        write_trace(self.path, recordings, ahead, program=self._program, transport=transport.name)
        self._say("was written: open it in ui.perfetto.dev")


def _messages(recordings: Sequence[Recording]) -> Iterator[Order]:
    """Yield that each message was sent before it was received."""
    process = {rank: place for place, each in enumerate(recordings) for rank in each.ranks}
    for ends in meetings(span for each in recordings for span in each.spans).values():
        by_kind = {span.kind: span for span in ends}
        if by_kind.keys() == {"send", "recv"}:
            sent, received = by_kind["send"], by_kind["recv"]
            yield process[sent.rank], sent.start, process[received.rank], received.end


def _consecutive(what: str, steps: Steps, done: int) -> range | None:
    """Return the steps as a range; raises ValueError for others, and for those that are over."""
    if steps is None:
        return None
    numbers = [steps] if isinstance(steps, int) else sorted(steps)
    wanted = range(numbers[0], numbers[-1] + 1) if numbers else range(0)
    if not numbers or numbers != list(wanted):
        raise ValueError(f"{what} expected consecutive steps, got {steps}")
    if numbers[0] <= done:
        raise ValueError(f"{what} expected steps from {done + 1} on, got {steps}")
    return wanted
