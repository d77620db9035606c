"""When each instruction of a compiled program runs, and what that costs.

The model is the abstract machine of the dialect: every rank has a stream for compute and one per
communicator, each first in, first out; a message or collective is a rendezvous that occupies the
streams of all members; an instruction waits for the events that it lists; the host issues in order,
`issue` seconds each, and blocks only at a host_wait. One rank stands for all along manual axes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from piper_runtime import Program
from piper_runtime.states.optimizer import OptimizerFactory

from piper.simulate.engine import Timing
from piper.simulate.exposed import KINDS, Exposure, Talk, measure_exposed
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

    `exposures` say, by kind and axis, how long communication of a rank is under way and how much of
    that its compute stream is idle: see `Exposure`. `exposed` has the sums of the latter.
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
    exposures: tuple[tuple[Exposure, ...], ...]
    memory: tuple[Memory, ...]
    critical_path: tuple[Step, ...]
    times: Mapping[int, tuple[Span, ...]]
    """By coordinate: start and end of each row."""

    @property
    def realized_bubble(self) -> float:
        """What a step of a long run loses."""
        return self.period - self.busy

    @property
    def exposed(self) -> tuple[float, ...]:
        """Seconds of each coordinate in which it communicates and computes nothing."""
        return tuple(sum(part.exposed for part in parts) for parts in self.exposures)


def simulate_program(
    program: Program | ProgramFacts | str | Path,
    prices: Prices,
    network: Network,
    *,
    entry: str = "train",
    issue: float = 0.0,
    optimizer: OptimizerFactory | float | None = None,
    load: float = 1.0,
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
        load: how many times as many rows as expected the rank has that is sent most, in a program
            whose ranks exchange rows by counts. All others wait for it, so it is what is simulated:
            kernels take longer for their part of such rows, and exchanges for all of it. Memory is
            that of the bound, whatever the load.

    Raises:
        ValueError: an instruction or a kernel whose cost is not known, an unknown entry point, a
            link of an unknown axis, a negative `issue`, a `load` below 1, without effect or beyond
            what a rank may receive; or instructions that wait for each other.
    """
    facts = program if isinstance(program, ProgramFacts) else ProgramFacts.read(program)
    if optimizer is None and isinstance(program, Program):
        optimizer = program.optimizer
    per_parameter = optimizer_bytes(optimizer) if callable(optimizer) else optimizer
    for axis in network.axes:
        if axis not in facts.manifest.mesh.names:
            raise ValueError(f"link of axis {axis!r} must be for one of {facts.manifest.mesh}")
    translation = Translation(
        facts,
        facts.entry(entry),
        prices,
        network,
        issue=issue,
        per_parameter=per_parameter or 0,
        load=load,
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
        exposures=tuple(
            measure_exposed(list(_talks(facts, translation, at, times[at])), work[at])
            for at in times
        ),
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


def _talks(
    facts: ProgramFacts, translation: Translation, at: int, spans: Sequence[Span]
) -> Iterator[Talk]:
    """The messages and collectives of a coordinate in the first step."""
    comms = {comm.name: comm for comm in facts.manifest.comms}
    nodes = translation.nodes[0][at]
    for row, node, span in zip(translation.rows[at], nodes, spans, strict=True):
        if node in translation.transfers:
            loads = translation.transfers[node].loads
            moved = {load.link.name: load.num_bytes for load in loads if load.num_bytes}
            yield Talk(KINDS[row["op"]], facts.axes(comms[row["stream"]]), span, moved)


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
