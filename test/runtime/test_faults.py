"""Faults on purpose: how they are asked for, and what all ranks say when they strike."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
import uuid
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import torch
from mlp_program import TiedMlp, make_batch, make_sgd, program_texts
from piper_runtime import Fault, FaultError, InstructionError, LocalTransport, Program, Trainer
from piper_runtime.failures.faults import VARIABLE
from torchrun import command, torchrun

WORKER = Path(__file__).with_name("fault_worker.py")
LIMIT = 5.0
SLACK = 15.0  # for torchrun to notice, and all processes to end
SECONDS = 10.0  # in which all ranks raise: many times what it takes


def trainer(fault: Fault | str | None = None) -> Trainer:
    return Trainer(Program(program_texts()), model=TiedMlp(), optimizer=make_sgd, fault=fault)


# How a fault is asked for.


def test_a_fault_is_read_from_text() -> None:
    text = "rank=2 step=3 instruction='layer.1_B mb 0' action=sleep:1.5"
    assert Fault.parse(text) == Fault(2, "layer.1_B mb 0", "sleep:1.5", step=3)
    text = 'action=kill rank=0 instruction="send layer.1$B#0"'
    assert Fault.parse(text) == Fault(0, "send layer.1$B#0", "kill", step=1)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("rank=2", r"fault expected instruction=\.\.\., got 'rank=2'"),
        ("instruction=x action=kill", r"fault expected rank=\.\.\., got"),
        ("rank=2 instruction=x", r"fault expected action=\.\.\., got"),
        ("rank=two instruction=x action=kill", "fault expected a number as rank, got 'two'"),
        ("rank=1 step=x instruction=x action=kill", "fault expected a number as step, got 'x'"),
        ("rank=-1 instruction=x action=kill", "fault expected a rank of at least 0, got -1"),
        ("rank=1 step=0 instruction=x action=kill", "a step of at least 1, got 0"),
        ("rank=1 rank=2 instruction=x action=kill", "fault expected one rank, got '1' and '2'"),
        ("rank=1 instruction=x action=kill now", r"fault expected rank=\.\.\. .*, got 'now'"),
        ("rank=1 instruction=x action=kill when=now", r"fault expected rank=\.\.\. .*'when=now'"),
        ("rank=1 instruction='x action=kill", "fault expected closed quotes, got"),
        ("rank=1 instruction='a b c' action=kill", r"'\[KIND\] NAME \[mb M\]' or .*, got 'a b c'"),
        ("rank=1 instruction=x action=stop", "kill, raise or sleep:SECONDS as action, got 'stop'"),
        ("rank=1 instruction=x action=sleep", "as action, got 'sleep'"),
        ("rank=1 instruction=x action=sleep:soon", "as action, got 'sleep:soon'"),
        ("rank=1 instruction=x action=sleep:-1", "as action, got 'sleep:-1'"),
        ("rank=1 instruction=x action=sleep:inf", "as action, got 'sleep:inf'"),
        ("rank=1 instruction=x action=kill:1", "as action, got 'kill:1'"),
    ],
)
def test_odd_faults_are_refused(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Fault.parse(text)


def test_a_fault_that_the_program_does_not_have_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    message = (
        r"expected an instruction of the program of rank 2 for the fault, such as "
        r"'layer_1_B mb \d', .*, got 'layer_7_B mb 0'"
    )
    with pytest.raises(ValueError, match=message):
        trainer("rank=2 instruction='layer_7_B mb 0' action=raise")
    with pytest.raises(ValueError, match=r"fault expected a rank of mesh pp=2 x dp=2, got 4"):
        trainer(Fault(4, "layer_1_B", "raise"))
    monkeypatch.setenv(VARIABLE, "rank=2")
    with pytest.raises(ValueError, match=r"fault expected instruction=\.\.\., got 'rank=2'"):
        trainer()


# What happens in one process.


@pytest.mark.parametrize(
    ("instruction", "line"),
    [
        ("layer.1_B mb 2", "`d1_2, g1_2 = r.run(layer_1_B, "),
        ("run layer_1_B", "`d1_0, g1_0 = r.run(layer_1_B, "),
        ("send pp$1.0 mb 1", "`s_1 = r.send(d1_1, "),
        ("recv pp_0_1", "`x1_0, v_0 = r.recv("),
        ("accumulate layers.1.weight$b", "`A_0 = r.accumulate("),
        ("all_reduce dp$1", "`N, a = r.all_reduce("),
        ("update embed.weight$b", '`r.update("embed.weight$b"'),
        ("input labels mb 3", '`labels_3 = r.input("labels", mb=3)`'),
        ("program_pp1.py:44", "program_pp1.py:44: `n_1 = "),
    ],
)
def test_the_instruction_that_is_meant_fails(instruction: str, line: str) -> None:
    broken = trainer(Fault(2, instruction, "raise", step=2))
    broken.step(make_batch(0))
    broken.evaluate(make_batch(0))
    with pytest.raises(InstructionError) as caught:
        broken.step(make_batch(1))
    assert str(caught.value).startswith("rank 2 (pp 1, dp 0), ")
    assert line in str(caught.value)
    assert "FaultError: this instruction was told to fail" in str(caught.value)
    assert isinstance(caught.value.__cause__, FaultError)


def test_a_sleeping_instruction_says_so_and_changes_nothing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    slept: list[float] = []
    monkeypatch.setattr(time, "sleep", slept.append)
    monkeypatch.setenv(VARIABLE, "rank=1 instruction='embed_F mb 1' action=sleep:2.5")
    loss = trainer().step(make_batch(0)).loss
    monkeypatch.delenv(VARIABLE)
    assert loss == trainer().step(make_batch(0)).loss
    assert slept == [2.5]
    said = capsys.readouterr().err
    assert "piper: fault of step 1 at rank 1 (pp 0, dp 1), program_pp0.py:" in said
    assert "`x0_1 = r.run(embed_F, ids_1, pe, mb=1)`, chunk embed_F, microbatch 1: sleep" in said


def test_a_killed_instruction_kills_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    killed: list[tuple[int, int]] = []
    monkeypatch.setattr(os, "kill", lambda *signalled: killed.append(signalled))
    trainer("rank=0 instruction='embed_F' action=kill").step(make_batch(0))
    assert killed == [(os.getpid(), signal.SIGKILL)]


def test_without_a_fault_nothing_is_hooked() -> None:
    hooks = []
    transport = LocalTransport()
    transport.observer = lambda instruction, *_: hooks.append(instruction.hooks)
    model = TiedMlp()
    plain = Trainer(Program(program_texts()), model=model, optimizer=make_sgd, transport=transport)
    plain.step(make_batch(0))  # whose memory is counted
    hooks.clear()
    plain.step(make_batch(1))
    assert set(hooks) == {()}


# What happens between processes, under torchrun.


@dataclass(frozen=True)
class Ended:
    """How four processes ended."""

    status: int
    seconds: float
    stderr: str
    left: list[str]
    after: dict[int, float]
    """Seconds from the fault to the exception of each rank, by the clock of the processes."""

    def reports(self, text: str) -> list[int]:
        """The ranks whose last exception is of a kind, or holds a text."""
        return [r for r in range(4) if any(text in line for line in self.lines(r))]

    def lines(self, rank: int) -> list[str]:
        """What a rank has said of its exceptions."""
        return [line for line in self.stderr.splitlines() if line.startswith(f"[rank{rank}]:")]


def launch(fault: str, *words: str, limit: float = LIMIT) -> Ended:
    """Run the worker under torchrun; ``seconds`` count from when the fault struck to the end of all
    processes. A rank may stand still for ``limit`` seconds.
    """
    mark = f"PIPER_TEST_MARK={uuid.uuid4()}"
    name, value = mark.split("=")
    environment = os.environ | {VARIABLE: fault, name: value, "OMP_NUM_THREADS": "1"}
    with TemporaryDirectory() as folder:
        launched = command(WORKER, limit, 4, folder, *words, count=4)
        struck, lines = time.monotonic(), []
        with subprocess.Popen(
            launched, env=environment, stderr=subprocess.PIPE, text=True
        ) as process:
            assert process.stderr is not None
            for line in process.stderr:
                lines.append(line)
                if line.startswith("piper: fault of step"):
                    struck = time.monotonic()
            status = process.wait(timeout=120)
        seconds, left = time.monotonic() - struck, processes_with(mark)
        return Ended(status, seconds, "".join(lines), left, times_in(Path(folder)))


def times_in(folder: Path) -> dict[int, float]:
    """The seconds from the fault to the end of each rank that could still say when that was."""
    struck = float((folder / "struck").read_text())
    ended = {rank: folder / f"ended{rank}" for rank in range(4)}
    return {r: float(file.read_text()) - struck for r, file in ended.items() if file.exists()}


def processes_with(mark: str) -> list[str]:
    """The processes whose environment holds a variable."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if mark.encode() in (folder / "environ").read_bytes().split(b"\0"):
                found.append((folder / "cmdline").read_text())
        except OSError:
            continue
    return found


