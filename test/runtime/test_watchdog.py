"""Hangs: who is behind is found and said in words, whatever instruction it hangs at."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import piper
import pytest
import shared_model
import torch
from frozen import Machine
from mlp_program import TiedMlp, program_texts
from piper_runtime import (
    GlooTransport,
    LocalTransport,
    Program,
    RemoteError,
    StallError,
    Trainer,
)
from piper_runtime.failures.counters import (
    ACTIVITY,
    FIRST_STREAM,
    Activity,
    Address,
    Counters,
    Peer,
    head_of,
    is_done,
)
from piper_runtime.failures.hang import Programs, Status, explain, find_blame
from piper_runtime.failures.watchdog import GRACE, SILENCE, Watchdog
from piper_runtime.instruction import Instruction
from torch._C._distributed_c10d import HashStore
from torchrun import torchrun

NUM_RANKS = 4
NOWHERE = Address("", 0, "", -1)


@pytest.fixture(scope="module")
def programs() -> Programs:
    return Programs(Program(program_texts(num=2)).load(torch.device("cpu")))


def find(programs: Programs, rank: int, text: str) -> Instruction:
    """The first instruction of a rank whose line holds a text."""
    return next(i for i in programs.instructions(rank, "train") if text in i.text())


# Who is behind.


def test_wherever_one_instruction_hangs_every_rank_that_waits_finds_it(programs: Programs) -> None:
    """Every instruction of four ranks is frozen once, and asked about from every rank."""
    asked = 0
    for rank in range(NUM_RANKS):
        for frozen in programs.instructions(rank, "train"):
            machine = Machine(programs, frozen)
            statuses = machine.statuses()
            for other in filter(machine.waits, range(NUM_RANKS)):
                blame = find_blame(programs, statuses, other)
                found = [blame.instruction, *blame.others]
                assert frozen in found, (frozen.describe(), other, blame)
                assert blame.seconds == 5.0
                asked += 1
    assert asked > 500


def test_the_report_names_all_that_wait_their_lines_and_sources(programs: Programs) -> None:
    machine = Machine(programs, find(programs, 2, "r.run(layer_1_B"))
    statuses = machine.statuses()
    report = explain(programs, statuses, find_blame(programs, statuses, 0)).splitlines()
    assert report[0] == "rank 2 (pp 1, dp 0) is behind: it has been running for 5.0 s"
    assert re.fullmatch(
        r"  at instruction \d+ of rank 2 \(pp 1, dp 0\), program_pp1.py:\d+: "
        r"`d1_0, g1_0 = r.run\(layer_1_B, .*\)`, chunk layer_1_B, microbatch 0",
        report[1],
    )
    assert report[2] == "     from 1B0 (layers.1)"
    assert report[3].startswith("  rank 0 (pp 0, dp 0) waits for rank 2: recv, instruction ")
    assert "`d1_0, v_0 = r.recv(" in report[3]
    assert report[4].startswith("  rank 1 (pp 0, dp 1) waits for rank 0: all_reduce, instruction ")
    assert report[5].startswith("  rank 3 (pp 1, dp 1) waits for rank 2: all_reduce, instruction ")
    assert len(report) == 6


def test_a_rank_that_is_not_in_the_call(programs: Programs) -> None:
    """Rank 1 loads data: its counters are those of the call before."""
    machine = Machine(programs, programs.instructions(1, "train")[0], call=7)
    statuses = machine.statuses()
    cells = [6, 2, 0, Activity.IDLE, *statuses[1].cells[FIRST_STREAM:]]
    statuses[1] = Status(cells, [9.0] * len(cells))
    blame = find_blame(programs, statuses, 0)
    assert (blame.rank, blame.instruction) == (1, None)
    text = explain(programs, statuses, blame)
    expected = (
        "rank 1 (pp 0, dp 1) is behind: it has been between two calls for 9.0 s, behind step 2"
    )
    assert text.splitlines()[0] == expected
    statuses[1] = replace(statuses[1], note="its process is stopped")
    text = explain(programs, statuses, find_blame(programs, statuses, 0))
    assert text.splitlines()[0] == f"{expected} (its process is stopped)"


def test_a_rank_that_does_not_share_what_all_share(programs: Programs) -> None:
    machine = Machine(programs, find(programs, 3, "r.update"))
    statuses = machine.statuses()
    for rank in (0, 1, 2):
        cells = list(statuses[rank].cells)
        cells[ACTIVITY] = Activity.SHARING
        statuses[rank] = replace(statuses[rank], cells=cells)
    text = explain(programs, statuses, find_blame(programs, statuses, 0))
    assert "rank 3 (pp 1, dp 1) is behind: it has been running for 5.0 s\n" in text
    assert "  rank 0 (pp 0, dp 0) waits for rank 3, to share values behind the step" in text
    for rank, status in statuses.items():
        cells = [*status.cells[:ACTIVITY], Activity.SHARING, *status.cells[FIRST_STREAM:]]
        statuses[rank] = replace(status, cells=cells)
    blame = find_blame(programs, statuses, 1)
    assert blame.what.startswith("has been sharing values with all ranks")


def test_a_rank_that_has_vanished(programs: Programs) -> None:
    machine = Machine(programs, find(programs, 2, "r.run(layer_1_B"))
    statuses = machine.statuses()
    statuses[2] = replace(statuses[2], gone="vanished: its process has ended")
    report = explain(programs, statuses, find_blame(programs, statuses, 2)).splitlines()
    head = "rank 2 (pp 1, dp 0) vanished: its process has ended, in step 1 (train)"
    assert report[0] == head
    assert "`d1_0, g1_0 = r.run(layer_1_B" in report[1]


def test_a_rank_that_nothing_is_known_of(programs: Programs) -> None:
    machine = Machine(programs, find(programs, 2, "r.run(layer_1_B"))
    statuses = machine.statuses() | {2: Status()}
    blame = find_blame(programs, statuses, 0)
    assert (blame.rank, blame.what) == (2, "has not said where it is")


def test_ranks_that_wait_in_a_circle(programs: Programs) -> None:
    """Rank 0 and rank 2 each wait to receive what the other sends only later."""
    machine = Machine(programs, find(programs, 2, "r.run(layer_1_F"))
    statuses = machine.statuses()
    recv, send = find(programs, 0, "d1_0, v_0 = r.recv"), find(programs, 2, "x1_1, v_1 = r.recv")
    for instruction in (recv, send):
        rank, cells = instruction.rank.home.index, list(statuses[instruction.rank.home.index].cells)
        streams = Counters(programs.streams(rank)).slots
        user = next(i for i in programs.instructions(rank, "train") if instruction in i.waits)
        cells[FIRST_STREAM] = 2 * user.number + 1
        cells[streams[instruction.stream]] = 2 * instruction.number + 1
        cells[streams["pp$0.1" if rank == 0 else "pp$1.0"]] = 0
        statuses[rank] = replace(statuses[rank], cells=cells)
    blame = find_blame(programs, statuses, 0)
    assert blame.what == "waits in a circle of ranks 0, 2"


def called(programs: Programs, rank: int, entry: str, *, call: int = 1, step: int = 1) -> Status:
    """A rank that waits for the first message of an entry point."""
    instructions = programs.instructions(rank, entry)
    user = next(i for i in instructions if any(event.message for event in i.waits))
    [message] = [event for event in user.waits if event.message]
    counters = Counters(programs.streams(rank))
    cells = [call, step, programs.entry_points.index(entry), Activity.ISSUING]
    cells += [0] * (len(counters.cells) - len(cells))
    cells[FIRST_STREAM] = 2 * user.number + 1
    cells[counters.slots[message.stream]] = 2 * message.number + 1
    return Status(cells, [5.0] * len(cells))


def test_ranks_that_have_called_different_entry_points(programs: Programs) -> None:
    """None of them would be behind if they had made the same calls."""
    entries = ["train", "train", "train", "eval"]
    statuses = {rank: called(programs, rank, entry) for rank, entry in enumerate(entries)}
    report = explain(programs, statuses, find_blame(programs, statuses, 0)).splitlines()
    assert report[0] == (
        "ranks have not made the same calls: step 1 (train) on ranks 0, 1, 2; step 1 (eval) on rank "
        "3: every process must call the same entry points in the same order"
    )
    assert report[1].startswith("rank ")
    assert " is behind: it " in report[1]


def test_a_rank_that_is_a_call_behind_has_made_the_same(programs: Programs) -> None:
    """What others called then is not known any more."""
    statuses = {rank: called(programs, rank, "train", call=2, step=2) for rank in range(NUM_RANKS)}
    statuses[3] = called(programs, 3, "eval")
    report = explain(programs, statuses, find_blame(programs, statuses, 0))
    assert "the same calls" not in report
    statuses[3] = called(programs, 3, "eval", call=2, step=2)
    report = explain(programs, statuses, find_blame(programs, statuses, 0)).splitlines()[0]
    assert report.startswith(
        "ranks have not made the same calls: step 2 (train) on ranks 0, 1, 2; "
    )
    vanished = statuses | {3: replace(statuses[3], gone="vanished: its process has ended")}
    report = explain(programs, vanished, find_blame(programs, vanished, 3))
    assert report.startswith(
        "rank 3 (pp 1, dp 1) vanished: its process has ended, in step 2 (eval)"
    )


def test_ranks_of_one_call_are_limited(programs: Programs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("piper_runtime.failures.hang.MOST_LISTED", 2)
    statuses = {rank: called(programs, rank, "train") for rank in range(NUM_RANKS)}
    statuses[3] = called(programs, 3, "eval")
    report = explain(programs, statuses, find_blame(programs, statuses, 0))
    assert "(train) on ranks 0, 1 and 1 more; step 1 (eval) on rank 3: " in report


@pytest.mark.slow
def test_a_process_that_evaluates_while_others_train() -> None:
    done = torchrun(Path(__file__).with_name("calls_worker.py"), count=NUM_RANKS)
    assert done.returncode != 0
    assert "StallError: no progress for " in done.stderr
    assert (
        "ranks have not made the same calls: step 2 (train) on ranks 0, 2, 3; step 2 (eval) on rank "
        "1: every process must call the same entry points in the same order\n" in done.stderr
    )


# The counters.


def test_cells_tell_heads_from_what_is_done() -> None:
    assert [head_of(cell) for cell in (0, 1, 2, 7)] == [None, 0, None, 3]
    assert [is_done(cell, 3) for cell in (0, 6, 7, 8, 9)] == [False, False, False, True, True]
    counters = Counters(["b", "compute", "a"])
    assert counters.streams == ("compute", "a", "b")
    counters.cells[counters.slots["a"]] = 5
    counters.begin(step=3, entry=1)
    assert list(counters.cells) == [1, 3, 1, Activity.ISSUING, 0, 0, 0]


def test_counters_can_be_read_after_their_process_was_killed() -> None:
    code = """if True:
        import json, sys, time
        from dataclasses import asdict
        from piper_runtime.failures.counters import Counters
        counters = Counters(["a"])
        counters.begin(step=7, entry=0)
        print(json.dumps(asdict(counters.address())), flush=True)
        sys.stdin.readline()
        counters.cells[5] = 41
        print("written", flush=True)
        time.sleep(60)
    """
    command = [sys.executable, "-c", code]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        address = Address(**json.loads(process.stdout.readline()))
        peer = Peer.find(address, Counters(()).address())
        assert peer is not None
        assert peer.state() in ("R", "S")
        process.stdin.write("\n")
        process.stdin.flush()
        assert process.stdout.readline() == "written\n"
        process.send_signal(signal.SIGSTOP)
        while peer.state() != "T":
            time.sleep(0.01)
        process.kill()
        while peer.state():
            time.sleep(0.01)
        assert list(peer.cells) == [1, 7, 0, Activity.ISSUING, 0, 41]
        assert Peer.find(address, Counters(()).address()) is None
    assert Peer.find(replace(address, machine="another"), Counters(()).address()) is None


# The watchdog.


class Rank:
    """The watchdog of one rank in a process of its own, or so the others think."""

    def __init__(self, rank: int, programs: Programs, store: HashStore, clock: list[float]) -> None:
        self.failures: list[BaseException] = []
        self.stopped = True
        self.counters = Counters(programs.streams(rank))
        self.watchdog = Watchdog(
            store,
            rank=rank,
            programs=programs,
            counters=self.counters,
            addresses=[NOWHERE] * NUM_RANKS,
            limit=10.0,
            fail=self.failures.append,
            stopped=lambda: self.stopped,
            now=lambda: clock[0],
        )

    def be(self, status: Status) -> None:
        """Have these counters."""
        self.counters.cells[:] = memoryview(bytes(4 * len(status.cells))).cast("I")
        for slot, value in enumerate(status.cells):
            self.counters.cells[slot] = value


def world(programs: Programs) -> tuple[list[Rank], list[float]]:
    store, clock = HashStore(), [0.0]
    return [Rank(rank, programs, store, clock) for rank in range(NUM_RANKS)], clock


def look(ranks: Sequence[Rank], clock: list[float], seconds: float) -> None:
    """Let time pass in steps of a second."""
    for _ in range(round(seconds)):
        clock[0] += 1.0
        for rank in ranks:
            rank.watchdog.look()


def test_a_stall_ends_every_rank_with_one_report(
    programs: Programs, capsys: pytest.CaptureFixture[str]
) -> None:
    ranks, clock = world(programs)
    statuses = Machine(programs, find(programs, 2, "r.run(layer_1_B")).statuses()
    for rank, status in zip(ranks, statuses.values(), strict=True):
        rank.be(status)
    look(ranks, clock, 10)
    assert not any(rank.failures for rank in ranks)
    look(ranks, clock, 1)
    [first] = [rank for rank in ranks if rank.failures]
    printed = capsys.readouterr().err
    assert printed == f"piper: {first.failures[0]}\n"  # before the others raise
    look(ranks, clock, 2)
    reports = {str(rank.failures[0]) for rank in ranks}
    assert [type(rank.failures[0]) for rank in ranks] == [StallError] * NUM_RANKS
    assert len(reports) == 1
    [report] = reports
    assert report.startswith("no progress for 10.0 s in step 1 (train)\nrank 2 (pp 1, dp 0) is beh")
    look(ranks, clock, 10)
    assert not capsys.readouterr().err
    assert [len(rank.failures) for rank in ranks] == [1] * NUM_RANKS


def line_of(text: str) -> str:
    """Where the one line of the model that holds a text is, as programs say it."""
    lines = Path(shared_model.__file__).read_text().splitlines()
    [number] = [n for n, line in enumerate(lines, start=1) if text in line]
    return f"shared_model.py:{number}"


def test_the_report_of_a_compiled_program_has_the_lines_of_the_model_and_the_directives(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Rank 0 hangs in a layer; the others wait for a message, and for sums of both kinds."""
    model, batch = shared_model.make_model(), shared_model.make_batch()
    program = piper.compile(model, shared_model.token_loss, shared_model.make_strategy(), batch)
    compiled = Programs(program.load(torch.device("cpu")))
    ranks, clock = world(compiled)
    frozen = find(compiled, 0, "r.run(layer_1_F, layer_0_F1_m1")
    for rank, status in zip(ranks, Machine(compiled, frozen).statuses().values(), strict=True):
        rank.be(status)
    look(ranks, clock, 12)
    [report] = {str(rank.failures[0]) for rank in ranks}
    assert capsys.readouterr().err == f"piper: {report}\n"
    layer, loss = line_of("F.gelu(layer(x))"), line_of("F.cross_entropy(")
    _, behind, at, origin, *waiting = report.splitlines()
    assert behind == "rank 0 (pp 0, dp 0) is behind: it has been running for 10.0 s"
    assert at == f"  at instruction {frozen.number} of {frozen.describe()}"
    assert re.fullmatch(rf"     from 0F1 \S*{layer} \(layers\.1\), order", origin)
    waits = re.compile(r"  (rank \d) .* waits for rank (\d): .*, from (?:\S*/)?(.*)")
    told = [found.groups() for line in waiting if (found := waits.fullmatch(line))]
    assert told == [
        ("rank 1", "0", f"{loss}, replicate"),
        ("rank 2", "0", f"{layer} (layers.1), place"),
        ("rank 3", "2", f"{loss}, replicate"),
    ]
    assert re.search(
        r": recv of layer\.1\$F#1, instruction \d+, program_pp1\.py:\d+: `from0_m1, e_\d+ = "
        r"r\.recv\(",
        waiting[1],
    )


