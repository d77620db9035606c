"""What must happen before what in one program, by following every path, with no clocks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

__all__ = ["find_hazard", "waits_of"]

Row = dict[str, Any]


def waits_of(rows: list[Row], *, single_queue: bool = False) -> list[dict[int, str]]:
    """For each instruction those that it waits for directly, and why."""
    makers = {number: index for index, row in enumerate(rows) for number in row["out"]}
    last: dict[str, int] = {}
    found: list[dict[int, str]] = []
    for index, row in enumerate(rows):
        stream = row.get("stream", "compute")
        if single_queue and stream != "compute":
            stream = "communication"
        waits = {makers[number]: "value" for number in row["in"]}
        waits |= {makers[number]: "event" for number in row["after"]}
        if stream in last:
            waits[last[stream]] = "stream"
        last[stream] = index
        found.append(waits)
    return found


def find_hazard(rows: list[Row]) -> str | None:
    """The first instruction that may run too early or too late, in words; None if there is none."""
    before = _before(rows)
    for index in range(len(rows)):
        for hazard in _hazards(rows, before, index):
            return hazard
    return None


def _before(rows: list[Row]) -> list[set[int]]:
    """All that has surely finished when an instruction starts: by streams and events alone."""
    makers = {number: index for index, row in enumerate(rows) for number in row["out"]}
    before: list[set[int]] = []
    for index, row in enumerate(rows):
        stream = row.get("stream", "compute")
        earlier = {
            other for other in range(index) if rows[other].get("stream", "compute") == stream
        }
        direct = earlier | {makers[number] for number in row["after"]}
        before.append(direct.union(*(before[other] for other in direct)))
    return before


def _hazards(rows: list[Row], before: list[set[int]], index: int) -> Iterator[str]:
    row, known = rows[index], before[index]
    frees = [other for other in range(index) if rows[other]["op"] == "free"]
    for number in row["in"]:
        maker = next(other for other in range(index) if number in rows[other]["out"])
        if any(number in rows[other]["in"] for other in frees):
            yield f"{index} uses what was freed"
        if maker not in known:
            yield f"{index} does not wait for {maker}"
        readers = [other for other in range(index) if number in rows[other]["in"]]
        if row["op"] == "free" and not known.issuperset(readers):
            yield f"{index} frees what is being read"
    if row["op"] in ("recv", "all_reduce") and frees and frees[-1] not in known:
        yield f"{index} takes a buffer too early"