@pytest.mark.slow
def test_a_killed_rank_is_named_by_the_others_with_where_it_was() -> None:
    ended = launch("rank=2 step=3 instruction='layer_1_B mb 1' action=kill", limit=60)
    assert ended.status != 0
    assert ended.seconds < SLACK
    assert set(ended.after) == {0, 1, 3}
    assert max(ended.after.values()) < SECONDS
    assert ended.left == []
    assert ended.reports("RemoteError: rank 2 (pp 1, dp 0) vanished: its process has ended")
    assert ended.reports("in step 3 (train)") == [0, 1, 3]
    assert ended.reports("`d1_1, g1_1 = r.run(layer_1_B, d2_1, x1_1, r1_1, p1, mb=1)`") == [0, 1, 3]
    assert ended.reports("from 1B1 (layers.1)") == [0, 1, 3]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("instruction", "line", "waiting"),
    [
        ("layer_1_B mb 1", "`d1_1, g1_1 = r.run(layer_1_B, d2_1, x1_1, r1_1, p1, mb=1)`", 3),
        ("recv pp$0.1 mb 1", '`x1_1, v_1 = r.recv(comm="pp$0.1", peer=0', 3),
    ],
)
def test_a_sleeping_rank_is_named_with_who_waits_for_it(
    instruction: str, line: str, waiting: int
) -> None:
    ended = launch(f"rank=2 step=3 instruction='{instruction}' action=sleep:1000")
    assert ended.status != 0
    assert ended.left == []
    assert LIMIT < ended.seconds < LIMIT + SLACK
    assert set(ended.after) >= {0, 1, 3}
    assert max(ended.after.values()) < LIMIT + SECONDS
    head, _, report = ended.stderr.partition("piper: no progress for ")
    assert "Traceback" not in head
    lines = report.partition("[rank")[0].splitlines()
    assert lines[0].endswith("s in step 3 (train)")
    assert lines[1].startswith("rank 2 (pp 1, dp 0) is behind: it has been ")
    assert line in lines[2]
    assert sum(" waits for rank " in one for one in lines) == waiting
    assert ended.reports("StallError: no progress for")


