"""The memory in the manifest is, to the byte, what the runtime counts while a step runs."""

from __future__ import annotations

import json

import piper
import pytest
import torch
from compiled_mlp import adamw, compiled
from piper.simulate import ProgramFacts
from piper.simulate.predicted import entry_memory
from piper_runtime import Program, Trainer
from piper_runtime.manifest import Manifest


@pytest.mark.parametrize(
    ("order", "v"),
    [("GPipe", False), ("1F1B", False), ("ZBVZeroBubble", True), ("DualPipeV", True)],
)
def test_predicted_is_counted(order: str, v: bool) -> None:
    program = compiled(order, pp=2, microbatches=6, v=v)
    trainer = Trainer(program)
    for _ in range(2):
        result = trainer.step({"x": torch.randn(24, 8)})
        assert result.memory_how == "counted"
        assert result.memory == result.memory_predicted
    trainer.close()


def test_predicted_is_counted_with_copies_and_clipping() -> None:
    program = compiled("1F1B", pp=2, microbatches=3, dp=2, update=piper.update(adamw, clip=1.0))
    batch = {"x": torch.randn(24, 8)}
    result = Trainer(program).step(batch)
    assert result.memory == result.memory_predicted


def test_a_manifest_has_the_memory_of_every_entry_point() -> None:
    program = compiled("1F1B", pp=2, microbatches=2)
    facts = ProgramFacts.read(program)
    memory = program.manifest.memory
    assert sorted(memory) == sorted(program.manifest.entry_points) == ["eval", "train"]
    for entry, specs in memory.items():
        for at, spec in enumerate(specs):
            found = entry_memory(facts, entry)[at]
            assert spec.peak(optimizer=0, inside=True) == found.peak
            assert spec.peak(optimizer=0, inside=False) == found.persistent + max(found.curve.live)
            assert spec.parameters == 2 * (8 * 8 + 8) * 4
            assert spec.gradients == (spec.parameters if entry == "train" else 0)


def test_the_memory_is_part_of_what_ranks_must_agree_on() -> None:
    program: Program = compiled("1F1B", pp=2, microbatches=2)
    raw = json.loads(program.texts["manifest.json"])
    raw["memory"]["train"][0]["held"] += 1
    assert repr(Manifest.parse(json.dumps(raw))) != repr(program.manifest)
