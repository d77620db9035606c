"""The transport that issues to streams: waits, order, memory, results, failures.

No GPU is needed: streams are recorded, or threads (see ``recorded_streams``).
"""

from __future__ import annotations

import re
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from collective_program import expected_outputs, make_input
from mlp_program import TiedMlp, edited, make_adamw, program_texts
from mlp_program import make_batch as make_tied_batch
from piper_runtime import InstructionError, LocalTransport, Program, Trainer
from piper_runtime.checking.oracle import Oracle
from piper_runtime.failures.faults import VARIABLE
from piper_runtime.instruction import COMPUTE
from piper_runtime.transports import streams
from recorded_streams import (
    NOTHING,
    Issued,
    Log,
    RecordedEvent,
    RecordedStream,
    RecordedTransport,
    RecordingDevice,
    check_log,
    pretended_world,
)
from stream_model import adamw, compiled, make_batch, make_model, shard
from torch import Tensor, nn
from torchrun import torchrun

WORKER = Path(__file__).with_name("stream_worker.py")
RANKS = range(4)
STEPS = 3
SLACK = 15.0
COMPUTE_FAULT, COMPUTE_LINE = "layer.1_B mb 2", r"r\.run\(layer_1_B, from1_m2"
BEHIND = r"rank 1 \(pp 0, dp 1\) is behind: it has been running"


def record(
    rank: int,
    program: Program | None = None,
    *,
    drop: int = NOTHING,
    entry: str = "train",
    zero: int = 0,
) -> Log:
    """What the host of a rank issues in one call."""
    compiled_here = program is None
    model: nn.Module = make_model() if compiled_here else TiedMlp()
    batch = shard(make_batch(0) if compiled_here else make_tied_batch(0), rank)
    transport = RecordedTransport(rank, drop=drop)
    with pretended_world(rank, len(RANKS)):
        trainer = Trainer(
            compiled(zero) if program is None else program,
            transport=transport,
            model=model,
            optimizer=adamw if compiled_here else make_adamw,
        )
        trainer.outputs(entry, batch)
        trainer.close()
    return transport.recording.log


def issued(log: Log) -> list[Issued]:
    return [what for kind, _, what in log.entries if kind == "issue"]


# Waits.


@pytest.mark.parametrize("rank", RANKS)
@pytest.mark.parametrize("entry", ["train", "eval"])
def test_whatever_crosses_streams_is_waited_for(rank: int, entry: str) -> None:
    log = record(rank, entry=entry)
    edges = [
        (what.stream, name) for what in issued(log) for name, _ in what.needs if name != what.stream
    ]
    assert {(COMPUTE, "send$1.0" if rank < 2 else "send$0.1")} <= set(edges) or entry == "eval"
    assert len(edges) > 4
    assert check_log(log) == []


@pytest.mark.parametrize("zero", [1, 2, 3])
@pytest.mark.parametrize("entry", ["train", "eval"])
def test_gathers_and_parts_are_waited_for(entry: str, zero: int) -> None:
    """Where ranks share out states, whole values and parts of sums cross streams, too."""
    log = record(1, entry=entry, zero=zero)
    streams_of_gathers = {what.stream for what in issued(log) if what.stream.startswith("gather")}
    assert len(streams_of_gathers) == (0 if entry == "eval" and zero < 3 else 1)
    assert check_log(log) == []


@pytest.mark.parametrize("rank", RANKS)
def test_a_hand_written_program_is_waited_for(rank: int) -> None:
    assert check_log(record(rank, Program(program_texts()))) == []


@pytest.mark.parametrize("rank", [1, 2])
def test_every_wait_is_needed(rank: int) -> None:
    """Each is left out once: the check says so, of the instruction that should have waited."""
    count = record(rank).waits
    assert count > 15
    for drop in range(count):
        wrong = check_log(record(rank, drop=drop))
        assert wrong, f"wait {drop}"
        assert ": does not wait for instruction" in wrong[0] or "may be in use" in wrong[0]


def test_what_is_issued_to_a_stream_is_in_program_order() -> None:
    numbers: dict[str, list[int]] = {}
    for what in issued(record(0)):
        numbers.setdefault(what.stream, []).append(what.number)
    assert set(numbers) == {COMPUTE, "send$0.1", "send$1.0", "reduce.dp$0", "reduce.pp$0.1"}
    assert all(found == sorted(found) for found in numbers.values())
    assert sorted(number for found in numbers.values() for number in found) == list(
        range(sum(map(len, numbers.values())))
    )