@pytest.mark.slow
def test_a_raising_rank_stops_all_with_its_traceback_first() -> None:
    ended = launch("rank=1 step=2 instruction='layer_0_F mb 1' action=raise", limit=60)
    assert ended.status != 0
    assert ended.seconds < SLACK
    assert set(ended.after) == {0, 1, 2, 3}
    assert max(ended.after.values()) < SECONDS
    assert ended.left == []
    assert ended.reports("FaultError: this instruction was told to fail") == [0, 1, 2, 3]
    assert ended.reports("RemoteError: rank 1 failed:") == [0, 2, 3]
    assert ended.reports("`x1_1, r0_1 = r.run(layer_0_F, x0_1, p0, mb=1)`") == [0, 1, 2, 3]
    traces = [line for line in ended.stderr.splitlines() if "Traceback" in line]
    assert traces[0].startswith("[rank1]:")
    # Its own is all there before the next one starts.
    own = ended.stderr[: ended.stderr.index("[rank1]: piper_runtime.errors.InstructionError")]
    assert own.count("Traceback") == 2


@pytest.mark.slow
def test_a_raising_rank_stops_all_though_its_process_stays() -> None:
    """They are told, and do not only see that it has gone, or that nothing moves."""
    ended = launch("rank=1 step=2 instruction='layer_0_F mb 1' action=raise", "stay", limit=60)
    assert ended.status != 0
    assert ended.left == []
    assert set(ended.after) == {0, 1, 2, 3}
    assert max(ended.after.values()) < SECONDS
    assert ended.reports("RemoteError: rank 1 failed:") == [0, 2, 3]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "line", "origin", "code"),
    [
        (
            "instruction='head.0$B mb 1' action=raise",
            "`head_0_B0_m1, head_0_B1_m1 = r.run(head_0_B, ",
            r"from 1B1 \S*shared_model\.py:(\d+), order",
            "return F.cross_entropy(",
        ),
        (
            "instruction='recv layer.1$F#1 mb 2' action=sleep:1000",
            "`from0_m2, e_10 = r.recv(comm='send$0.1', ",
            r"from \S*shared_model\.py:(\d+) \(layers\.1\), place",
            "x = x + F.gelu(layer(x))",
        ),
    ],
)
def test_of_a_compiled_program_the_report_names_line_and_directive(
    fault: str, line: str, origin: str, code: str
) -> None:
    """The instruction, the line of the model that it is from, and the directive behind it."""
    ended = launch(f"rank=2 step=2 {fault}", "compiled")
    assert ended.status != 0
    assert ended.left == []
    model = WORKER.with_name("shared_model.py").read_text().splitlines()
    for rank in ended.after:
        own = "\n".join(ended.lines(rank))
        assert line in own
        found = re.search(origin, own[own.index(line) :])
        assert found is not None
        assert code in model[int(found[1]) - 1]
    assert set(ended.after) >= {0, 1, 3}


@pytest.mark.slow
def test_without_a_fault_all_ranks_end_well_with_the_bits_of_local(tmp_path: Path) -> None:
    done = torchrun(WORKER, 60, 3, tmp_path, count=4)
    assert done.returncode == 0, done.stderr
    local = trainer()
    for step in range(3):
        loss = local.step(make_batch(step)).loss
    expected = sorted(f"loss {loss!r} of rank {rank}" for rank in range(4))
    assert sorted(done.stdout.splitlines()) == expected
    assert torch.get_num_threads() == 1
