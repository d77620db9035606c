"""The schema of a trace: what must hold of every file that a trainer writes."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from piper_runtime import Program

Event = dict[str, Any]
Place = tuple[int, int, str, str, str]
"""The rank, step, line, kind and stream of an instruction."""
MESSAGES = ("send", "recv")
COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "all_to_all")


@dataclass(frozen=True)
class Call:
    """An instruction as the text of a program has it; a line may hold several."""

    line: int
    kind: str
    stream: str
    comm: str


def check_trace(raw: dict[str, Any], program: Program, steps: list[int]) -> None:
    """Assert that all is there exactly once, and that it fits together."""
    assert raw["displayTimeUnit"] == "ms"
    about = raw["otherData"]["piper"]
    assert about["program"] == program.manifest.hash
    assert about["steps"] == steps
    assert {event["ph"] for event in raw["traceEvents"]} <= {"M", "X", "s", "t", "f"}
    events = [event for event in raw["traceEvents"] if event["ph"] != "M"]
    assert all(event["ts"] >= 0 for event in events)
    threads = _check_names(raw["traceEvents"], program)
    _check_ranges([event for event in events if event["ph"] == "X"])
    instructions = [event for event in events if "instruction" in event.get("args", {})]
    _check_instructions(instructions, threads, program, steps)
    _check_cells([event for event in events if event.get("cat") == "cell"], instructions)
    _check_flows([event for event in events if event["ph"] != "X"], instructions, program, steps)


def _check_names(events: list[Event], program: Program) -> dict[tuple[int, int], str]:
    """Every rank is a process with a name, every stream a thread with a name of its own.

    Returns these by process and thread.
    """
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
    return threads


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


def _check_instructions(
    instructions: list[Event],
    threads: dict[tuple[int, int], str],
    program: Program,
    steps: list[int],
) -> None:
    """Every instruction of every rank's program is there once per step, on its stream."""
    mesh = program.manifest.mesh
    got = Counter[Place](
        (
            event["pid"],
            event["args"]["step"],
            event["args"]["program"],
            event["args"]["instruction"],
            threads[event["pid"], event["tid"]],
        )
        for event in instructions
    )
    expected = Counter[Place]()
    for rank in range(mesh.world_size):
        file = program.manifest.programs[mesh.coordinate(rank)]
        calls = list(_calls(program.texts[file]))
        for step in steps:
            expected.update(
                (rank, step, f"{file}:{call.line}", call.kind, call.stream) for call in calls
            )
    assert got == expected


def _calls(text: str) -> Iterator[Call]:
    """Yield the instructions of the entry point, whose statements are executed once each."""
    functions = [node for node in ast.parse(text).body if isinstance(node, ast.FunctionDef)]
    [entry] = [function for function in functions if function.name == "train"]
    assert all(isinstance(node, ast.Assign | ast.Expr) for node in entry.body)
    for node in ast.walk(entry):
        if not isinstance(node, ast.Call):
            continue
        method = node.func
        assert isinstance(method, ast.Attribute)
        assert isinstance(method.value, ast.Name)
        assert method.value.id == "r"
        said = {
            word.arg: str(word.value.value)
            for word in node.keywords
            if isinstance(word.value, ast.Constant)
        }
        usual = "host" if method.attr == "host_wait" else "compute"
        yield Call(node.lineno, method.attr, said.get("stream", usual), said.get("comm", ""))


def _check_cells(cells: list[Event], instructions: list[Event]) -> None:
    """Every cell of a step is there once, alone or with one that it overlaps, around its runs."""
    ranges: dict[tuple[int, int, str], Event] = {}
    for event in cells:
        for cell in event["args"]["cell"].split("&"):
            assert (event["pid"], event["args"]["step"], cell) not in ranges
            ranges[event["pid"], event["args"]["step"], cell] = event
    met = set()
    for event in instructions:
        about = event["args"]
        if about["instruction"] == "run" and "cell" in about:
            key = (event["pid"], about["step"], about["cell"])
            assert key in ranges
            met.add(key)
            around = ranges[key]
            assert around["tid"] == event["tid"]
            assert around["ts"] <= event["ts"]
            assert event["ts"] + event["dur"] <= around["ts"] + around["dur"] + 1e-3
    assert met == set(ranges)


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
    for ends in meetings.values():
        _check_ends(ends)
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


def _check_ends(ends: list[Event]) -> None:
    """What meets is one message or collective, of one microbatch of one step."""
    about = [event["args"] for event in ends]
    for key in ("comm", "step", "microbatch"):
        assert len({each.get(key) for each in about}) == 1
    kinds = sorted(each["instruction"] for each in about)
    if "peer" in about[0]:
        assert kinds == ["recv", "send"]
        assert [each["peer"] for each in about] == [event["pid"] for event in reversed(ends)]
    else:
        assert len(set(kinds)) == 1
        assert kinds[0] in COLLECTIVES


def _check_counts(flows: dict[int, list[Event]], program: Program, steps: list[int]) -> None:
    """As many messages as the programs send, as many collectives as they take part in."""
    mesh, comms = program.manifest.mesh, {c.name: c for c in program.manifest.comms}
    messages: Counter[str] = Counter()
    shares = 0.0
    for rank in range(mesh.world_size):
        for call in _calls(program.texts[program.manifest.programs[mesh.coordinate(rank)]]):
            if call.kind in MESSAGES:
                messages[call.kind] += 1
            elif call.kind in COLLECTIVES:
                size = len(mesh.members(comms[call.comm], rank))
                shares += 0 if size == 1 else 1 / size
            else:
                assert not call.comm
    assert messages["send"] == messages["recv"]
    kinds = Counter(members[0]["cat"] for members in flows.values())
    assert kinds["message"] == messages["send"] * len(steps)
    assert kinds["collective"] == round(shares) * len(steps)
    for members in flows.values():
        if members[0]["cat"] == "message":
            assert len(members) == 2
