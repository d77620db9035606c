"""Traces in the JSON of Chrome, which Perfetto (ui.perfetto.dev) shows: all ranks in one file.

    process  rank 1 (pp 1, dp 0)
    thread     step          | step 3                                     |
    thread     compute       | PP:1F0                | PP:1B0        |          cells, and in them
                             | layer.1$F | head$F    | head$B | ...              every instruction
    thread     send$0.1   | recv ...  |                                         arrows: messages and
                          ^ from send of rank 0                                 collectives

Every instruction of every rank is there once, with category ``instruction``. ``args`` say which
line of which program it is, where that comes from, and ``meeting`` numbers what its message or
collective has in common. What else a reader needs is under ``otherData.piper``.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from piper_runtime.instruction import COMPUTE
from piper_runtime.listing import Line, Listing
from piper_runtime.mesh import Mesh
from piper_runtime.observe.clocks import Clock
from piper_runtime.observe.spans import Span, meetings
from piper_runtime.program import Program

__all__ = ["VERSION", "Recording", "instruction_name", "write_trace"]

VERSION = 1
STEP = "step"
Event = dict[str, Any]
Bounds = tuple[int, int, int]
"""A step, and when it began and ended."""


@dataclass(frozen=True, slots=True)
class Recording:
    """Some steps of the ranks of one process, in nanoseconds of its clock."""

    ranks: tuple[int, ...]
    steps: tuple[Bounds, ...]
    spans: tuple[Span, ...]


def write_trace(
    path: Path,
    recordings: Sequence[Recording],
    clocks: Sequence[Clock],
    *,
    program: Program,
    transport: str,
) -> None:
    """Write one file for all processes; ``clocks`` has one entry per recording."""
    trace = _Trace(recordings, clocks, program)
    about = {
        "version": VERSION,
        "program": program.manifest.hash,
        "entry": "train",
        "mesh": str(program.manifest.mesh),
        "transport": transport,
        "processes": len(recordings),
        "steps": [number for number, _, _ in recordings[0].steps],
        "clocks": [
            {"ranks": list(recording.ranks), "ahead_ns": clock.ahead, "error_ns": clock.error}
            for recording, clock in zip(recordings, clocks, strict=True)
        ],
    }
    head = json.dumps({"displayTimeUnit": "ms", "otherData": {"piper": about}})
    with path.open("w") as file:
        file.write(f'{head[:-1]}, "traceEvents": [\n')
        for number, event in enumerate(trace.events()):
            file.write(f"{',' if number else ''}{json.dumps(event)}\n")
        file.write("]}\n")


def instruction_name(span: Span, listing: Listing, coordinate: int) -> str:
    """Return ``layer.1$F``, ``send layer.1$F#0 to rank 2``, ``all_to_all layer.0 dispatch`` or
    ``accumulate head.weight$b``.
    """
    if span.kind == "run":
        return listing.chunk(coordinate, span.label.removeprefix("chunk "))
    if span.kind in ("send", "recv"):
        way = "to" if span.kind == "send" else "from"
        return " ".join(filter(None, (span.kind, span.value, way, f"rank {span.peer}")))
    if span.value:
        return f"{span.kind} {span.value}"
    return f"{span.kind} {span.label}".strip()


class _Trace:
    """The events of a trace; times are made relative to the first, on the first process's clock."""

    def __init__(
        self, recordings: Sequence[Recording], clocks: Sequence[Clock], program: Program
    ) -> None:
        self._mesh: Mesh = program.manifest.mesh
        self._listing = Listing(program)
        self._spans: dict[int, list[Span]] = {}
        self._steps: dict[int, list[Bounds]] = {}
        for recording, clock in zip(recordings, clocks, strict=True):
            moved = [_moved(span, clock.ahead) for span in recording.spans]
            steps = [
                (n, start - clock.ahead, end - clock.ahead) for n, start, end in recording.steps
            ]
            for rank in recording.ranks:
                self._spans[rank] = [span for span in moved if span.rank == rank]
                self._steps[rank] = steps
        starts = [start for steps in self._steps.values() for _, start, _ in steps]
        self._zero = min(starts, default=0)
        met = meetings(span for spans in self._spans.values() for span in spans)
        self._meetings = {span: number for number, ends in enumerate(met.values()) for span in ends}
        self._met = list(met.values())
        self._threads = {rank: _threads(spans) for rank, spans in self._spans.items()}

    def events(self) -> Iterator[Event]:
        """Yield names, then ranges, then arrows."""
        for rank in sorted(self._spans):
            yield from self._names(rank)
            yield from self._of_steps(rank)
            yield from self._of_cells(rank)
            yield from self._of_instructions(rank)
        for number, ends in enumerate(self._met):
            yield from self._arrow(number, ends)

    def _names(self, rank: int) -> Iterator[Event]:
        for kind, value in (
            ("process_name", {"name": self._mesh.describe(rank)}),
            ("process_sort_index", {"sort_index": rank}),
        ):
            yield {"ph": "M", "name": kind, "pid": rank, "tid": 0, "args": value}
        for stream, thread in self._threads[rank].items():
            for kind, named in (
                ("thread_name", {"name": stream}),
                ("thread_sort_index", {"sort_index": thread}),
            ):
                yield {"ph": "M", "name": kind, "pid": rank, "tid": thread, "args": named}

    def _of_steps(self, rank: int) -> Iterator[Event]:
        for number, start, end in self._steps[rank]:
            yield self._range(rank, STEP, f"step {number}", STEP, start, end, {"step": number})

    def _of_cells(self, rank: int) -> Iterator[Event]:
        runs = [
            (line.cell, span)
            for span in self._spans[rank]
            if span.kind == "run" and (line := self._line(span)).cell
        ]
        for step, group in itertools.groupby(runs, key=lambda run: run[1].step):
            for name, start, end in _cells(list(group)):
                about = {"step": step, "cell": name}
                yield self._range(rank, COMPUTE, f"PP:{name}", "cell", start, end, about)

    def _of_instructions(self, rank: int) -> Iterator[Event]:
        for span in self._spans[rank]:
            line = self._line(span)
            name = instruction_name(span, self._listing, self._mesh.coordinate(rank))
            about = {
                "step": span.step,
                "instruction": span.kind,
                "chunk": name if span.kind == "run" else "",
                "microbatch": span.microbatch,
                "cell": line.cell,
                "source": line.source,
                "module": line.module,
                "directive": line.directive,
                "program": line.place,
                "comm": span.comm,
                "peer": None if span.peer < 0 else span.peer,
                "bytes_sent": span.sent,
                "meeting": self._meetings.get(span),
                **dict.fromkeys(line.flags, True),
            }
            known = {key: value for key, value in about.items() if value not in ("", None)}
            category = f"instruction,{span.kind}"
            yield self._range(rank, span.stream, name, category, span.start, span.end, known)

    def _arrow(self, number: int, ends: Sequence[Span]) -> Iterator[Event]:
        """Yield the points of the arrow from who came first to who came last, or from the sender.

        Each lies in the range that it belongs to and none before the one that it comes from.
        """
        if len(ends) < 2:
            return
        message = {"send", "recv"} == {span.kind for span in ends}
        ends = sorted(ends, key=lambda span: (span.kind == "recv", span.start))
        latest = ends[0].start
        for place, span in enumerate(ends):
            latest = min(max(latest, span.start), span.end)
            event = self._at(span.rank, span.stream, latest)
            event["ph"] = "s" if place == 0 else "f" if place == len(ends) - 1 else "t"
            event["cat"] = "message" if message else "collective"
            event["name"] = span.comm
            event["id"] = number
            event["bp"] = "e"
            yield event

    def _range(
        self,
        rank: int,
        stream: str,
        name: str,
        category: str,
        start: int,
        end: int,
        about: Mapping[str, Any],
    ) -> Event:
        event = self._at(rank, stream, start)
        return event | {
            "ph": "X",
            "name": name,
            "cat": category,
            "dur": (end - start) / 1e3,
            "args": about,
        }

    def _at(self, rank: int, stream: str, time: int) -> Event:
        thread = self._threads[rank][stream]
        return {"pid": rank, "tid": thread, "ts": (time - self._zero) / 1e3}

    def _line(self, span: Span) -> Line:
        return self._listing.line(self._mesh.coordinate(span.rank), span.line)


def _moved(span: Span, ahead: int) -> Span:
    return span._replace(start=span.start - ahead, end=span.end - ahead) if ahead else span


def _threads(spans: Iterable[Span]) -> dict[str, int]:
    """Number the threads of a rank: steps, compute, the others by name."""
    streams = {span.stream for span in spans} - {COMPUTE}
    return {name: number for number, name in enumerate([STEP, COMPUTE, *sorted(streams)])}


def _cells(runs: Sequence[tuple[str, Span]]) -> Iterator[tuple[str, int, int]]:
    """Yield a range per cell of a step, from its first run to its last; cells that alternate are
    a pair, such as ``0F3&1B2``.
    """
    last = {cell: place for place, (cell, _) in enumerate(runs)}
    group: dict[str, None] = {}
    start, until = 0, -1
    for place, (cell, span) in enumerate(runs):
        if place > until:
            group, start = {}, span.start
        group[cell] = None
        until = max(until, last[cell])
        if place == until:
            yield "&".join(sorted(group, key=lambda name: "F" not in name)), start, span.end
