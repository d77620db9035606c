"""Compiled programs whose ranks exchange rows: bytes, links, loads, and what overlap hides."""

from __future__ import annotations

import itertools
from collections import Counter
from typing import Any

import pytest
from compiled_experts import (
    CHOICES,
    EXPERTS,
    TOKENS,
    WIDTH,
    compiled,
    make_batch,
)
from piper.simulate import (
    Link,
    Network,
    Profile,
    ProgramFacts,
    ProgramSimulation,
    measure_kernels,
    simulate_program,
)
from piper.simulate.communication import measure_traffic
from piper_runtime import Program, Trainer
from piper_runtime.instruction import Instruction
from piper_runtime.transports.local import LocalTransport

PP, EP, MICROBATCHES = 2, 2, 4
ROWS, COUNTS = TOKENS * CHOICES * WIDTH * 4, EXPERTS * 8
"""Bytes of what a rank sends to experts, and of how many these are."""
EXCHANGES = (4 + 3, 4 + 4)
"""Of rows, by pipeline rank, for each microbatch: four per layer, of which the first layer of the
model has no gradient to send back.
"""
FAST, SLOW = Link("fast", "", 1e6, 0.0, {}), Link("slow", "", 1e5, 0.0, {})


@pytest.fixture(scope="module")
def program() -> Program:
    return compiled("1F1B", pp=PP, ep=EP, microbatches=MICROBATCHES, capacity=1.5)


def run(
    program: Program | ProgramFacts, network: Network, *, load: float = 1.0, kernel: float = 1.0
) -> ProgramSimulation:
    facts = program if isinstance(program, ProgramFacts) else ProgramFacts.read(program)
    prices = Profile("", dict.fromkeys(facts.kernels, kernel), 1e30)
    return simulate_program(facts, prices, network, load=load)


def under_way(simulation: ProgramSimulation, kind: str = "all_to_all") -> list[float]:
    parts = [part for parts in simulation.exposures for part in parts if part.kind == kind]
    return [part.under_way for part in parts]


def exposed(simulation: ProgramSimulation, kind: str = "all_to_all") -> float:
    return sum(
        part.exposed for parts in simulation.exposures for part in parts if part.kind == kind
    )


def test_rows_go_there_and_back_both_ways(program: Program) -> None:
    """Both ways forwards and backwards, and their counts once; half of all stays on the rank."""
    found = [
        item for item in measure_traffic(ProgramFacts.read(program)) if item.op == "all_to_all"
    ]
    assert [item.comm.axes for item in found] == [("ep",)] * PP
    for item, exchanges in zip(found, EXCHANGES, strict=True):
        assert item.calls == MICROBATCHES * (exchanges + 2)
        assert item.num_bytes == MICROBATCHES * (exchanges * ROWS + 2 * COUNTS) / 2


def test_expected_bytes_are_the_mean_of_what_ranks_exchange() -> None:
    """No row is dropped, so that ranks differ and their mean does not."""
    program = compiled("1F1B", pp=PP, ep=EP, microbatches=MICROBATCHES)
    handed: Counter[int] = Counter()

    class Weigh:
        def before(self, instruction: Instruction) -> None:
            if instruction.kind == "all_to_all":
                handed[instruction.rank.home.index] += instruction.operands[0].get().nbytes

        def after(self, instruction: Instruction, value: Any) -> None:
            pass

    class Weighing(LocalTransport):
        def submit(self, instruction: Instruction) -> None:
            instruction.hooks = (*instruction.hooks, Weigh())
            super().submit(instruction)

    batch = make_batch(ep=EP, microbatches=MICROBATCHES)
    Trainer(program, transport=Weighing()).step(batch)
    assert len(set(handed.values())) > 1
    found = [
        item for item in measure_traffic(ProgramFacts.read(program)) if item.op == "all_to_all"
    ]
    assert sum(handed.values()) * (EP - 1) / EP == EP * sum(item.num_bytes for item in found)


def test_the_link_of_an_exchange_is_where_its_ranks_are(program: Program) -> None:
    """pp 2 x ep 2: experts in a node of two, stages in two nodes; and the other way round."""
    for node, exchange, message in ((4, "fast", "fast"), (2, "fast", "slow"), (1, "slow", "slow")):
        simulation = run(program, Network(FAST, {}, SLOW, node))
        for parts in simulation.exposures:
            links = {part.kind: list(part.num_bytes) for part in parts}
            assert links["all_to_all"] == [exchange]
            assert links["messages"] == [message]


def test_the_busiest_rank_takes_longer_and_no_more_memory(program: Program) -> None:
    network = Network(FAST)
    even, uneven = (run(program, network, load=load, kernel=1e-9) for load in (1.0, 1.5))
    counts = MICROBATCHES * 2 * COUNTS / 2 / 1e6
    rows = [MICROBATCHES * exchanges * ROWS / 2 / 1e6 for exchanges in EXCHANGES]
    assert under_way(even) == pytest.approx([seconds + counts for seconds in rows])
    assert under_way(uneven) == pytest.approx([1.5 * seconds + counts for seconds in rows])
    assert uneven.memory == even.memory
    with pytest.raises(
        ValueError, match=r"load of the busiest rank must be at most 1\.5, which is"
    ):
        run(program, network, load=1.6)


def test_memory_is_planned_for_the_capacity() -> None:
    """Without one, all rows of both ranks may come to one."""
    programs = [
        compiled("1F1B", pp=PP, ep=EP, microbatches=MICROBATCHES, capacity=capacity)
        for capacity in (1.0, 1.5, None)
    ]
    peaks = [run(program, Network(FAST)).memory[0] for program in programs]
    assert peaks[0].step < peaks[1].step < peaks[2].step
    assert peaks[2].communication > peaks[0].communication


def test_cells_that_overlap_hide_exchanges() -> None:
    """As in DualPipeV; without pairs all of them are exposed, but for what other cells compute."""
    found = {
        order: run(
            compiled(order, pp=PP, ep=EP, microbatches=12), Network(FAST, {"pp": FAST}), kernel=5e-4
        )
        for order in ("1F1B", "DualPipeV")
    }
    assert under_way(found["DualPipeV"]) == pytest.approx(under_way(found["1F1B"]))
    assert exposed(found["1F1B"]) > 0.9 * sum(under_way(found["1F1B"]))
    assert exposed(found["DualPipeV"]) < 0.7 * exposed(found["1F1B"])
    assert found["DualPipeV"].makespan < found["1F1B"].makespan


def test_kernels_of_experts_are_measured(program: Program) -> None:
    ticks = itertools.count()
    measured = measure_kernels(program, repeats=1, clock=lambda: float(next(ticks)))
    assert set(measured.kernels) == set(ProgramFacts.read(program).kernels)
