"""Traces of all kinds of programs against the schema of a trace; and what that schema finds."""

from __future__ import annotations

import json
from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any

import piper
import pytest
import shared_model
from exchange_program import NUM, NUM_RANKS, exchange_program, make_input
from mlp_program import TiedMlp, make_batch, make_sgd, program_texts
from piper_runtime import LocalTransport, Program, Trainer
from trace_schema import check_trace


def read(path: Path) -> dict[str, Any]:
    raw: dict[str, Any] = json.loads(path.read_text())
    return raw


@cache
def compiled(order: str, stages: int, zero: int) -> Program:
    strategy = shared_model.make_strategy(order, stages=stages, zero=zero)
    model, batch = shared_model.make_model(), shared_model.make_batch()
    return piper.compile(model, shared_model.token_loss, strategy, batch)


@pytest.mark.parametrize(
    ("order", "stages", "zero"),
    [("ZBVZeroBubble", 4, 0), ("DualPipe", 2, 1), ("DualPipeV", 4, 3)],
)
@pytest.mark.parametrize("seed", [None, 5])
def test_a_trace_of_a_compiled_program(
    tmp_path: Path, seed: int | None, order: str, stages: int, zero: int
) -> None:
    program = compiled(order, stages, zero)
    trainer = Trainer(program, transport=LocalTransport(seed=seed, delays=seed is not None))
    path = tmp_path / "trace.json"
    with trainer.trace(path, steps=range(2, 4)):
        for step in range(3):
            trainer.step(shared_model.make_batch(step))
    check_trace(read(path), program, [2, 3])


@pytest.mark.parametrize("seed", [None, 4])
def test_a_trace_of_rows_that_are_exchanged(tmp_path: Path, seed: int | None) -> None:
    """Sizes that the host waits for; two instructions in one line of the program."""
    program = exchange_program()
    trainer = Trainer(program, transport=LocalTransport(seed=seed, delays=seed is not None))
    path = tmp_path / "trace.json"
    with trainer.trace(path):
        trainer.step(make_input())
    raw = read(path)
    check_trace(raw, program, [1])
    instructions = [
        event["args"] for event in raw["traceEvents"] if "program" in event.get("args", {})
    ]
    kinds = Counter(about["instruction"] for about in instructions)
    assert kinds["all_to_all"] == NUM_RANKS * 3 * NUM
    assert kinds["host_wait"] == NUM_RANKS * NUM
    lines = {(about["program"], about["instruction"]) for about in instructions}
    shared = Counter(place for place, _ in lines)
    assert [number for number in shared.values() if number > 1] == [2] * (NUM + 1)


def spoil(events: list[dict[str, Any]], what: str) -> None:
    """Change a trace in a way that its schema forbids."""
    instructions = [event for event in events if "instruction" in event.get("args", {})]
    arrows = [event for event in events if event["ph"] in "stf"]
    if what == "missing":
        events.remove(instructions[7])
    elif what == "twice":
        events.append(dict(instructions[7]))
    elif what == "overlap":
        instructions[7]["dur"] += 1e6
    elif what == "no arrow":
        gone = arrows[0]["id"]
        events[:] = [event for event in events if event.get("id") != gone]
    elif what == "no cell":
        events.remove(next(event for event in events if event.get("cat") == "cell"))
    elif what == "other kind":
        instructions[7]["args"]["instruction"] = "sum"
    elif what == "other stream":
        instructions[7]["tid"] = 3
    elif what == "other microbatch":
        about = next(e["args"] for e in instructions if e["args"]["instruction"] == "recv")
        about["microbatch"] = 9
    elif what == "outside":
        arrows[1]["ts"] += 1e6
    else:
        arrows[0]["pid"] = 3


@pytest.mark.parametrize(
    "what",
    [
        "missing",
        "twice",
        "overlap",
        "no arrow",
        "no cell",
        "other kind",
        "other stream",
        "other microbatch",
        "outside",
        "astray",
    ],
)
def test_the_schema_finds(what: str, tmp_path: Path) -> None:
    trainer = Trainer(Program(program_texts()), model=TiedMlp(), optimizer=make_sgd)
    path = tmp_path / "trace.json"
    with trainer.trace(path):
        trainer.step(make_batch(0))
    raw = read(path)
    check_trace(raw, trainer.program, [1])
    spoil(raw["traceEvents"], what)
    with pytest.raises((AssertionError, ValueError)):
        check_trace(raw, trainer.program, [1])
