"""Results, the progress line, the file of metrics, what ranks learn by comparing, and phases."""

from __future__ import annotations

import io
import json
import math
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import pytest
from mlp_program import TiedMlp, make_batch, make_sgd, program_texts, sealed
from piper_runtime import LocalTransport, Program, StepResult, Trainer
from piper_runtime.errors import ProgramError
from piper_runtime.manifest import Manifest
from piper_runtime.mesh import Axis, Mesh
from piper_runtime.observe.clocks import Clocks
from piper_runtime.observe.compare import compare_ranks
from piper_runtime.observe.metrics import Metrics
from piper_runtime.observe.progress import phase, tell
from piper_runtime.observe.spans import Span

RESULT = StepResult(
    step=3,
    loss=8.0412345,
    losses={"loss": 8.0412345},
    grad_norm=None,
    seconds=0.5,
    memory=1_095_216_660,
    memory_of="rank 0",
    memory_how="allocated",
    tokens=54_966,
    devices=4,
)
LINE = "step: 3 loss: 8.041234 memory: 1.02GiB (rank 0) tps: 27,483"


def counted(**flops: Any) -> Program:
    """The program, with FLOPs in its manifest."""
    texts = program_texts()
    raw = json.loads(texts["manifest.json"]) | {"flops": {"train": flops}}
    return Program(sealed(texts | {"manifest.json": json.dumps(raw)}))


def make_trainer(**settings: Any) -> Trainer:
    program = settings.pop("program", None) or Program(program_texts())
    return Trainer(program, model=TiedMlp(), optimizer=make_sgd, **settings)


# Results.


@pytest.mark.parametrize(
    ("known", "shown"),
    [
        ({}, ""),
        ({"resident": 2**31}, ""),
        ({"num_skipped": 1}, ""),
        ({"flops": 3_940_000_000_000}, " tflops: 1.97"),
        ({"peak_flops": 1e15}, ""),
        ({"flops": 4 * 10**12, "peak_flops": 1e15}, " tflops: 2 mfu: 0.20%"),
        ({"bubble": 0.113, "exposed": 0.0041}, " bubble: 11.30% exposed: 0.41%"),
        ({"slowest": "rank 3 (pp 1)", "lag": 0.042}, " slowest: rank 3 (pp 1) +4.2%"),
    ],
)
def test_the_line_has_what_is_known_and_nothing_else(known: dict[str, Any], shown: str) -> None:
    assert str(replace(RESULT, **known)) == LINE + shown


def test_the_line_has_the_predicted_memory_beside_the_measured() -> None:
    line = str(replace(RESULT, memory_predicted=2**30))
    assert line == LINE.replace("(rank 0)", "(rank 0) predicted: 1.00GiB")


def test_the_line_says_that_a_step_was_skipped_and_the_scale_of_the_loss() -> None:
    result = replace(RESULT, skipped=True, num_skipped=2, loss_scale=65536.0)
    assert str(result) == LINE.replace("memory:", "skipped: 2 loss_scale: 65536 memory:")
    known = {"skipped": 2, "loss_scale": 65536.0}
    assert result.metrics() == RESULT.metrics() | known


def test_metrics_have_what_is_known_and_nothing_else() -> None:
    metrics = RESULT.metrics()
    assert set(metrics) == {
        "step", "loss", "seconds", "tokens", "tps", "memory", "memory_of", "memory_how",
    }  # fmt: skip
    several = replace(
        RESULT,
        losses={"main": 6.0, "router": 2.0},
        flops=4 * 10**12,
        executed_flops=8 * 10**12,
        peak_flops=1e13,
    ).metrics()
    assert (several["loss/main"], several["loss/router"]) == (6.0, 2.0)
    assert several["tflops"] == pytest.approx(2.0)
    assert several["mfu"] == pytest.approx(0.2)
    assert several["hfu"] == pytest.approx(0.4)


