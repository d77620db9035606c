"""Measured memory: counted by storage in issue order, or what the device says; and predicted."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import torch
from mlp_program import TiedMlp, make_adamw, make_batch, program_texts, sealed
from piper_runtime import LocalTransport, Program, Trainer
from piper_runtime.devices import CpuDevice
from piper_runtime.errors import ProgramError
from piper_runtime.instruction import Handle, Instruction
from piper_runtime.manifest import Manifest, MemorySpec
from piper_runtime.observe.memory import MemoryCount
from piper_runtime.observe.metrics import Metrics

SPEC = MemorySpec(
    parameters=100,
    gradients=200,
    batch=10,
    activations=1000,
    communication=300,
    temporaries=50,
    held=1320,
)
DOUBLE, LONG = 8, 8
LAYER, EMBEDDING = (16 + 1) * 16, 32 * 16
"""Elements of the states; rank 0 and 1 are stage 0 of the program, 2 and 3 are stage 1."""
ACTIVATION = 4 * 8 * 16 * DOUBLE
MASK = 4 * 8 * 16  # of the activations that are positive
LOG_SOFTMAX = 4 * 8 * 32 * DOUBLE


def predicted(**specs: Sequence[MemorySpec]) -> Program:
    """The program, with memory in its manifest."""
    texts = program_texts()
    memory = {entry: [asdict(spec) for spec in own] for entry, own in specs.items()}
    raw = json.loads(texts["manifest.json"]) | {"memory": memory}
    return Program(sealed(texts | {"manifest.json": json.dumps(raw)}))


def make_trainer(program: Program | None = None, **settings: Any) -> Trainer:
    program = program or Program(program_texts())
    return Trainer(program, model=TiedMlp(), optimizer=make_adamw, **settings)


# What counts.


class FakeHome:
    index = 0


class FakeRank:
    home = FakeHome()


def make_instruction(kind: str, number: int, *, freed: tuple[Handle, ...] = ()) -> Instruction:
    rank: Any = FakeRank()
    made = Instruction(
        rank, kind, "compute", "", 1, None, (), (Handle(),), (), None, None, freed, number
    )
    made.results[0].producer = made
    return made


def count(*made: tuple[Instruction, Any]) -> int:
    """The peak after instructions, in the order in which they are executed."""
    counted = MemoryCount()
    counted.begin(0, [])
    for instruction, value in made:
        counted.attach(instruction)
        instruction.begin()
        instruction.store(value)
    return counted.peaks()[0]


def test_the_peak_is_that_of_the_order_of_issue() -> None:
    first, second = make_instruction("run", 0), make_instruction("recv", 2)
    [handle] = first.results
    free = make_instruction("free", 1, freed=(handle,))
    value = torch.zeros(5)
    # Whoever receives first, before the free, holds both; an allocator has freed the first by then.
    assert count((first, value), (second, torch.zeros(3)), (free, None)) == 20


def test_storages_count_and_packs_are_all_of_their_tensors() -> None:
    view = torch.zeros(100)[:1]
    assert count((make_instruction("run", 0), (view, torch.zeros(2)))) == 400 + 8


@pytest.mark.parametrize("kind", ["read", "input", "accumulate", "update"])
def test_states_and_the_batch_are_not_new(kind: str) -> None:
    made = make_instruction(kind, 0)
    [handle] = made.results
    free = make_instruction("free", 1, freed=(handle,))
    later = make_instruction("run", 2)
    assert count((made, torch.zeros(5)), (free, None), (later, torch.zeros(1))) == 4


def test_an_input_that_all_microbatches_share_counts_once() -> None:
    counted, mask = MemoryCount(), torch.zeros(3, dtype=torch.bool)
    inputs = [{"x": x, "mask": mask} for x in torch.zeros(2, 4).unbind()]
    counted.begin(0, inputs)
    assert counted.peaks() == {0: 2 * 16 + 3}


# A trainer.


def test_every_rank_is_counted_and_the_one_that_has_most_is_named() -> None:
    """By hand: stage 1 holds most behind the backward of the head, for the last microbatch."""
    result = make_trainer().step(make_batch(0))
    states = (LAYER + EMBEDDING) * DOUBLE
    optimizer = 2 * states + 3 * 4  # a step counter per parameter
    batch = 2 * 4 * 4 * 8 * LONG
    assert result.memory_how == "counted"
    assert result.memory_of == "rank 2"
    # Counts of labels, their sum here and everywhere, the tangent and the losses.
    scalars = 4 * LONG + LONG + LONG + DOUBLE + 4 * DOUBLE
    sent = 3 * ACTIVATION  # gradients of the input, kept until the end of the step
    layer = 2 * ACTIVATION + MASK  # what it received, and what it made of that
    head = LOG_SOFTMAX + ACTIVATION + EMBEDDING * DOUBLE  # with two gradients
    assert result.memory == 2 * states + optimizer + batch + scalars + sent + layer + head
    assert result.memory_predicted is None


def test_only_the_first_step_and_measured_ones_are_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[int] = []
    started = MemoryCount.__init__

    def note(self: MemoryCount) -> None:
        steps.append(trainer.steps + 1)
        started(self)

    monkeypatch.setattr(MemoryCount, "__init__", note)
    trainer = make_trainer(metrics=Metrics(tmp_path / "run.jsonl", every=3))
    results = [trainer.step(make_batch(step)) for step in range(5)]
    assert steps == [1, 3]
    assert len({result.memory for result in results}) == 1


def test_the_prediction_is_of_the_same_rank_and_has_the_real_optimizer() -> None:
    trainer = make_trainer(predicted(train=[SPEC, SPEC]))
    optimizer = 2 * (LAYER + EMBEDDING) * DOUBLE + 3 * 4
    result = trainer.step(make_batch(0))
    assert result.memory_predicted == 100 + 200 + 10 + 1320 + optimizer
    assert result.metrics()["memory_predicted"] == result.memory_predicted
    assert " predicted: 0.00GiB " in str(result)


def test_what_a_device_allocates_has_what_instructions_need_inside(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Alone(LocalTransport):
        """One rank, as it would be in a process of its own."""

        ranks = (0,)

    peaks = [9_000]  # of somebody before
    monkeypatch.setattr(CpuDevice, "reset_peak", lambda device: peaks.append(5_000))
    monkeypatch.setattr(CpuDevice, "peak_bytes", lambda device: peaks[-1])
    texts = program_texts()
    raw = json.loads(texts["manifest.json"]) | {
        "mesh": [], "data_axes": [], "comms": [], "entry_points": ["train"], "losses": [],
        "buckets": [], "states": [], "inputs": [], "programs": ["program_0.py"],
        "memory": {"train": [asdict(SPEC)]},
    }  # fmt: skip
    texts = {"kernels.py": "", "program_0.py": "def train(r):\n    pass\n"}
    program = Program(sealed(texts | {"manifest.json": json.dumps(raw)}))
    result = Trainer(program).step({})
    assert (result.memory, result.memory_how, result.memory_of) == (5_000, "allocated", "rank 0")
    assert result.memory_predicted == 100 + 200 + 10 + 1000 + 300 + 50
    assert "resident" in result.metrics()


def test_memory_of_other_coordinates_is_refused() -> None:
    with pytest.raises(ProgramError, match="memory of 'eval' for 2 coordinates, got 1"):
        predicted(train=[SPEC, SPEC], eval=[SPEC])
    assert Manifest.parse(program_texts()["manifest.json"]).memory == {}


def test_memory_without_a_kind_is_refused() -> None:
    texts = program_texts()
    entry = asdict(SPEC)
    del entry["held"]
    raw = json.loads(texts["manifest.json"]) | {"memory": {"train": [entry, entry]}}
    with pytest.raises(ProgramError, match="manifest expected key 'held', got none"):
        Manifest.parse(json.dumps(raw))