def test_no_stall_while_the_rank_that_is_behind_goes_on(programs: Programs) -> None:
    ranks, clock = world(programs)
    statuses = Machine(programs, find(programs, 2, "r.run(layer_1_B")).statuses()
    for rank, status in zip(ranks, statuses.values(), strict=True):
        rank.be(status)
    for number in range(8):  # which takes 24 s
        ranks[2].counters.cells[FIRST_STREAM] = 2 * number + 1
        look(ranks, clock, 3)
    assert not any(rank.failures for rank in ranks)


def test_ranks_between_calls_never_stall(programs: Programs) -> None:
    ranks, clock = world(programs)
    look(ranks, clock, 60)
    assert not any(rank.failures for rank in ranks)


def test_the_first_failure_is_everyones(programs: Programs) -> None:
    ranks, clock = world(programs)
    ranks[1].watchdog.report("failed", "rank 1 failed: first")
    ranks[3].watchdog.report("failed", "rank 3 failed: second")
    look(ranks, clock, 1)
    assert not any(rank.failures for rank in ranks)  # rank 1 prints its traceback first
    look(ranks, clock, 1)
    for rank in (0, 2, 3):
        [failure] = ranks[rank].failures
        assert isinstance(failure, RemoteError)
        assert str(failure) == "rank 1 failed: first"
    assert ranks[1].failures == []


