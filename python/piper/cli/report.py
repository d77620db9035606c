"""What a simulation found, as lines for people."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Callable, Iterator, Sequence

from piper.cli.text import table
from piper.schedules import Table, unfinished
from piper.simulate import Costs, Device, Exposure, ProgramSimulation, Simulation, Step
from piper.simulate.views import Timeline, draw_text, format_bytes, format_seconds

__all__ = ["costs_report", "program_report", "table_report"]

_NAMES = 6  # the most that are listed


def table_report(simulation: Simulation, timeline: Timeline) -> Iterator[str]:
    """Yield the picture, the bubbles, a row per rank and the critical path."""
    yield from ("", _picture(timeline), "")
    yield from _incomplete(simulation.table)
    share = _share(simulation.bubble_makespan, simulation.makespan)
    yield f"makespan {_number(simulation.makespan)}, busy {_number(simulation.busy)}"
    yield (
        f"bubble {_number(simulation.bubble_makespan)} of the makespan ({share}), "
        f"{_number(simulation.bubble_span)} of the longest span of a rank"
    )
    yield from ("", "ranks: work, and chunks alive at most")
    rows: list[Sequence[str]] = [("rank", "work", "until I", "until W")]
    for rank, work in enumerate(simulation.busy_per_rank):
        peaks = simulation.peak_chunks_until_I[rank], simulation.peak_chunks_until_W[rank]
        rows.append((str(rank), _number(work), *map(str, peaks)))
    yield from table(rows, numbers=4)
    yield from _path(simulation.critical_path, "rank", _number)


def program_report(
    simulation: ProgramSimulation, timeline: Timeline, device: Device | None
) -> Iterator[str]:
    """Yield the picture, times and bubbles, a row per coordinate, and the critical path."""
    yield from ("", _picture(timeline), "")
    yield (
        f"makespan {format_seconds(simulation.makespan)}, busy {format_seconds(simulation.busy)}, "
        f"bubble {format_seconds(simulation.bubble_makespan)} of the makespan, "
        f"{format_seconds(simulation.bubble_span)} of the longest span of a rank"
    )
    share = _share(simulation.realized_bubble, simulation.period)
    yield (
        f"from step to step {format_seconds(simulation.period)}, of which the trainer loses "
        f"{format_seconds(simulation.realized_bubble)} ({share}): {_overlap(simulation)}"
    )
    yield from ("", "ranks: seconds of work and of exposed communication; bytes at the peak")
    yield from _memory(simulation)
    if device is not None:
        most = max(memory.peak for memory in simulation.memory)
        verdict = "fits into" if most <= device.memory else "does not fit into"
        room = format_bytes(device.memory)
        yield f"  {format_bytes(most)} {verdict} the {room} of {device.name}"
    yield from _exposed(simulation)
    yield from _path(simulation.critical_path, simulation.facts.axis or "rank", format_seconds)


def costs_report(costs: Costs, simulation: ProgramSimulation, path: str) -> Iterator[str]:
    """Yield a row per stage, and how an order is searched for with what was written to `path`."""
    yield from ("", "stages: seconds of a microbatch")
    rows: list[Sequence[str]] = [("stage", *costs.passes)]
    for stage, times in enumerate(zip(*costs.passes.values(), strict=True)):
        rows.append((str(stage), *map(format_seconds, times)))
    yield from table(rows, numbers=5)
    latency = f"{_longest_message(simulation):.3g}"
    yield f'wrote {path}: piper.order("auto", costs="{path}", latency={latency}) takes it'


def _longest_message(simulation: ProgramSimulation) -> float:
    """Seconds of the slowest message between stages, 0 without any."""
    lengths = (
        end - start
        for at, rows in simulation.facts.entry(simulation.entry).items()
        for row, (start, end) in zip(rows, simulation.times[at], strict=True)
        if row["op"] == "send"
    )
    return max(lengths, default=0.0)


def _picture(timeline: Timeline) -> str:
    return draw_text(timeline, width=max(60, shutil.get_terminal_size((120, 0)).columns))


def _share(part: float, whole: float) -> str:
    return f"{part / whole if whole else 0:.1%}"


def _number(number: float) -> str:
    return f"{number:.6g}"


def _incomplete(schedule: Table) -> Iterator[str]:
    """Yield what a table lacks, which nothing below counts."""
    for what, actions in unfinished(schedule).items():
        names = " ".join(_short([str(action) for action in actions]))
        yield (
            f"incomplete: no {names}" if what == "these" else f"incomplete: no {what} after {names}"
        )


def _short(names: Sequence[str]) -> Sequence[str]:
    """Return the names, or the first of many, the last and how many there are."""
    if len(names) <= _NAMES:
        return names
    return [*names[: _NAMES - 2], "...", names[-1], f"({len(names)})"]


def _overlap(simulation: ProgramSimulation) -> str:
    """Return whether a step starts before the last one has ended everywhere, and why not."""
    early = simulation.makespan - simulation.period
    if early > 1e-9 * simulation.makespan:
        return f"steps overlap by {format_seconds(early)}"
    meeting = simulation.barrier
    if meeting is not None:
        return f"steps do not overlap, since all ranks meet in {meeting}"
    if simulation.bubble_makespan - simulation.bubble_span <= 1e-9 * simulation.makespan:
        return "steps do not overlap, since a rank runs from the first start to the last end"
    last = _last_output(simulation)
    if last is not None:
        return f"steps do not overlap, since all ranks wait for the {last}"
    return "steps do not overlap, since ranks wait for each other"


def _last_output(simulation: ProgramSimulation) -> str | None:
    """Return the output that comes with the last end, if one does, and whose it is."""
    owners: dict[str, int] = {}
    for at, rows in sorted(simulation.facts.entry(simulation.entry).items()):
        for row in rows:
            if row["op"] == "output":
                owners.setdefault(row["name"], at)
    for name, at in owners.items():
        if max(end for _, end in simulation.times[at]) >= (1 - 1e-9) * simulation.makespan:
            return f"{name} of {simulation.facts.place(at)}"
    return None


def _memory(simulation: ProgramSimulation) -> Iterator[str]:
    header = ("rank", "work", "exposed", "parameters", "gradients", "optimizer", "batch")
    rows: list[Sequence[str]] = [(*header, "activations", "received", "inside", "peak")]
    for at, memory in enumerate(simulation.memory):
        parts = (memory.parameters, memory.gradients, memory.optimizer, memory.batch)
        sizes = (*parts, memory.activations, memory.communication, memory.temporaries, memory.peak)
        times = simulation.busy_per_coordinate[at], simulation.exposed[at]
        rows.append(
            (simulation.facts.place(at), *map(format_seconds, times), *map(format_bytes, sizes))
        )
    yield from table(rows, numbers=10)
    if any(memory.optimizer is None for memory in simulation.memory):
        yield "  the optimizer is not known here: --optimizer-bytes says it (AdamW in float32: 8)"


def _exposed(simulation: ProgramSimulation) -> Iterator[str]:
    """Yield a row per kind of communication and axis: means over ranks, and who has most."""
    found = dict.fromkeys((p.kind, p.axis) for parts in simulation.exposures for p in parts)
    if not found:
        return
    yield ""
    yield "communication: mean seconds of a rank under way, and of these with nothing computed"
    header = ("kind", "axis", "under way", "exposed", "of the step", "at most", "at")
    rows: list[Sequence[str]] = [(*header, "bytes that a rank sends or receives")]
    for key in found:
        parts = [
            next((part for part in parts if (part.kind, part.axis) == key), None)
            for parts in simulation.exposures
        ]
        rows.append((*key, *_exposed_row(simulation, parts)))
    rows.append(("all", "", "", *_shares(simulation, simulation.exposed), ""))
    width = max(len(row[-1]) for row in rows)  # so that the last column starts at the left
    yield from table([(*row[:-1], row[-1].ljust(width)) for row in rows], numbers=6)


def _exposed_row(simulation: ProgramSimulation, parts: Sequence[Exposure | None]) -> Sequence[str]:
    present = [part for part in parts if part]
    under_way = sum(part.under_way for part in present) / len(parts)
    moved = {name: 0.0 for part in present for name in part.num_bytes}
    for part in present:
        for name, num_bytes in part.num_bytes.items():
            moved[name] += num_bytes / len(parts)
    sizes = ", ".join(f"{format_bytes(round(size))} {name}" for name, size in moved.items())
    exposed = [part.exposed if part else 0.0 for part in parts]
    return format_seconds(under_way), *_shares(simulation, exposed), sizes


def _shares(simulation: ProgramSimulation, exposed: Sequence[float]) -> Sequence[str]:
    """Mean seconds, the part of the step that they are, the most, and whose that is."""
    mean, most = sum(exposed) / len(exposed), max(exposed)
    share = _share(mean, simulation.makespan)
    where = simulation.facts.place(exposed.index(most))
    return format_seconds(mean), share, format_seconds(most), where


def _path(steps: Sequence[Step], place: str, write: Callable[[float], str]) -> Iterator[str]:
    """Yield a row per stretch of the critical path on one rank."""
    rows: list[Sequence[str]] = [("from", "takes", "on", "what")]
    for rank, group in itertools.groupby(steps, key=lambda step: step.rank):
        stretch = list(group)
        names = _short([step.name for step in stretch])
        start, end = stretch[0].start, stretch[-1].end
        where = "" if rank is None else f"{place} {rank}"
        rows.append((write(start), write(end - start), where, " ".join(names)))
    yield from ("", "critical path", *table(rows))