def test_the_host_does_not_ask_the_device_before_the_program_is_through(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[Any] = []
    transport = RecordedTransport(0)

    def ask(*_: Any) -> bool:
        asked.append(transport._issuing)
        return True

    with pretended_world(0, len(RANKS)):
        trainer = Trainer(compiled(), transport=transport, model=make_model())
        for kind, question in ((RecordedStream, "idle"), (RecordedEvent, "done")):
            monkeypatch.setattr(kind, question, ask)
        monkeypatch.setattr(RecordingDevice, "synchronize", ask)
        trainer.step(shard(make_batch(0), 0))
    assert len(asked) > 4
    assert set(asked) == {None}  # nothing was being issued


def test_ends_of_messages_connect_in_one_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before the first call every sender meets its receivers, and no two ranks wait crosswise."""
    met: dict[int, list[tuple[int, int]]] = {rank: [] for rank in RANKS}
    for rank in RANKS:

        def note(kind: str, value: Tensor, *, peer: int, group: Any, rank: int = rank) -> None:
            assert value.numel() == 1
            met[rank].append((rank, peer) if kind == "send" else (peer, rank))

        with monkeypatch.context() as patch, pretended_world(rank, len(RANKS)):
            patch.setattr(streams, "pass_message", note)
            Trainer(compiled(), transport=RecordedTransport(rank), model=make_model())
    assert met == {0: [(0, 2), (2, 0)], 1: [(1, 3), (3, 1)], 2: met[0], 3: met[1]}


# Memory.


def test_what_a_program_drops_is_kept_until_compute_has_waited_for_its_stream() -> None:
    """The frees behind sends are taken out of the program, and names are bound anew."""
    lines = [(f"    r.free(d1_{m}, after=[s_{m}])\n", f"    d1_{m} = None\n") for m in range(4)]
    program = edited("program_pp1.py", *lines)
    log = record(2, program)
    sends = [what for what in issued(log) if ".send(" in what.text]
    dead = [what for kind, _, what in log.entries if kind == "dead"]
    assert len(sends) == 4
    assert set(sends) <= set(dead)
    assert check_log(log) == []


def test_the_check_finds_what_goes_back_too_early(monkeypatch: pytest.MonkeyPatch) -> None:
    from piper_runtime.transports.lanes import Lane

    monkeypatch.setattr(Lane, "keep", lambda *_: None)
    lines = [(f"    r.free(d1_{m}, after=[s_{m}])\n", f"    d1_{m} = None\n") for m in range(4)]
    wrong = check_log(record(2, edited("program_pp1.py", *lines)))
    assert any("its tensors went back before compute came behind it" in line for line in wrong)


def test_nothing_is_kept_behind_a_call() -> None:
    transport = RecordedTransport(0)
    with pretended_world(0, len(RANKS)):
        trainer = Trainer(compiled(), transport=transport, model=make_model())
        trainer.step(shard(make_batch(0), 0))
    lanes = transport._lanes.by_name.values()
    assert not any(lane.kept or lane.issued or lane.marks for lane in lanes)


# Failures on one rank.


def test_a_failure_names_its_instruction_and_the_next_call_raises_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(VARIABLE, "rank=0 instruction='send send$0.1 mb 1' action=raise")
    with pretended_world(0, len(RANKS)):
        trainer = Trainer(compiled(), transport=RecordedTransport(0), model=make_model())
        with pytest.raises(InstructionError, match=r"rank 0 .*r.send\(.*FaultError"):
            trainer.step(shard(make_batch(0), 0))
        with pytest.raises(InstructionError, match="FaultError"):
            trainer.step(shard(make_batch(0), 0))


def test_an_error_of_the_device_names_the_first_instruction_that_is_not_done(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(stream: RecordedStream) -> bool:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    with pretended_world(0, len(RANKS)):
        trainer = Trainer(compiled(), transport=RecordedTransport(0), model=make_model())
        monkeypatch.setattr(RecordedStream, "idle", fail)
        message = r"rank 0 .*program_pp0.py:\d+: .*RuntimeError: CUDA error(.*\n)+streams that were"
        with pytest.raises(InstructionError, match=message):
            trainer.step(shard(make_batch(0), 0))


def test_check_mode_is_refused() -> None:
    class Nothing(Oracle):
        bound = 1.0

        def expect(self, *arguments: Any, **options: Any) -> Any:
            raise AssertionError("not asked")

    with pretended_world(0, len(RANKS)):
        transport = RecordedTransport(0)
        trainer = Trainer(compiled(), transport=transport, model=make_model())
        transport.identify = True
        with pytest.raises(
            ValueError, match=r"check expected the transport local or gloo, .*, got"
        ):
            trainer.step(shard(make_batch(0), 0))


# Four processes.


def launch(
    folder: Path, *, timeout: float = 60.0, steps: int = STEPS, fault: str = "", zero: int = 0
) -> tuple[subprocess.CompletedProcess[str], float]:
    compiled(zero).save(folder / "program")
    options = (folder / "program", folder, timeout, steps)
    start = time.monotonic()
    done = torchrun(WORKER, *options, count=len(RANKS), variables={VARIABLE: fault})
    return done, time.monotonic() - start


@pytest.mark.parametrize("zero", [0, pytest.param(3, marks=pytest.mark.slow)])
def test_four_ranks_train_as_local_does_bit_for_bit(tmp_path: Path, zero: int) -> None:
    done, _ = launch(tmp_path, zero=zero)
    assert done.returncode == 0, done.stderr[-4000:]
    trainer = Trainer(
        compiled(zero), transport=LocalTransport(), model=make_model(), optimizer=adamw
    )
    results = [trainer.step(make_batch(step)) for step in range(STEPS)]
    evaluation = trainer.evaluate(make_batch(9))
    for rank in RANKS:
        seen = torch.load(tmp_path / f"rank{rank}.pt")
        assert seen["losses"] == [result.loss for result in results]
        norms = [result.grad_norm for result in results]
        assert seen["norms"] == (pytest.approx(norms, rel=1e-6) if zero else norms)
        assert seen["evaluation"] == evaluation
        for name, expected in (
            ("gradients", trainer.gradients()),
            ("state", trainer.full_state_dict()),
        ):
            assert _equal(seen[name], expected), name
        _check_spans(seen["spans"])
        for dtype, outputs in seen["collectives"].items():
            assert outputs == expected_outputs(make_input(dtype))


def _equal(found: dict[str, Tensor], expected: dict[str, Tensor]) -> bool:
    return found.keys() == expected.keys() and all(
        torch.equal(found[name], value) for name, value in expected.items()
    )


def _check_spans(spans: Sequence[tuple[str, int, int, int]]) -> None:
    """The observer is told of every instruction, in order on each stream."""
    assert sorted(number for _, number, _, _ in spans) == list(range(len(spans)))
    last: dict[str, int] = {}
    for stream, _, start, end in spans:
        assert last.get(stream, 0) <= start <= end
        last[stream] = end


@pytest.mark.parametrize(
    ("instruction", "action", "says"),
    [
        pytest.param(
            COMPUTE_FAULT, "raise", rf"rank 1 failed:\n.*Traceback[^$]*{COMPUTE_LINE}", id="raise"
        ),
        pytest.param(
            COMPUTE_FAULT,
            "kill",
            rf"vanished: its process has ended.*\n.*{COMPUTE_LINE}",
            marks=pytest.mark.slow,
            id="kill",
        ),
        pytest.param(
            COMPUTE_FAULT,
            "sleep:3600",
            rf"{BEHIND}.*\n.*{COMPUTE_LINE}",
            marks=pytest.mark.slow,
            id="sleep",
        ),
        pytest.param(
            "send send$0.1 mb 2",
            "sleep:3600",
            rf"{BEHIND}.*\n.*r\.send\(layer_1_F1_m2",
            marks=pytest.mark.slow,
            id="sleep before a send",
        ),
    ],
)
def test_a_fault_on_one_rank_ends_all_and_is_named(
    tmp_path: Path, instruction: str, action: str, says: str
) -> None:
    fault = f"rank=1 step=2 instruction='{instruction}' action={action}"
    done, seconds = launch(tmp_path, timeout=5.0, fault=fault)
    assert done.returncode != 0
    assert seconds < 5.0 + 2 * SLACK  # it starts, compiles nothing, and trains for a step
    assert re.search(says, done.stderr), done.stderr[-6000:]
