"""The schema of a trace: what must hold of every file that a trainer writes."""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

from piper_runtime import Program

Event = dict[str, Any]
ENTRY = re.compile(r"^def train\(r\):\n((?:    .*\n)+)", re.MULTILINE)
MESSAGE = re.compile(r"r\.(send|recv)\(")
COLLECTIVE = re.compile(
    r"r\.(all_reduce|all_gather|reduce_scatter|broadcast)\(.*comm=['\"]([^'\"]+)"
)


def check_trace(raw: dict[str, Any], program: Program, steps: list[int]) -> None:
    """Assert that all is there exactly once, and that it fits together."""
    assert raw["displayTimeUnit"] == "ms"
    about = raw["otherData"]["piper"]
    assert about["program"] == program.manifest.hash
    assert about["steps"] == steps
    assert {event["ph"] for event in raw["traceEvents"]} <= {"M", "X", "s", "t", "f"}
    events = [event for event in raw["traceEvents"] if event["ph"] != "M"]
    assert all(event["ts"] >= 0 for event in events)
    _check_names(raw["traceEvents"], program)
    _check_ranges([event for event in events if event["ph"] == "X"])
    instructions = [event for event in events if "instruction" in event.get("args", {})]
    _check_instructions(instructions, program, steps)
    _check_flows([event for event in events if event["ph"] != "X"], instructions, program, steps)


def _check_names(events: list[Event], program: Program) -> None:
    """Every rank is a process with a name, every stream a thread with a name of its own."""
    mesh = program.manifest.mesh
    named = [event for event in events if event["name"] == "process_name"]
    expected = {rank: mesh.describe(rank) for rank in range(mesh.world_size)}
    assert {event["pid"]: event["args"]["name"] for event in named} == expected
    threads = {
        (event["pid"], event["tid"]): event["args"]["name"]
        for event in events
        if event["name"] == "thread_name"
    }
    assert len({(pid, name) for (pid, _), name in threads.items()}) == len(threads)
    assert {(event["pid"], event["tid"]) for event in events if event["ph"] == "X"} <= set(threads)


def _check_ranges(ranges: list[Event]) -> None:
    """Instructions of a thread follow each other, and lie in cells or between them: what overlaps,
    Perfetto drops.
    """
    threads: dict[tuple[int, int], list[tuple[int, int, bool]]] = {}
    for event in ranges:
        start, length = (round(event[key] * 1000) for key in ("ts", "dur"))
        assert length >= 0
        span = (start, -(start + length), "instruction" in event["args"])
        threads.setdefault((event["pid"], event["tid"]), []).append(span)
    for spans in threads.values():
        around: list[tuple[int, bool]] = []
        for start, negative_end, is_instruction in sorted(spans):
            while around and around[-1][0] <= start:
                around.pop()
            if around:
                end, inside_instruction = around[-1]
                assert not inside_instruction
                assert -negative_end <= end
            around.append((-negative_end, is_instruction))


def _check_instructions(instructions: list[Event], program: Program, steps: list[int]) -> None:
    """Every line of every rank's program is there once per step, on its stream."""
    mesh, got = program.manifest.mesh, Counter[tuple[int, int, str]]()
    for event in instructions:
        got[event["pid"], event["args"]["step"], event["args"]["program"]] += 1
    expected = Counter[tuple[int, int, str]]()
    for rank in range(mesh.world_size):
        file = program.manifest.programs[mesh.coordinate(rank)]
        first, lines = _entry(program.texts[file])
        for step in steps:
            expected.update((rank, step, f"{file}:{first + n}") for n in range(len(lines)))
    assert got == expected


def _entry(text: str) -> tuple[int, list[str]]:
    """The number of the first line of the entry point, and its lines."""
    found = ENTRY.search(text)
    assert found is not None
    return text[: found.start(1)].count("\n") + 1, found[1].splitlines()


def _check_flows(
    points: list[Event], instructions: list[Event], program: Program, steps: list[int]
) -> None:
    """A flow per message and per collective of several ranks: begins, goes on, ends, in time."""
    flows: dict[int, list[Event]] = {}
    for point in points:
        flows.setdefault(point["id"], []).append(point)
    meetings: dict[int, list[Event]] = {}
    for event in instructions:
        if "meeting" in event["args"]:
            meetings.setdefault(event["args"]["meeting"], []).append(event)
    expected = {number for number, ends in meetings.items() if len(ends) > 1}
    assert set(flows) == expected
    for number, members in flows.items():
        assert [point["ph"] for point in members] == ["s", *["t"] * (len(members) - 2), "f"]
        times = [point["ts"] for point in members]
        assert times == sorted(times)
        for point in members:
            [inside] = [event for event in meetings[number] if event["pid"] == point["pid"]]
            assert inside["tid"] == point["tid"]
            assert inside["ts"] <= point["ts"] <= inside["ts"] + inside["dur"] + 1e-3
        assert len(members) == len(meetings[number])
    _check_counts(flows, program, steps)


def _check_counts(flows: dict[int, list[Event]], program: Program, steps: list[int]) -> None:
    """As many messages as the programs send, as many collectives as they take part in."""
    mesh, comms = program.manifest.mesh, {c.name: c for c in program.manifest.comms}
    sent = received = 0
    shares = 0.0
    for rank in range(mesh.world_size):
        _, lines = _entry(program.texts[program.manifest.programs[mesh.coordinate(rank)]])
        for line in lines:
            message, collective = MESSAGE.search(line), COLLECTIVE.search(line)
            if message:
                sent += message[1] == "send"
                received += message[1] == "recv"
            elif collective:
                size = len(mesh.members(comms[collective[2]], rank))
                shares += 0 if size == 1 else 1 / size
    assert sent == received
    kinds = Counter(members[0]["cat"] for members in flows.values())
    assert kinds["message"] == sent * len(steps)
    assert kinds["collective"] == round(shares) * len(steps)
    for members in flows.values():
        if members[0]["cat"] == "message":
            assert len(members) == 2
