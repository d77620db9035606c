"""Compiled programs: equal to their tables where only cells take time, and to torch's profiler."""

from __future__ import annotations

import itertools
from collections import Counter
from pathlib import Path

import pytest
import torch
from compiled_mlp import Mlp, compiled
from piper.schedules import generate
from piper.simulate import (
    Costs,
    Link,
    Network,
    Profile,
    ProgramFacts,
    measure_kernels,
    simulate,
    simulate_program,
)
from piper_runtime import Program, Trainer
from piper_runtime.instruction import Instruction
from piper_runtime.program import seal
from piper_runtime.transports.local import LocalTransport
from torch.profiler import ProfilerActivity, profile, record_function

INSTANT = Network(Link("instant", "", 1e30, 0.0, {}))


@pytest.fixture(scope="module")
def pipelined() -> Program:
    return compiled("1F1B", pp=2, microbatches=4)


def test_equals_the_table_where_only_cells_take_time(pipelined: Program) -> None:
    facts = ProgramFacts.read(pipelined)
    rows = [row for program in facts.entry("train").values() for row in program]
    names = {row["chunk"] for row in rows if row["op"] == "run"}
    chunks = [facts.chunks[name] for name in sorted(names)]
    seconds = {kernel: 1.0 + number for number, kernel in enumerate(sorted(facts.kernels))}
    seconds |= {kernel: 1e-30 for c in chunks if c.stage is None for kernel in c.kernels}
    simulation = simulate_program(facts, Profile("", seconds, 1e60), INSTANT)
    costs: dict[str, list[float]] = {"F": [0, 0], "B": [0, 0]}
    for c in chunks:
        if c.stage is not None:
            costs[c.pass_][c.stage] += sum(seconds[kernel] for kernel in c.kernels)
    table = generate("1F1B", ranks=2, microbatches=4)
    expected = simulate(table, Costs.per_stage(costs["F"], B=costs["B"]))
    assert expected.makespan > 20
    assert simulation.makespan == pytest.approx(expected.makespan, abs=1e-20)
    assert simulation.busy_per_coordinate == pytest.approx(expected.busy_per_rank, abs=1e-20)
    assert simulation.bubble_makespan == pytest.approx(expected.bubble_makespan, abs=1e-20)
    assert simulation.bubble_span == pytest.approx(expected.bubble_span, abs=1e-20)


def test_slower_links_never_help(pipelined: Program) -> None:
    facts = ProgramFacts.read(pipelined)
    prices = Profile("", dict.fromkeys(facts.kernels, 1.0), 1e30)
    makespans = [
        simulate_program(facts, prices, Network(Link("", "", 1e30, latency, {}))).makespan
        for latency in (0.0, 0.5, 1.0, 4.0)
    ]
    assert makespans == sorted(makespans)
    assert len(set(makespans)) == 4


class Marking(LocalTransport):
    """Marks in a profile which rank an instruction allocates for: of a message, the receiver."""

    def _fire(self, head: Instruction) -> None:
        rank = head.rank.home.index
        if head.message is not None and head.kind == "send":
            rank = head.message.peer
        with record_function(f"rank {rank}"):
            super()._fire(head)
        with record_function("rank -1"):
            pass


def profiled_peaks(program: Program, batch: dict[str, torch.Tensor]) -> dict[int, int]:
    """The most bytes that torch allocates for each rank in a step, beyond those before it."""
    trainer = Trainer(program, transport=Marking(poison=False))
    for _ in range(2):  # gradients and the optimizer's state stay from then on
        trainer.step(batch)
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        trainer.step(batch)
    rank, alive, peaks = -1, Counter[int](), Counter[int]()
    for event in sorted(profiler.profiler.kineto_results.events(), key=lambda e: e.start_ns()):
        if event.name().startswith("rank "):
            rank = int(event.name().removeprefix("rank "))
        elif event.name() == "[memory]":
            alive[rank] += event.nbytes()
            peaks[rank] = max(peaks[rank], alive[rank])
    return peaks


@pytest.mark.parametrize(
    ("order", "v"),
    [("GPipe", False), ("1F1B", False), ("ZBVZeroBubble", True), ("DualPipeV", True)],
)
def test_memory_equals_what_torch_sees(order: str, v: bool) -> None:
    program = compiled(order, pp=2, microbatches=6, width=64, v=v)
    batch = {"x": torch.randn(24, 64)}
    peaks = profiled_peaks(program, batch)
    prices = Profile("", dict.fromkeys(ProgramFacts.read(program).kernels, 1.0), 1e30)
    for rank, memory in enumerate(simulate_program(program, prices, INSTANT).memory):
        assert memory.step == pytest.approx(peaks[rank], rel=0.05)
        assert memory.batch == batch["x"].nbytes


def test_states_are_those_of_the_model(pipelined: Program) -> None:
    prices = Profile("", dict.fromkeys(ProgramFacts.read(pipelined).kernels, 1.0), 1e30)
    parameters = sum(p.nbytes for p in Mlp().parameters())
    for memory in simulate_program(pipelined, prices, INSTANT).memory:
        assert memory.parameters == memory.gradients == parameters / 2
        assert memory.optimizer == parameters  # AdamW has two numbers for each


def test_kernels_are_measured_one_by_one(pipelined: Program, tmp_path: Path) -> None:
    ticks = itertools.count(step=3)
    measured = measure_kernels(pipelined, repeats=2, clock=lambda: float(next(ticks)))
    assert set(measured.kernels.values()) == {3.0}
    assert set(measured.kernels) == set(ProgramFacts.read(pipelined).kernels)
    assert measured.memory_bandwidth == 2 * 2**26 / 3
    assert "threads of torch" in measured.machine
    pipelined.save(tmp_path)
    assert measure_kernels(tmp_path, repeats=1).kernels.keys() == measured.kernels.keys()
    with pytest.raises(ValueError, match="repeats must be at least 1, got 0"):
        measure_kernels(pipelined, repeats=0)


def test_a_program_without_its_ir_is_refused(pipelined: Program) -> None:
    texts = {name: text for name, text in pipelined.texts.items() if not name.startswith("ir/")}
    with pytest.raises(ValueError, match=r"expected a program with a file ir/programs\.mlir"):
        ProgramFacts.read(Program(seal(texts, pipelined.constants), constants=pipelined.constants))
