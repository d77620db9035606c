"""When each instruction of a compiled program runs, and what that costs.

The model is the abstract machine of the dialect: every rank has a stream for compute and one per
communicator, each first in, first out; a message or collective is a rendezvous that occupies the
streams of all members; an instruction waits for the events that it lists; the host issues in order,
`issue` seconds each, and blocks only at a host_wait. One rank stands for all along manual axes.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from piper_runtime import Program
from piper_runtime.optimizer import OptimizerFactory

from piper.simulate.engine import Timing
from piper.simulate.facts import ProgramFacts, Row
from piper.simulate.memory import Memory, measure_memory, optimizer_bytes
from piper.simulate.network import Network
from piper.simulate.prices import Prices
from piper.simulate.tables import Step
from piper.simulate.translation import Translation
from piper.simulate.values import COLLECTIVES, MESSAGES

__all__ = ["ProgramSimulation", "simulate_program"]

Span = tuple[float, float]
STEPS = 3
"""How many steps follow each other; by the last, the time from step to step has settled."""


@dataclass(frozen=True)
class ProgramSimulation:
    """What one step costs, in seconds and bytes; tuples have an entry per coordinate.

    `busy`, `bubble_makespan` and `bubble_span` are those of `Simulation`, of the compute streams;
    a span starts with the first cell of its coordinate, as if what comes before took no time.
    `period` is the time from the end of a step to the end of the next when a trainer runs one after
    the other: each rank starts when its own instructions have ended and the losses are known to it.
    `realized_bubble` is the period less `busy`: between the two bubbles, at the makespan's where
    the step ends in a barrier. `barrier` is an instruction that joins all coordinates (such as that
    of a gradient norm over all ranks), if there is one.

    `exposed` is the time in which communication of a rank is under way and its compute stream is
    idle: waiting for a peer does not count, waiting for bytes does.
    """

    facts: ProgramFacts
    entry: str
    makespan: float
    busy: float
    busy_per_coordinate: tuple[float, ...]
    bubble_makespan: float
    bubble_span: float
    period: float
    barrier: str | None
    exposed: tuple[float, ...]
    memory: tuple[Memory, ...]
    critical_path: tuple[Step, ...]
    times: Mapping[int, tuple[Span, ...]]
    """By coordinate: start and end of each row."""

    @property
    def realized_bubble(self) -> float:
        """What a step of a long run loses."""
        return self.period - self.busy


def simulate_program(
    program: Program | ProgramFacts | str | Path,
    prices: Prices,
    network: Network,
    *,
    entry: str = "train",
    issue: float = 0.0,
    optimizer: OptimizerFactory | float | None = None,
) -> ProgramSimulation:
    """Run an entry point of a compiled program in simulated time.

    Args:
        program: a program, what was read of it, or its directory.
        prices: what compute costs.
        network: what communication costs.
        entry: which entry point.
        issue: seconds that the host needs per instruction.
        optimizer: a factory, or bytes of state per parameter; by default the factory of a program
            that was compiled in this process. Without one an update moves no state.

    Raises:
        ValueError: an instruction or a kernel whose cost is not known, an unknown entry point, a
            link of an unknown axis, a negative `issue`; or instructions that wait for each other.
    """
    facts = program if isinstance(program, ProgramFacts) else ProgramFacts.read(program)
    if optimizer is None and isinstance(program, Program):
        optimizer = program.optimizer
    per_parameter = optimizer_bytes(optimizer) if callable(optimizer) else optimizer
    for axis in network.axes:
        if axis not in facts.manifest.mesh.names:
            raise ValueError(f"link of axis {axis!r} must be for one of {facts.manifest.mesh}")
    translation = Translation(
        facts, facts.entry(entry), prices, network, issue=issue, per_parameter=per_parameter or 0
    )
    for _ in range(STEPS):
        translation.add_step()
    return _summarize(facts, entry, translation, per_parameter)


def _summarize(
    facts: ProgramFacts, entry: str, translation: Translation, per_parameter: float | None
) -> ProgramSimulation:
    """Time all steps; describe the first, and how the later ones follow."""
    timing = translation.graph.run(translation.name)
    times = {
        at: tuple((float(timing.start[node]), float(timing.end[node])) for node in nodes)
        for at, nodes in translation.nodes[0].items()
    }
    lasts = [max(nodes, key=lambda node: float(timing.end[node])) for nodes in translation.ends]
    ends = [float(timing.end[node]) for node in lasts]
    work = {at: _work(translation.rows[at], spans) for at, spans in times.items()}
    busy = tuple(sum(end - start for start, end in spans) for spans in work.values())
    firsts = {at: _first_cell(facts, translation.rows[at], times[at]) for at in times}
    return ProgramSimulation(
        facts=facts,
        entry=entry,
        makespan=ends[0],
        busy=max(busy),
        busy_per_coordinate=busy,
        bubble_makespan=ends[0] - max(busy),
        bubble_span=_bubble_span(work, firsts),
        period=ends[-1] - ends[-2],
        barrier=translation.barrier(),
        exposed=tuple(_exposed(translation.rows[at], times[at], work[at]) for at in times),
        memory=tuple(
            measure_memory(facts, at, rows, translation.values[at], per_parameter=per_parameter)
            for at, rows in translation.rows.items()
        ),
        critical_path=tuple(_critical_path(translation, timing, lasts[0])),
        times=times,
    )


def _first_cell(facts: ProgramFacts, rows: Sequence[Row], times: Sequence[Span]) -> float:
    """When a coordinate starts its first cell: what comes before depends on inputs alone."""
    starts = (start for row, (start, _) in zip(rows, times, strict=True) if facts.action(row))
    return next(starts, 0.0)


def _bubble_span(work: Mapping[int, Sequence[Span]], firsts: Mapping[int, float]) -> float:
    """The longest time from first cell to last work of a coordinate, less the most work in it."""
    parts = [[span for span in own if span[0] >= firsts[at]] for at, own in work.items()]
    spans = [part[-1][1] - part[0][0] for part in parts if part]
    return max(spans, default=0.0) - max(sum(end - start for start, end in p) for p in parts)


def _work(rows: Sequence[Row], spans: Sequence[Span]) -> list[Span]:
    """When the compute stream of a coordinate is busy, in order."""
    return [
        (start, end)
        for row, (start, end) in zip(rows, spans, strict=True)
        if end > start and row["op"] not in (*MESSAGES, *COLLECTIVES, "host_wait")
    ]


def _exposed(
    rows: Sequence[Row],
    spans: Sequence[Span],
    work: Sequence[Span],
) -> float:
    """Seconds in which communication is under way and compute is idle."""
    talks = sorted(
        span
        for row, span in zip(rows, spans, strict=True)
        if row["op"] in (*MESSAGES, *COLLECTIVES)
    )
    # +1 and -1 at the starts and ends of both kinds; then the time between changes, in one pass.
    events = [
        (time, talk, step)
        for talk in (0, 1)
        for span in (work, talks)[talk]
        for time, step in ((span[0], 1), (span[1], -1))
    ]
    events.sort()
    counts, exposed = [0, 0], 0.0
    for (time, talk, step), following in itertools.pairwise([*events, (np.inf, 0, 0)]):
        counts[talk] += step
        if counts[1] and not counts[0]:
            exposed += following[0] - time
    return exposed


def _critical_path(translation: Translation, timing: Timing, to: int) -> Iterator[Step]:
    """The critical path of the first step by name; what follows itself is joined."""
    last: Step | None = None
    for node, start, end in timing.critical_path(to):
        if end <= start:
            continue
        name, rank = translation.label(node)
        if last is not None and (last.name, last.rank) == (name, rank):
            last = Step(name, rank, last.start, end)
            continue
        if last is not None:
            yield last
        last = Step(name, rank, start, end)
    if last is not None:
        yield last
