"""``piper show --memory`` and ``--comm``: what a program takes and moves, as lines for people."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from piper.cli.text import table
from piper.simulate import ProgramFacts
from piper.simulate.communication import Traffic, Volume, measure_traffic, measure_volumes
from piper.simulate.memory import Memory
from piper.simulate.translation import describe
from piper.simulate.views import format_bytes, over_step

__all__ = ["comm_report", "memory_report"]

_PARTS = 10  # of a step
_FORMULAS = {
    "send": "bytes x microbatches",
    "all_reduce": "2(n-1)/n x bytes",
    "all_gather": "(n-1)/n x bytes",
    "reduce_scatter": "(n-1)/n x bytes",
    "all_to_all": "(n-1)/n x bytes",
    "broadcast": "bytes",
    "permute": "bytes",
}


def memory_report(facts: ProgramFacts, entry: str, memory: Mapping[int, Memory]) -> Iterator[str]:
    """Yield the bytes of each rank by kind at its peak, then those that change over the step."""
    yield "bytes of a rank at its peak, by kind"
    yield from _at_peak(facts, memory)
    if any(item.optimizer is None for item in memory.values()):
        yield "  the optimizer is not known here: --optimizer-bytes says it (AdamW in float32: 8)"
    yield from ("", "instruction at the peak")
    rows = facts.entry(entry)
    places = [
        (
            facts.place(at),
            f"{item.at + 1} of {len(rows[at])}",
            describe(facts, at, rows[at][item.at]),
        )
        for at, item in memory.items()
        if rows[at]
    ]
    yield from table(places)
    yield from ("", "over the step: the most in each tenth of the instructions of a rank")
    yield from _over_step(facts, memory)


def _at_peak(facts: ProgramFacts, memory: Mapping[int, Memory]) -> Iterator[str]:
    header = ("rank", "parameters", "gradients", "optimizer", "batch", "activations")
    lines: list[Sequence[str]] = [(*header, "communication", "inside", "peak")]
    for at, item in memory.items():
        kinds = (item.parameters, item.gradients, item.optimizer, item.batch, item.activations)
        sizes = (*kinds, item.communication, item.temporaries, item.peak)
        lines.append((facts.place(at), *map(format_bytes, sizes)))
    yield from table(lines, numbers=len(lines[0]) - 1)


def _over_step(facts: ProgramFacts, memory: Mapping[int, Memory]) -> Iterator[str]:
    lines: list[Sequence[str]] = []
    for at, item in memory.items():
        points = over_step(item, _PARTS)
        for index, kind in enumerate(("activations", "communication", "inside")):
            sizes = [format_bytes(point[kind]) for point in points]
            sizes += [""] * (_PARTS - len(points))
            lines.append(("" if index else facts.place(at), kind, *sizes))
        totals = [format_bytes(sum(point.values())) for point in points]
        lines.append(("", "all", *totals, *[""] * (_PARTS - len(points))))
    yield from table(lines, numbers=_PARTS)


def comm_report(facts: ProgramFacts, entry: str) -> Iterator[str]:
    """Yield what each communicator moves, beside the textbook, then the sums of each rank."""
    traffic = measure_traffic(facts, entry)
    yield "bytes that a rank sends in a step, by communicator of n ranks"
    if not traffic:
        yield "  none"
        return
    header = ("communicator", "axes", "kind", "n", "values", "calls", "bytes", "textbook", "ratio")
    lines: list[Sequence[str]] = [(*header, "formula")]
    for item in traffic:
        counts = map(str, (item.members, item.values, item.calls))
        ratio = "" if item.ratio is None else f"{item.ratio:.2f}"
        sizes = format_bytes(item.num_bytes), format_bytes(item.textbook)
        where = item.comm.name, _axes(facts, item), item.op
        lines.append((*where, *counts, *sizes, ratio, _FORMULAS[item.op]))
    yield from _with_formulas(lines)
    yield from ("", "bytes of a rank in a step")
    yield from _volumes(facts, measure_volumes(facts, entry))


def _with_formulas(lines: Sequence[Sequence[str]]) -> Iterator[str]:
    """Yield a table whose numbers are to the right, behind them a column to the left."""
    widths = max(len(line[-1]) for line in lines)
    yield from table([(*line[:-1], line[-1].ljust(widths)) for line in lines], numbers=7)


def _axes(facts: ProgramFacts, item: Traffic) -> str:
    """Return the axes along which the ranks differ: ``dp``, ``pp`` or ``pp x dp``."""
    unrolled = [facts.axis] if facts.axis and len(item.coordinates) > 1 else []
    return " x ".join([*unrolled, *item.comm.axes]) or "none"


def _volumes(facts: ProgramFacts, volumes: Sequence[Volume]) -> Iterator[str]:
    header = ("rank", "sends", "receives", "collectives", "trained parameters")
    lines: list[Sequence[str]] = [(*header, "times over manual axes")]
    for at, volume in enumerate(volumes):
        sizes = (volume.sent, volume.received, volume.collectives, volume.trained)
        multiple = "" if volume.multiple is None else f"{volume.multiple:.2f}"
        lines.append((facts.place(at), *map(format_bytes, sizes), multiple))
    yield from table(lines, numbers=5)
