"""Traces: every instruction once, an arrow per message, one clock; and windows of torch's tools."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from collective_program import collective_program, make_input
from mlp_program import TiedMlp, make_batch, make_sgd, program_texts, sealed
from piper_runtime import InstructionError, LocalTransport, Program, Trainer
from piper_runtime.instruction import Instruction
from piper_runtime.listing import Line, Listing
from piper_runtime.observe.clocks import Clocks, Order, read_clocks
from piper_runtime.observe.profiler import MemoryWindow
from piper_runtime.observe.spans import Span, exposed, meetings, met_at
from trace_schema import check_trace


def make_trainer(transport: LocalTransport | None = None) -> Trainer:
    program = Program(program_texts())
    return Trainer(program, model=TiedMlp(), optimizer=make_sgd, transport=transport)


def read(path: Path) -> dict[str, Any]:
    raw: dict[str, Any] = json.loads(path.read_text())
    return raw


def ranges(raw: dict[str, Any], rank: int) -> list[dict[str, Any]]:
    return [event for event in raw["traceEvents"] if event["ph"] == "X" and event["pid"] == rank]


@pytest.fixture
def batches() -> Iterator[dict[str, torch.Tensor]]:
    return (make_batch(step) for step in range(100))


# Traces.


@pytest.mark.parametrize("seed", [None, 3])
def test_a_trace_has_every_instruction_once_and_an_arrow_per_message(
    tmp_path: Path, seed: int | None, batches: Iterator[Any]
) -> None:
    trainer = make_trainer(LocalTransport(seed=seed))
    path = tmp_path / "trace.json"
    with trainer.trace(path, steps=range(2, 4)):
        for _ in range(4):
            trainer.step(next(batches))
    check_trace(read(path), trainer.program, [2, 3])


def test_collectives_of_four_ranks_are_one_arrow_each(tmp_path: Path) -> None:
    program = collective_program("float32")
    trainer = Trainer(program)
    path = tmp_path / "trace.json"
    # The program has no loss, so `outputs` stands for a step.
    watch = trainer._watch
    with trainer.trace(path):
        watch.run(1, lambda: trainer.outputs("train", {"x": make_input(torch.float32)}))  # type: ignore[arg-type,return-value]
    arrows: dict[int, list[str]] = {}
    for event in read(path)["traceEvents"]:
        if event.get("cat") == "collective":
            arrows.setdefault(event["id"], []).append(event["ph"])
    assert len(arrows) >= 4
    assert all(phases == ["s", "t", "t", "f"] for phases in arrows.values())


def test_ranges_say_what_they_are(tmp_path: Path, batches: Iterator[Any]) -> None:
    trainer = make_trainer()
    path = tmp_path / "trace.json"
    with trainer.trace(path, steps=1):
        trainer.step(next(batches))
    first = ranges(read(path), 0)
    names = [event["name"] for event in first]
    cells = ["0F0", "0F1", "0B0", "0F2", "0B1", "0F3", "0B2", "0B3"]
    assert [name for name in names if name.startswith("PP:")] == [f"PP:{cell}" for cell in cells]
    assert {"step 1", "layer.0$F", "send to rank 2", "accumulate embed.weight$b"} <= set(names)
    run = next(event for event in first if event["name"] == "layer.0$F")
    assert run["cat"] == "instruction,run"
    assert run["args"] == {
        "step": 1,
        "instruction": "run",
        "chunk": "layer.0$F",
        "microbatch": 0,
        "cell": "0F0",
        "module": "layers.0",
        "program": "program_pp0.py:36",
    }
    send = next(event for event in first if event["name"] == "send to rank 2")
    assert send["args"]["comm"] == "pp$0.1"
    assert send["args"]["peer"] == 2


def test_an_overlapped_pair_is_one_range(tmp_path: Path) -> None:
    texts = program_texts(num=1, dp=1)
    old = "# 0B0 (embed)"
    assert texts["program_pp0.py"].count(old) == 1
    texts["program_pp0.py"] = texts["program_pp0.py"].replace(old, "# 0F0 (embed)")
    trainer = Trainer(Program(sealed(texts)), model=TiedMlp(), optimizer=make_sgd)
    path = tmp_path / "trace.json"
    with trainer.trace(path):
        trainer.step(make_batch(0, shards=1, num=1))
    names = [event["name"] for event in ranges(read(path), 0) if event["cat"] == "cell"]
    assert names == ["PP:0F0&0B0"]


def test_whoever_observed_before_still_does(tmp_path: Path, batches: Iterator[Any]) -> None:
    trainer = make_trainer()
    seen: list[Instruction] = []

    def observer(instruction: Instruction, start: int, end: int) -> None:
        seen.append(instruction)

    trainer.transport.observer = observer
    with trainer.trace(tmp_path / "trace.json"):
        trainer.step(next(batches))
    assert trainer.transport.observer is observer
    raw = read(tmp_path / "trace.json")
    told = [event for event in raw["traceEvents"] if "instruction" in event.get("args", {})]
    assert len(told) == len(seen) > 100


def test_nobody_looks_on_unless_asked(tmp_path: Path, batches: Iterator[Any]) -> None:
    trainer = make_trainer()

    def idle() -> bool:
        submit = trainer.transport.submit
        unwatched = trainer.transport.observer is None and trainer._watch.submit == submit
        return unwatched and not trainer._watch.looks

    trainer.step(next(batches))  # whose memory is counted
    assert idle()
    with trainer.trace(tmp_path / "trace.json", steps=2), trainer.profile(tmp_path / "p.json"):
        trainer.step(next(batches))
    assert idle()


# Windows.


def test_a_window_is_written_as_soon_as_it_is_over(tmp_path: Path, batches: Iterator[Any]) -> None:
    trainer = make_trainer()
    path = tmp_path / "trace.json"
    with trainer.trace(path, steps=[2]):
        trainer.step(next(batches))
        assert not path.exists()
        trainer.step(next(batches))
        assert path.exists()
    check_trace(read(path), trainer.program, [2])


def test_a_window_ends_with_the_block(tmp_path: Path, batches: Iterator[Any]) -> None:
    trainer = make_trainer()
    path = tmp_path / "trace.json"
    with trainer.trace(path, steps=range(1, 10)):
        trainer.step(next(batches))
        trainer.step(next(batches))
    check_trace(read(path), trainer.program, [1, 2])


def test_a_window_that_never_came_says_so(
    tmp_path: Path, batches: Iterator[Any], capsys: pytest.CaptureFixture[str]
) -> None:
    trainer = make_trainer()
    path = tmp_path / "trace.json"
    with trainer.trace(path, steps=3):
        trainer.step(next(batches))
    assert not path.exists()
    said = f"piper: trace {path} was not written: expected step 3, the last was 1\n"
    assert capsys.readouterr().err.endswith(said)


def test_a_window_with_a_failed_step_says_so(
    tmp_path: Path, batches: Iterator[Any], capsys: pytest.CaptureFixture[str]
) -> None:
    trainer = make_trainer()
    path = tmp_path / "trace.json"
    batch = next(batches)
    batch["ids"][0, 0] = 1_000_000
    with (
        pytest.raises(InstructionError, match="index out of range"),
        trainer.trace(path),
        trainer.profile(tmp_path / "profile.json"),
    ):
        trainer.step(batch)
    assert not path.exists()
    assert f"trace {path} was not written: a step failed" in capsys.readouterr().err
    assert trainer.transport.observer is None
    with trainer.profile(tmp_path / "profile.json"):
        trainer.step(next(batches))


def test_odd_windows_are_refused(tmp_path: Path, batches: Iterator[Any]) -> None:
    trainer = make_trainer()
    trainer.step(next(batches))
    path = tmp_path / "trace.json"
    with pytest.raises(ValueError, match=r"trace expected consecutive steps, got \[2, 4\]"):
        trainer.trace(path, steps=[2, 4])
    with pytest.raises(ValueError, match=r"trace expected consecutive steps, got \[\]"):
        trainer.trace(path, steps=[])
    with pytest.raises(ValueError, match="profile expected steps from 2 on, got 1"):
        trainer.profile(path, steps=1)
    with pytest.raises(FileNotFoundError, match="trace expected a file in a folder that exists"):
        trainer.trace(tmp_path / "absent" / "trace.json")
    with pytest.raises(ValueError, match="profile expected a rank below 4, those of mesh pp=2 x"):
        trainer.profile(path, rank=4)
    second = trainer.snapshot_memory(tmp_path / "memory.json")
    with (
        trainer.profile(path),
        pytest.raises(ValueError, match=r"memory snapshot .* expected to be torch's only window"),
        second,
    ):
        pass


def test_ranks_must_trace_the_same_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = make_trainer()
    monkeypatch.setattr(trainer.transport, "gather", lambda value: [value, range(7, 8)])
    with pytest.raises(ValueError, match=r"same steps on all ranks, got range\(2, 3\) on rank 0"):
        trainer.trace(tmp_path / "trace.json", steps=2)


def test_the_profiler_names_instructions(tmp_path: Path, batches: Iterator[Any]) -> None:
    trainer = make_trainer()
    path = tmp_path / "profile.json"
    with trainer.profile(path, steps=2, rank=3):
        trainer.step(next(batches))
        trainer.step(next(batches))
    events = read(path)["traceEvents"]
    named = [event["name"] for event in events if event.get("cat") == "user_annotation"]
    assert named.count("PP:1B3 head$B") == 2  # on two ranks of this process, once
    assert named.count("update embed.weight$b") == 4
    assert "aten::mm" in {event.get("name") for event in events}


def test_a_memory_snapshot_counts_bytes(tmp_path: Path, batches: Iterator[Any]) -> None:
    trainer = make_trainer()
    path = tmp_path / "memory.json"
    with trainer.snapshot_memory(path, steps=1):
        trainer.step(next(batches))
    events = read(path)["traceEvents"]
    counted = [event["args"]["bytes"] for event in events if event["ph"] == "C"]
    assert max(counted) > 4 * 8 * 16 * 8  # an activation in float64


def test_on_cuda_a_memory_snapshot_is_the_allocator_s(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []

    def history(enabled: str | None = "all", **settings: Any) -> None:
        calls.append(f"history {enabled} {settings['device']}")

    for name, value in {"is_available": True, "device_count": 1, "current_device": 0}.items():
        monkeypatch.setattr(torch.cuda, name, lambda value=value: value)
    monkeypatch.setattr(torch.cuda.memory, "_record_memory_history", history)
    monkeypatch.setattr(torch.cuda.memory, "_dump_snapshot", lambda path: calls.append(path))
    transport = LocalTransport(device="cuda")
    transport.ranks = (0,)
    program, path = Program(program_texts()), tmp_path / "memory.pickle"
    window = MemoryWindow(path, 4, done=0, rank=0, program=program, transport=transport)
    assert [window.wants(step) for step in (3, 4, 5)] == [False, True, False]
    window.begin()
    window.end([], (4, 0, 1))
    assert calls == ["history all cuda:0", str(path), "history None cuda:0"]


def test_a_memory_snapshot_needs_a_device_that_tells(tmp_path: Path) -> None:
    transport = LocalTransport()
    transport.device = torch.device("mps")
    program = Program(program_texts())
    with pytest.raises(ValueError, match="expected a device of cpu or cuda, got mps"):
        MemoryWindow(tmp_path / "m", None, done=0, rank=0, program=program, transport=transport)


# Spans.


def span(kind: str, start: int, end: int, **about: Any) -> Span:
    stream = about.pop("stream", "compute")
    rank = about.pop("rank", 0)
    return Span(rank, 1, stream, kind, "", 1, None, start, end, **about)


def test_the_nth_of_one_end_meets_the_nth_of_the_other() -> None:
    pair = {"comm": "c", "members": (0, 1)}
    sent = [span("send", n, n + 1, peer=1, **pair) for n in (0, 5)]
    got = [span("recv", n, n + 1, rank=1, peer=0, **pair) for n in (3, 7)]
    back = span("send", 8, 9, rank=1, peer=0, **pair)
    met = list(meetings([*got, back, *sent]).values())
    assert [set(ends) for ends in met] == [{got[0], sent[0]}, {got[1], sent[1]}, {back}]


def test_exposed_is_what_is_under_way_while_compute_is_idle() -> None:
    message = {"comm": "c", "members": (0, 1), "peer": 1, "stream": "c"}
    own = [
        span("run", 0, 10),
        span("recv", 5, 30, **message),
        span("run", 20, 25),
        span("send", 40, 50, **message),
    ]
    met = met_at(own)
    assert exposed(own, met) == (20 - 10) + (30 - 25) + 10
    received, sent = met
    # The sender came at 15 only, and nobody has come for the other message before its end.
    assert exposed(own, {received: 15, sent: 60}) == (20 - 15) + (30 - 25)


# Clocks.


def same_time(machines: tuple[str, ...], ahead: list[int], orders: list[Order]) -> Clocks:
    """Clocks of processes that are ahead so far, told what was before what at true times."""
    shown = [(of, at + ahead[of], to, until + ahead[to]) for of, at, to, until in orders]
    return Clocks(machines, tuple(shown))


def test_processes_of_one_machine_have_one_clock() -> None:
    assert [clock.ahead for clock in Clocks(("a", "a"), ()).solve()] == [0, 0]
    assert len(read_clocks(lambda value: [value, value]).orders) == 0


def test_clocks_of_two_machines_are_between_their_bounds() -> None:
    clocks = same_time(("a", "b", "b"), [0, 1000, 1000], [(0, 0, 1, 30), (1, 10, 0, 50)])
    first, second, third = clocks.solve()
    assert (first.ahead, first.error) == (0, 0)
    assert second == third
    assert second.ahead == 1000 - 5
    assert second.error == 35
    assert abs(second.ahead - 1000) <= second.error


def test_messages_narrow_the_bounds() -> None:
    clocks = same_time(("a", "b"), [0, 1000], [(0, 0, 1, 400), (1, 0, 0, 400)])
    assert clocks.solve()[1].error == 400
    sent = (0, 100, 1, 102 + 1000)
    narrow = clocks.solve([sent])[1]
    assert narrow.error == 201
    assert sent[1] <= sent[3] - narrow.ahead
    # One that contradicts all barriers shows that the clocks have drifted: it does not count.
    assert clocks.solve([(0, 100, 1, 90 + 500)]) == clocks.solve()


@pytest.mark.parametrize("seed", range(20))
def test_no_message_is_received_before_it_is_sent(seed: int) -> None:
    choice = random.Random(seed)
    machines = tuple(choice.choice("abc") for _ in range(6))
    offsets = {name: choice.randrange(-(10**12), 10**12) for name in "abc"}
    ahead = [offsets[name] - offsets[machines[0]] for name in machines]

    def order(latest: int) -> Order:
        of, to = choice.sample(range(6), 2)
        at = choice.randrange(10**9)
        return (of, at, to, at + choice.randrange(1, latest))

    barriers = [
        (of, choice.randrange(1000), to, choice.randrange(1000, 2000))
        for of in range(6)
        for to in range(6)
        for _ in range(3)
    ]
    clocks = same_time(machines, ahead, barriers)
    messages = same_time(machines, ahead, [order(100) for _ in range(50)]).orders
    solved = clocks.solve(messages)
    for clock, true in zip(solved, ahead, strict=True):
        assert abs(clock.ahead - true) <= clock.error + 1
    for of, sent, to, received in messages:
        assert sent - solved[of].ahead <= received - solved[to].ahead + 1


def test_barriers_are_read_between_machines(monkeypatch: pytest.MonkeyPatch) -> None:
    now = iter(range(0, 10**6, 10))
    everyone = iter([["a", "b", "b"]])

    def gather(value: Any) -> list[Any]:
        other = next(everyone, None)
        if other is not None:
            return other
        later = value and [(start + 500 + 3, end + 500) for start, end in value]
        return [value, later, later]

    clocks = read_clocks(gather, lambda: next(now))
    assert {(of, to) for of, _, to, _ in clocks.orders} == {(0, 0), (0, 1), (1, 0), (1, 1)}
    assert abs(clocks.solve()[2].ahead - 500) <= clocks.solve()[2].error <= 10


# Listings.


@pytest.mark.parametrize(
    ("comment", "expected"),
    [
        ("  # 1F0 docs/a b.py:37 (layers.1.fc), order", ("1F0", "docs/a b.py:37", "layers.1.fc", "order")),
        ("  # 10B12 a.py:3", ("10B12", "a.py:3", "", "")),
        ("      # 0F0 (embed)", ("0F0", "", "embed", "")),
        ("  # a.py:3, place", ("", "a.py:3", "", "place")),
        ("  # update", ("", "", "", "update")),
        ("", ("", "", "", "")),
    ],
)  # fmt: skip
def test_comments_are_taken_apart(comment: str, expected: tuple[str, str, str, str]) -> None:
    texts = program_texts()
    texts["program_pp0.py"] += f"\n\ndef extra(r):\n    r.free(x){comment}\n"
    listing = Listing(Program(sealed(texts)))
    (number,) = listing.entry_lines(0, "extra")
    assert listing.line(0, number) == Line(f"program_pp0.py:{number}", *expected)


@pytest.mark.parametrize(
    ("comment", "directive", "flags"),
    [
        ("  # 1F0 a.py:3 (b), order [host_sync]", "order", ("host_sync",)),
        ("  # a.py:3, place [dynamic_shape]", "place", ("dynamic_shape",)),
        ("  # [host_sync, dynamic_shape]", "", ("host_sync", "dynamic_shape")),
        ("  # a.py:3, place [else]", "place [else]", ()),
    ],
)
def test_flags_stand_last(comment: str, directive: str, flags: tuple[str, ...]) -> None:
    texts = program_texts()
    texts["program_pp0.py"] += f"\n\ndef extra(r):\n    r.free(x){comment}\n"
    listing = Listing(Program(sealed(texts)))
    line = listing.line(0, listing.entry_lines(0, "extra")[0])
    assert (line.directive, line.flags) == (directive, flags)


def test_a_trace_shows_flags(tmp_path: Path, batches: Iterator[Any]) -> None:
    texts = program_texts()
    old = "# 0F0 (layers.0)"
    assert old in texts["program_pp0.py"]
    texts["program_pp0.py"] = texts["program_pp0.py"].replace(old, f"{old} [host_sync]")
    trainer = Trainer(Program(sealed(texts)), model=TiedMlp(), optimizer=make_sgd)
    path = tmp_path / "trace.json"
    with trainer.trace(path, steps=1):
        trainer.step(next(batches))
    raw = read(path)
    check_trace(raw, trainer.program, [1])
    flagged = [event for event in raw["traceEvents"] if "host_sync" in event.get("args", {})]
    assert {(event["pid"], event["name"], event["args"]["cell"]) for event in flagged} == {
        (0, "layer.0$F", "0F0"),
        (1, "layer.0$F", "0F0"),
    }
    assert all(event["args"]["host_sync"] is True for event in flagged)


def test_chunks_have_their_own_names() -> None:
    listing = Listing(Program(program_texts()))
    assert listing.chunk(0, "layer_0_F") == "layer.0$F"
    assert listing.chunk(1, "unknown") == "unknown"