def test_silence_of_another_machine_is_reported_by_its_neighbour(programs: Programs) -> None:
    ranks, clock = world(programs)
    look(ranks, clock, 3)
    rest = [ranks[0], ranks[1], ranks[3]]
    look(rest, clock, SILENCE)
    assert not any(rank.failures for rank in rest)
    look(rest, clock, 3)
    for rank in rest:
        [failure] = rank.failures
        assert isinstance(failure, RemoteError)
        assert str(failure).startswith("rank 2 (pp 1, dp 0) vanished: not heard of for 1")


def test_a_rank_that_leaves_fails_only_those_that_still_need_it(programs: Programs) -> None:
    ranks, clock = world(programs)
    ranks[2].counters.begin(step=1, entry=0)
    ranks[2].counters.activity = Activity.IDLE
    look(ranks, clock, 1)
    ranks[2].watchdog.leave("its trainer was closed")
    look(ranks[:2], clock, 20)
    assert not any(rank.failures for rank in ranks)
    assert ranks[0].watchdog.inquire() is None
    ranks[1].counters.begin(step=2, entry=0)
    ranks[1].counters.begin(step=2, entry=0)
    look(ranks[:2], clock, 1)
    [failure] = ranks[1].failures
    assert str(failure).startswith(
        "rank 2 (pp 1, dp 0) left: its trainer was closed, behind step 1 (train)"
    )


