"""The timeline of a compiled program's step."""

from __future__ import annotations

from collections import Counter as Count
from collections.abc import Iterator, Sequence

from piper_runtime.instruction import COMPUTE

from piper.schedules import Action
from piper.simulate.facts import ProgramFacts, Row
from piper.simulate.programs import ProgramSimulation
from piper.simulate.translation import HOST, describe
from piper.simulate.values import COLLECTIVES, MESSAGES
from piper.simulate.views.timeline import Counter, Flow, Range, Timeline, chunk_places

__all__ = ["program_timeline"]

Span = tuple[float, float]


def program_timeline(simulation: ProgramSimulation) -> Timeline:
    """The instructions of a step that take time, a lane per stream of each coordinate.

    The runs of a cell are one range, with the chunks and what else runs between them inside; cells
    whose runs alternate are a pair. A counter follows the bytes of activations.
    """
    facts = simulation.facts
    ranges: list[Range] = []
    ends: dict[tuple[str, int], list[int]] = {}
    counters: list[Counter] = []
    programs = facts.entry(simulation.entry)
    for rank, rows in sorted(programs.items()):
        times = simulation.times[rank]
        counts: Count[str] = Count()
        cells = list(_cells(facts, rank, rows, times))
        inside = _Inside(cells)
        ranges += cells
        for row, (start, end) in zip(rows, times, strict=True):
            if row["op"] in MESSAGES:
                counts[row["stream"]] += 1
                ends.setdefault((row["stream"], counts[row["stream"]]), []).append(len(ranges))
            if end > start or row["op"] in MESSAGES:
                lane = _lane(row)
                within = lane == COMPUTE and inside(start, end)
                ranges.append(_range(facts, rank, row, lane, (start, end), within))
        live = simulation.memory[len(counters)].curve.live
        counters.append(Counter(rank, "activations", tuple(_points(rows, times, live))))
    return Timeline(
        ranks=tuple(map(facts.place, sorted(programs))),
        in_seconds=True,
        ranges=tuple(ranges),
        flows=tuple(Flow(ranges[pair[0]].name, *_order(ranges, pair)) for pair in ends.values()),
        counters=tuple(counters),
        chunks=chunk_places(ranges),
    )


def _order(ranges: Sequence[Range], pair: Sequence[int]) -> tuple[int, int]:
    """The sending end, then the receiving one, of the two ranges of a message."""
    first, second = pair
    return (first, second) if ranges[first].details["end"] == "send" else (second, first)


def _lane(row: Row) -> str:
    if row["op"] in MESSAGES or row["op"] in COLLECTIVES:
        return str(row["stream"])
    return HOST if row["op"] == "host_wait" else COMPUTE


def _range(facts: ProgramFacts, rank: int, row: Row, lane: str, span: Span, inside: bool) -> Range:
    file, line, module, directive = row["loc"]
    details = {"line": f"{file}:{line}" if file else "", "module": module, "directive": directive}
    if row["op"] in MESSAGES:
        details["end"] = row["op"]
    name = row["chunk"] if row["op"] == "run" else describe(facts, rank, row)
    kept = {key: text for key, text in details.items() if text}
    return Range(rank, lane, name, *span, inside=inside, details=kept)


def _cells(
    facts: ProgramFacts, rank: int, rows: Sequence[Row], times: Sequence[Span]
) -> Iterator[Range]:
    """A range per cell, from the start of its first run to the end of its last."""
    runs = [(index, action) for index, row in enumerate(rows) if (action := facts.action(row))]
    last = {action: index for index, action in runs}
    group: dict[Action, None] = {}
    start, until = 0.0, -1
    for index, action in runs:
        if index > until:
            group, start = {}, times[index][0]
        group[action] = None
        until = max(until, last[action])
        if index == until:
            actions = tuple(sorted(group, key=lambda member: member.pass_ != "F"))
            name = "&".join(map(str, actions))
            yield Range(rank, COMPUTE, name, start, times[index][1], actions)


class _Inside:
    """Whether a stretch of the compute stream lies in a cell; asked in order of time."""

    def __init__(self, cells: Sequence[Range]) -> None:
        self._cells = cells
        self._next = 0

    def __call__(self, start: float, end: float) -> bool:
        while self._next < len(self._cells) and self._cells[self._next].end < end:
            self._next += 1
        return self._next < len(self._cells) and self._cells[self._next].start <= start


def _points(
    rows: Sequence[Row], times: Sequence[Span], live: Sequence[int]
) -> Iterator[tuple[float, float]]:
    """Where the bytes change, at the point of the compute stream at which they do."""
    now = before = 0.0
    for row, (start, end), alive in zip(rows, times, live, strict=True):
        if _lane(row) == COMPUTE:
            now = end if row["op"] == "free" else start
        if alive != before:
            before = alive
            yield now, alive
