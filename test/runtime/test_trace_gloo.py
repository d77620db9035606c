"""Under torchrun: one trace of all ranks on one clock, and metrics that all ranks agree on."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from mlp_program import LENGTH, ROWS, WIDTH, program_texts
from piper_runtime import Program
from torchrun import torchrun
from trace_schema import check_trace

WORKER = Path(__file__).with_name("trace_worker.py")
NUM_RANKS, NUM_STEPS = 4, 6

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Run the worker once, for all tests of this module."""
    where: Path = tmp_path_factory.mktemp("trace")
    done = torchrun(WORKER, where, count=NUM_RANKS)
    assert done.returncode == 0, done.stderr
    return where


@pytest.fixture(scope="module")
def trace(folder: Path) -> dict[str, Any]:
    raw: dict[str, Any] = json.loads((folder / "trace.json").read_text())
    return raw


def test_all_ranks_are_in_one_trace(trace: dict[str, Any]) -> None:
    check_trace(trace, Program(program_texts()), [3, 4])


def test_clocks_of_other_machines_are_moved(trace: dict[str, Any]) -> None:
    clocks = trace["otherData"]["piper"]["clocks"]
    assert [clock["ranks"] for clock in clocks] == [[0], [1], [2], [3]]
    assert clocks[0]["ahead_ns"] == clocks[1]["ahead_ns"] == 0
    assert clocks[2] == clocks[3] | {"ranks": [2]}
    hour = 3_600_000_000_000
    assert abs(clocks[2]["ahead_ns"] - hour) <= clocks[2]["error_ns"] < 1_000_000_000


def test_nothing_is_received_before_it_is_sent(trace: dict[str, Any]) -> None:
    meetings: dict[int, dict[str, dict[str, Any]]] = {}
    for event in trace["traceEvents"]:
        about = event.get("args", {})
        if about.get("instruction") in ("send", "recv"):
            meetings.setdefault(about["meeting"], {})[about["instruction"]] = event
    assert len(meetings) == 2 * 2 * 2 * 4  # steps, directions, copies, microbatches
    for ends in meetings.values():
        sent, received = ends["send"], ends["recv"]
        assert received["args"]["peer"] == sent["pid"]
        assert sent["ts"] <= received["ts"] + received["dur"] + 1e-3


def test_metrics_are_the_same_on_all_ranks(folder: Path) -> None:
    lines = [torch.load(folder / f"lines{rank}.pt") for rank in range(NUM_RANKS)]
    compared = [line for rank in lines for line in rank[1::2]]
    assert all(rank[1::2] == lines[0][1::2] for rank in lines)
    for bubble, exposed, slowest, memory_of in compared:
        assert 0 < bubble < 1
        assert 0 <= exposed <= bubble
        assert slowest.startswith("rank ")
        assert memory_of.startswith("rank ")
    for rank, own in enumerate(lines):
        assert all(line == (None, None, None, f"rank {rank}") for line in own[::2])


def test_the_process_of_rank_0_writes_the_metrics(folder: Path) -> None:
    entries = [json.loads(line) for line in (folder / "run.jsonl").read_text().splitlines()]
    assert [entry["step"] for entry in entries] == list(range(1, NUM_STEPS + 1))
    assert all(("bubble" in entry) == (entry["step"] % 2 == 0) for entry in entries)


def test_the_chosen_rank_is_profiled(folder: Path) -> None:
    assert [path.name for path in folder.glob("profile*.json")] == ["profile1.json"]
    events = json.loads((folder / "profile1.json").read_text())["traceEvents"]
    assert "PP:0F3 layer.0$F" in {event.get("name") for event in events}


def test_the_memory_of_the_chosen_step_of_the_chosen_rank_is_recorded(folder: Path) -> None:
    """Rank 1 has stage 0; its file is there as soon as step 5 has ended, and not before."""
    assert [path.name for path in folder.glob("memory*.json")] == ["memory1.json"]
    written = [torch.load(folder / f"written{rank}.pt") for rank in range(NUM_RANKS)]
    assert written == [[n >= 5 and rank == 1 for n in range(1, 7)] for rank in range(NUM_RANKS)]
    events = json.loads((folder / "memory1.json").read_text())["traceEvents"]
    named = Counter(event["name"] for event in events if event.get("cat") == "user_annotation")
    cells = {name: number for name, number in named.items() if name.startswith("PP:")}
    chunks = {"F": ["embed$F", "layer.0$F"], "B": ["layer.0$B", "embed$B"]}
    assert cells == {
        f"PP:0{letter}{microbatch} {chunk}": 1  # once: one step
        for letter, both in chunks.items()
        for chunk in both
        for microbatch in range(4)
    }
    counted = [event["args"]["bytes"] for event in events if event["ph"] == "C"]
    activation = ROWS * LENGTH * WIDTH * 8
    assert max(counted) - min(counted) > activation


def test_ranks_that_want_different_things_are_told(folder: Path) -> None:
    for rank in range(NUM_RANKS):
        refused = (folder / f"refused{rank}.txt").read_text()
        assert "got range(7, 8) on rank 0 and range(8, 9) on rank 1" in refused
        assert "metrics expected the same" in (folder / f"metrics{rank}.txt").read_text()