def test_a_broken_connection_to_a_rank_that_left_is_blamed_on_it(programs: Programs) -> None:
    ranks, clock = world(programs)
    look(ranks, clock, 1)
    ranks[2].watchdog.leave("its process has ended")
    assert ranks[0].watchdog.inquire() is None
    failure = ranks[0].watchdog.inquire(broken=True)
    assert failure is not None
    assert str(failure).startswith("rank 2 (pp 1, dp 0) left: its process has ended")


def test_a_rank_that_does_not_stop_is_ended(
    programs: Programs, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ranks, clock = world(programs)
    ended: list[int] = []
    monkeypatch.setattr(os, "_exit", ended.append)
    monkeypatch.setattr("faulthandler.dump_traceback", lambda **_: None)
    ranks[1].watchdog.report("failed", "rank 1 failed: first")
    ranks[0].stopped = False
    look(ranks, clock, GRACE + 2)
    assert ended == []
    look(ranks, clock, 1)
    assert ended == [1]
    expected = "piper: rank 0 (pp 0, dp 0) did not stop within 5 s of the failure, so it ends here"
    assert expected in capsys.readouterr().err


def test_odd_timeouts_are_refused() -> None:
    with pytest.raises(ValueError, match="timeout expected seconds above 0, got 0"):
        GlooTransport(timeout=0)
    program = Program(program_texts())
    with pytest.raises(ValueError, match=r"timeout expected in the transport local, got 5\.0 here"):
        Trainer(program, model=TiedMlp(), transport=LocalTransport(), timeout=5.0)


def test_lines_of_the_report_are_limited(
    programs: Programs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("piper_runtime.failures.hang.MOST_LINES", 1)
    statuses = Machine(programs, find(programs, 2, "r.run(layer_1_B")).statuses()
    report = explain(programs, statuses, find_blame(programs, statuses, 0)).splitlines()
    assert report[3].startswith("  rank 0 (pp 0, dp 0) waits for rank 2")
    assert report[4:] == ["  and so do others"]
