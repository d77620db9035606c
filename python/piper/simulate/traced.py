"""Traces of real steps beside simulated ones, instruction by instruction.

A trace says which line of a rank program each instruction is, and an entry point has a line per
row of the dump that the simulation reads; so the two are joined by (coordinate, row).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from piper_runtime import Program
from piper_runtime.listing import Line, Listing
from piper_runtime.observe.spans import Span, exposed, meetings, met_at, work
from piper_runtime.observe.trace import VERSION

from piper.simulate.devices import Link
from piper.simulate.facts import ProgramFacts, Row
from piper.simulate.network import Network
from piper.simulate.prices import Profile
from piper.simulate.programs import simulate_program
from piper.simulate.values import COLLECTIVES, MESSAGES

__all__ = ["Instruction", "RankShare", "Trace", "profile_of"]

SECOND = 1e9
Place = tuple[int, int]
"""A coordinate and a row of its program."""


@dataclass(frozen=True, slots=True)
class Instruction:
    """A row of a program as it was measured: the median over the steps and ranks of a trace.

    A message or collective takes from when the last of its ranks came to it until it has ended on
    all: waiting for others does not count. `seconds` has every sample.
    """

    at: int
    row: int
    kind: str
    name: str
    microbatch: int | None
    line: Line
    seconds: tuple[float, ...]

    @property
    def typical(self) -> float:
        """The median, in seconds."""
        return median(self.seconds)


@dataclass(frozen=True, slots=True)
class RankShare:
    """What a rank did in a step, in seconds: medians over the steps of a trace."""

    rank: int
    work: float
    exposed: float


@dataclass(frozen=True)
class Trace:
    """What a trainer recorded of a program: spans in nanoseconds of one clock.

    `about` is what the file says of itself: `entry`, `transport`, `processes`, `steps` and more.
    """

    path: str
    about: Mapping[str, Any]
    spans: tuple[Span, ...]
    facts: ProgramFacts
    listing: Listing

    @classmethod
    def read(cls, path: str | Path, program: Program, facts: ProgramFacts) -> Trace:
        """Read what `trainer.trace` wrote.

        Raises:
            ValueError: the file is no such trace, or of another program.
        """
        if not Path(path).is_file():
            raise ValueError(f"expected a trace that trainer.trace wrote, got {path}")
        try:
            raw = json.loads(Path(path).read_text())
            about = raw["otherData"]["piper"]
            events = raw["traceEvents"]
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(
                f"{path}: expected a trace that trainer.trace wrote, "
                f"got {type(error).__name__}: {error}"
            ) from None
        if about["version"] != VERSION:
            raise ValueError(f"{path}: expected version {VERSION}, got {about['version']}")
        if about["program"] != program.manifest.hash:
            raise ValueError(
                f"{path}: expected a trace of {program.path}, got one of another program: its hash "
                f"starts with {about['program'][:12]}, not {program.manifest.hash[:12]}"
            )
        trace = cls(str(path), about, tuple(_spans(events)), facts, Listing(program))
        for at, rows in facts.entry(about["entry"]).items():
            if len(rows) != len(trace._lines(at)):
                raise ValueError(
                    f"{program.path}: expected a line per instruction of coordinate {at}, got "
                    f"{len(trace._lines(at))} lines and {len(rows)} instructions in its IR"
                )
        return trace

    @property
    def together(self) -> bool:
        """Whether all ranks ran at once, so that it means something when each ran."""
        return int(self.about["processes"]) == self.facts.manifest.mesh.world_size

    @property
    def makespan(self) -> float:
        """Seconds from the first instruction of a step to the last: the median over steps."""
        steps: dict[int, list[Span]] = {}
        for span in self.spans:
            steps.setdefault(span.step, []).append(span)
        lengths = [max(s.end for s in ran) - min(s.start for s in ran) for ran in steps.values()]
        return median(lengths) / SECOND

    def shares(self) -> list[RankShare]:
        """What each rank did."""
        met = met_at(self.spans)
        ran: dict[int, dict[int, list[Span]]] = {}
        for span in self.spans:
            ran.setdefault(span.rank, {}).setdefault(span.step, []).append(span)
        return [
            RankShare(
                rank=rank,
                work=median(map(work, steps.values())) / SECOND,
                exposed=median(exposed(own, met) for own in steps.values()) / SECOND,
            )
            for rank, steps in sorted(ran.items())
        ]

    def instructions(self) -> list[Instruction]:
        """Every row of every program, in order."""
        programs = self.facts.entry(self.about["entry"])
        samples: dict[Place, list[float]] = {}
        for place, seconds in self._samples():
            samples.setdefault(place, []).append(seconds)
        return [
            Instruction(
                at=at,
                row=index,
                kind=row["op"],
                name=_name(row),
                microbatch=row.get("mb"),
                line=self.listing.line(at, self._lines(at)[index]),
                seconds=tuple(samples[at, index]),
            )
            for at, rows in sorted(programs.items())
            for index, row in enumerate(rows)
            if (at, index) in samples
        ]

    def _samples(self) -> Iterator[tuple[Place, float]]:
        lasted: dict[Span, int] = {}
        for ends in meetings(self.spans).values():
            length = max(span.end for span in ends) - max(span.start for span in ends)
            lasted.update(dict.fromkeys(ends, max(0, length)))
        mesh = self.facts.manifest.mesh
        first = {at: self._lines(at).start for at in range(mesh.num_coordinates)}
        for span in self.spans:
            at = mesh.coordinate(span.rank)
            length = lasted.get(span, span.end - span.start)
            yield (at, span.line - first[at]), length / SECOND

    def _lines(self, at: int) -> range:
        return self.listing.entry_lines(at, self.about["entry"])


def profile_of(trace: Trace, *, machine: str) -> Profile:
    """Seconds per kernel, and bytes per second of memory, as they were in a trace.

    A kernel takes the median of its launches, with what its chunk does around it; a chunk of
    several kernels is shared out by the bytes that they touch. The bandwidth is what sums,
    accumulations, norms and updates reached together.

    Raises:
        ValueError: nothing of this kind is in the trace.
    """
    facts, entry = trace.facts, trace.about["entry"]
    samples: dict[str, list[float]] = {}
    moved = _moved(facts, entry)
    num_bytes = seconds = 0.0
    for instruction in trace.instructions():
        row = facts.entry(entry)[instruction.at][instruction.row]
        if row["op"] == "run":
            for kernel, share in _kernel_shares(facts, row["chunk"]).items():
                samples.setdefault(kernel, []).extend(s * share for s in instruction.seconds)
        elif moved[instruction.at, instruction.row]:
            num_bytes += moved[instruction.at, instruction.row] * len(instruction.seconds)
            seconds += sum(instruction.seconds)
    if not samples or not seconds:
        raise ValueError(f"{trace.path}: expected kernels and updates to measure, got none")
    kernels = {name: max(1e-9, median(times)) for name, times in sorted(samples.items())}
    return Profile(machine, kernels, num_bytes / seconds)


class _Bytes:
    """Prices in which a byte takes a second and kernels take none."""

    def kernel(self, name: str) -> float:
        return 0.0

    def traffic(self, num_bytes: float) -> float:
        return num_bytes


def _moved(facts: ProgramFacts, entry: str) -> dict[Place, float]:
    """The bytes that each instruction of a compute stream reads and writes."""
    instant = Network(Link("instant", "", 1e30, 0.0, {}))
    simulation = simulate_program(facts, _Bytes(), instant, entry=entry)
    rows = facts.entry(entry)
    return {
        (at, index): 0.0 if _talks(rows[at][index]) else end - start
        for at, spans in simulation.times.items()
        for index, (start, end) in enumerate(spans)
    }


def _kernel_shares(facts: ProgramFacts, chunk: str) -> dict[str, float]:
    """Which part of a chunk's time each launch of a kernel takes."""
    weights = {kernel: 1 + facts.kernels[kernel].bytes for kernel in facts.chunks[chunk].kernels}
    total = sum(weights[kernel] for kernel in facts.chunks[chunk].kernels)
    return {kernel: weight / total for kernel, weight in weights.items()}


