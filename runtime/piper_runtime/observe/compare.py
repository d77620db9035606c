"""What the ranks learn of a step by comparing: bubble, exposed communication, the slowest."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median

from piper_runtime.mesh import Mesh
from piper_runtime.observe.clocks import Clocks
from piper_runtime.observe.result import StepResult
from piper_runtime.observe.spans import Meeting, Span, exposed, met_at, work
from piper_runtime.transports.base import Transport

__all__ = ["compare_ranks"]

SECOND = 1e9


@dataclass(frozen=True, slots=True)
class _Report:
    """A step as one process saw it: seconds, its rank with the most memory, nanoseconds by rank."""

    seconds: float
    memory: int
    memory_of: str
    memory_predicted: int | None
    work: Mapping[int, int]
    exposed: Mapping[int, int]


def compare_ranks(
    result: StepResult, spans: Sequence[Span], *, transport: Transport, mesh: Mesh, clocks: Clocks
) -> StepResult:
    """Add to a result what all processes know together; it is the same on all of them.

    Every process passes the spans of its own ranks. Where one runs several ranks, these take turns,
    and there is neither bubble nor exposed communication.
    """
    met = _met(spans, transport, clocks)
    own = {rank: [span for span in spans if span.rank == rank] for rank in transport.ranks}
    report = _Report(
        seconds=result.seconds,
        memory=result.memory,
        memory_of=result.memory_of,
        memory_predicted=result.memory_predicted,
        work={rank: work(ran) for rank, ran in own.items()},
        exposed={rank: exposed(ran, met) for rank, ran in own.items()},
    )
    return _with(result, transport.gather(report), mesh)


def _met(spans: Sequence[Span], transport: Transport, clocks: Clocks) -> dict[Meeting, int]:
    """Return when all had come to each message and collective, by the clock of this process."""
    ahead = [clock.ahead for clock in clocks.solve()]
    everyone = transport.gather((transport.ranks, met_at(spans)))
    latest: dict[Meeting, int] = {}
    for process, (_, times) in enumerate(everyone):
        for key, start in times.items():
            latest[key] = max(latest.get(key, start - ahead[process]), start - ahead[process])
    here = [ranks for ranks, _ in everyone].index(transport.ranks)
    return {key: start + ahead[here] for key, start in latest.items()}


def _with(result: StepResult, reports: Sequence[_Report], mesh: Mesh) -> StepResult:
    most = max(reports, key=lambda report: report.memory)
    result = replace(
        result,
        memory=most.memory,
        memory_of=most.memory_of,
        memory_predicted=most.memory_predicted,
    )
    busy = {rank: seconds for report in reports for rank, seconds in report.work.items()}
    slowest = max(sorted(busy), key=busy.__getitem__)
    middle = median(busy.values())
    if len(busy) > 1 and middle:
        lag = busy[slowest] / middle - 1
        result = replace(result, slowest=mesh.describe(slowest), lag=lag)
    if any(len(report.work) > 1 for report in reports):
        return result
    report = next(report for report in reports if slowest in report.work)
    whole = report.seconds * SECOND
    return replace(
        result,
        bubble=1 - report.work[slowest] / whole,
        exposed=report.exposed[slowest] / whole,
    )
