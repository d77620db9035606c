"""Traces in the JSON of Chrome, which Perfetto (ui.perfetto.dev) shows."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from piper.simulate.views.timeline import Range, Timeline

__all__ = ["trace_events", "write_trace"]

Event = dict[str, Any]


def write_trace(timeline: Timeline, path: str | Path) -> None:
    """Write a process per rank and a thread per stream, with cells named like `PP:2F0`.

    A second is a second; a unit of a table's costs is shown as a millisecond.
    """
    events = list(trace_events(timeline))
    Path(path).write_text(json.dumps({"displayTimeUnit": "ms", "traceEvents": events}) + "\n")


def trace_events(timeline: Timeline) -> Iterator[Event]:
    """Yield names of processes and threads, ranges, the flows of messages, counters."""
    scale = 1e6 if timeline.in_seconds else 1e3  # to microseconds
    threads = {key: number for number, key in enumerate(timeline.lanes())}
    for rank, name in enumerate(timeline.ranks):
        yield _meta("process_name", rank, 0, name=name)
        yield _meta("process_sort_index", rank, 0, sort_index=rank)
    for (rank, lane), number in threads.items():
        yield _meta("thread_name", rank, number, name=lane)
        yield _meta("thread_sort_index", rank, number, sort_index=number)
    for item in timeline.ranges:
        yield {
            "ph": "X",
            "name": f"PP:{item.name}" if item.actions else item.name,
            "cat": _category(item),
            "pid": item.rank,
            "tid": threads[item.rank, item.lane],
            "ts": item.start * scale,
            "dur": (item.end - item.start) * scale,
            "args": dict(item.details),
        }
    for number, flow in enumerate(timeline.flows):
        for phase, end in (
            ("s", timeline.ranges[flow.source]),
            ("f", timeline.ranges[flow.target]),
        ):
            # A message leaves the end of its maker; both ends of a rendezvous last equally long.
            time = end.start if phase == "f" or end.details.get("end") == "send" else end.end
            yield {
                "ph": phase,
                "name": flow.name,
                "cat": "message",
                "id": number,
                "bp": "e",
                "pid": end.rank,
                "tid": threads[end.rank, end.lane],
                "ts": time * scale,
            }
    for counter in timeline.counters:
        for time, value in counter.points:
            yield {
                "ph": "C",
                "name": counter.name,
                "pid": counter.rank,
                "ts": time * scale,
                "args": {"bytes": value},
            }


def _meta(kind: str, rank: int, thread: int, **arguments: str | int) -> Event:
    return {"ph": "M", "name": kind, "pid": rank, "tid": thread, "args": arguments}


def _category(item: Range) -> str:
    """What can be filtered by: the passes of a cell, or the lane."""
    return ",".join(action.pass_ for action in item.actions) or item.lane