def _talks(row: Row) -> bool:
    return row["op"] in MESSAGES or row["op"] in COLLECTIVES


def _name(row: Row) -> str:
    """What an instruction does, the same for all microbatches."""
    if row["op"] == "run":
        return str(row["chunk"])
    if row["op"] in MESSAGES:
        return f"{row['op']} {row.get('label') or row['stream']}"
    keys = ("stream", "bucket", "symbol", "input", "name", "loss")
    what = next((row[key] for key in keys if row.get(key)), "")
    return f"{row['op']} {what}".strip()


def _spans(events: Sequence[Mapping[str, Any]]) -> Iterable[Span]:
    """Spans of the instructions of a trace; a communicator is called by the number of what met."""
    threads = {
        (event["pid"], event["tid"]): event["args"]["name"]
        for event in events
        if event["name"] == "thread_name"
    }
    for event in events:
        about = event.get("args", {})
        if "instruction" not in about:
            continue
        start = round(event["ts"] * 1e3)
        yield Span(
            rank=event["pid"],
            step=about["step"],
            stream=threads[event["pid"], event["tid"]],
            kind=about["instruction"],
            label="",
            line=int(about["program"].rpartition(":")[2]),
            microbatch=about.get("microbatch"),
            start=start,
            end=start + round(event["dur"] * 1e3),
            comm=f"{about['comm']} {about['meeting']}" if "meeting" in about else "",
            peer=about.get("peer", -1),
        )