# The file.


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_every_step_is_a_line_that_is_there_at_once(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    trainer = make_trainer(metrics=path)
    for step in range(3):
        result = trainer.step(make_batch(step))
        written = lines(path)
        assert len(written) == step + 1
        assert {key: value for key, value in written[-1].items() if key != "time"} == (
            result.metrics()
        )
    assert written[0]["time"] < written[2]["time"]
    assert written[0]["slowest"].startswith("rank ")
    assert written[0]["lag"] >= 0
    # The ranks take turns, so that there is no bubble to speak of.
    assert "bubble" not in written[0]
    assert all(isinstance(value, (int, float, str)) for value in written[0].values())


def test_a_later_run_appends(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    for _ in range(2):
        trainer = make_trainer(metrics=str(path))
        trainer.step(make_batch(0))
        trainer.evaluate(make_batch(1))
        trainer.close()
    assert [line["step"] for line in lines(path)] == [1, 1]


def test_ranks_are_compared_as_often_as_asked(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    trainer = make_trainer(metrics=Metrics(path, every=2))
    for step in range(4):
        trainer.step(make_batch(step))
    assert ["slowest" in line for line in lines(path)] == [False, True, False, True]
    assert trainer.transport.observer is None


def test_numbers_that_json_lacks_are_strings(tmp_path: Path) -> None:
    metrics = Metrics(tmp_path / "run.jsonl")
    metrics.write(replace(RESULT, loss=math.nan, grad_norm=-math.inf))
    (line,) = lines(metrics.path)
    assert (line["loss"], line["grad_norm"]) == ("nan", "-inf")


def test_odd_metrics_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="metrics expected every of at least 1, got 0"):
        Metrics(tmp_path / "run.jsonl", every=0)
    with pytest.raises(FileNotFoundError, match="metrics expected a file in a folder that exists"):
        make_trainer(metrics=tmp_path / "absent" / "run.jsonl")


def test_ranks_must_have_the_same_metrics(tmp_path: Path) -> None:
    class Other(LocalTransport):
        def gather(self, value: Any) -> list[Any]:
            return [value, None]

    with pytest.raises(ValueError, match=r"metrics expected the same on all .* 0 and 1"):
        make_trainer(metrics=tmp_path / "run.jsonl", transport=Other())


# FLOPs.


def test_flops_come_from_the_manifest() -> None:
    trainer = make_trainer(program=counted(model=1000, executed=[300, 400]), peak_flops=1e9)
    result = trainer.step(make_batch(0))
    assert result.flops == 1000
    assert result.executed_flops == 2 * (300 + 400)  # two copies of each coordinate
    assert result.mfu == pytest.approx(1000 / result.seconds / 4 / 1e9)
    assert " mfu: " in str(result)


def test_a_program_without_flops_has_none() -> None:
    result = make_trainer().step(make_batch(0))
    assert result.flops is result.tflops is result.mfu is None


def test_a_peak_that_is_of_no_use_is_refused() -> None:
    with pytest.raises(ValueError, match="expected FLOPs per second above 0, got -1"):
        make_trainer(program=counted(model=1, executed=[1, 1]), peak_flops=-1)
    with pytest.raises(ValueError, match="expected a program that says how many FLOPs"):
        make_trainer(peak_flops=1e12)


def test_flops_of_other_coordinates_are_refused() -> None:
    with pytest.raises(ProgramError, match="flops of 'train' for 2 coordinates, got 1"):
        counted(model=1, executed=[1])
    assert Manifest.parse(program_texts()["manifest.json"]).flops == {}


# What ranks learn by comparing.

MESH = Mesh((Axis("pp", 2, "unrolled"),))
SECOND = 1_000_000_000
EARLY = 50 * SECOND  # by how much the second process's clock is ahead


class Pair(LocalTransport):
    """One of two processes, each a thread here."""

    def __init__(self, rank: int, values: list[Any], barrier: threading.Barrier) -> None:
        super().__init__()
        self.ranks = (rank,)
        self._values, self._barrier = values, barrier

    def gather(self, value: Any) -> list[Any]:
        self._values[self.ranks[0]] = value
        self._barrier.wait(10)
        values = list(self._values)
        self._barrier.wait(10)
        return values


def ran(rank: int, kind: str, start: float, end: float, *, ahead: int = 0) -> Span:
    times = (round(start * SECOND) + ahead, round(end * SECOND) + ahead)
    if kind == "run":
        return Span(rank, 1, "compute", kind, "", 1, None, *times)
    return Span(rank, 1, "c", kind, "", 1, None, *times, "c", (0, 1), 1 - rank)


def test_bubble_and_exposed_are_of_the_slowest_rank() -> None:
    # Rank 0 computes until 2, rank 1 from 3 to 9, in a step of 10 seconds; the message is under way
    # from 2, when both are there, to 3.
    clocks = Clocks(("a", "b"), ((0, 0, 1, EARLY), (1, EARLY, 0, 0)))
    spans = [
        [ran(0, "run", 0, 2), ran(0, "send", 2, 3)],
        [ran(1, "recv", 0, 3, ahead=EARLY), ran(1, "run", 3, 9, ahead=EARLY)],
    ]
    values: list[Any] = [None, None]
    barrier = threading.Barrier(2)

    def compared(rank: int) -> StepResult:
        return compare_ranks(
            replace(
                RESULT,
                seconds=10.0,
                memory=5 + rank,
                memory_of=f"rank {rank}",
                memory_predicted=7 + rank,
            ),
            spans[rank],
            transport=Pair(rank, values, barrier),
            mesh=MESH,
            clocks=clocks,
        )

    with ThreadPoolExecutor(2) as pool:
        answers = list(pool.map(compared, (0, 1)))
    for answer in answers:
        assert answer.slowest == "rank 1 (pp 1)"
        assert answer.lag == pytest.approx(6 / 4 - 1)
        assert answer.bubble == pytest.approx(0.4)
        assert answer.exposed == pytest.approx(0.1)
        assert (answer.memory, answer.memory_of, answer.memory_predicted) == (6, "rank 1", 8)


def test_a_rank_alone_has_a_bubble_and_nobody_to_wait_for() -> None:
    transport = LocalTransport()
    transport.ranks = (0,)
    answer = compare_ranks(
        replace(RESULT, seconds=4.0),
        [ran(0, "run", 0, 3)],
        transport=transport,
        mesh=Mesh(()),
        clocks=Clocks(("a",), ()),
    )
    assert (answer.bubble, answer.exposed, answer.slowest) == (0.25, 0.0, None)


# Phases.


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


Stream = TypeVar("Stream", bound=io.StringIO)


def stderr(stream: Stream, monkeypatch: pytest.MonkeyPatch) -> Stream:
    """Make a stream standard error, with nothing in the environment about phases."""
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.delenv("PIPER_PROGRESS", raising=False)
    monkeypatch.delenv("RANK", raising=False)
    return stream


def kernels() -> None:
    with phase("kernels", total=2) as advance:
        advance()
        advance()


def test_a_terminal_shows_phases_while_they_run(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = stderr(Terminal(), monkeypatch)
    kernels()
    shown = stream.getvalue().split("\r\x1b[K")
    assert shown[1:4] == [f"piper: kernels {n} of 2 ..." for n in range(3)]
    assert shown[4].startswith("piper: kernels 2 of 2 0.")
    assert shown[4].endswith("s\n")


def test_a_file_has_phases_only_on_request(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = stderr(io.StringIO(), monkeypatch)
    kernels()
    assert stream.getvalue() == ""
    monkeypatch.setenv("PIPER_PROGRESS", "1")
    kernels()
    assert stream.getvalue().startswith("piper: kernels 2 of 2 0.")
    assert stream.getvalue().count("\n") == 1


def test_phases_can_be_silenced_and_other_ranks_are_silent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stream = stderr(Terminal(), monkeypatch)
    monkeypatch.setenv("RANK", "1")
    kernels()
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("PIPER_PROGRESS", "0")
    kernels()
    assert stream.getvalue() == ""


def test_a_phase_that_fails_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = stderr(Terminal(), monkeypatch)
    with pytest.raises(KeyError), phase("capture"):
        raise KeyError
    assert "piper: capture failed after 0." in stream.getvalue()


def test_what_matters_is_told_everywhere_unless_silenced(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = stderr(io.StringIO(), monkeypatch)
    tell("kernels inductor")
    monkeypatch.setenv("PIPER_PROGRESS", "0")
    tell("more")
    assert stream.getvalue() == "piper: kernels inductor\n"


def test_an_odd_choice_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIPER_PROGRESS", "yes")
    with pytest.raises(ValueError, match="PIPER_PROGRESS expected 0 or 1, got 'yes'"), phase("x"):
        pass
