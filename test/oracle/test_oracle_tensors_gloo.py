"""Four processes of torchrun share weights out as one process that stands for all of them does."""

from __future__ import annotations

from pathlib import Path

import pytest
import small_tensors
import torch
from oracle import adamw, check_steps, piper_steps, plain_steps
from oracle_processes import train_processes
from piper_runtime import Trainer
from small_gpt import token_loss
from small_tensors import CLIP, Config, Tensors


@pytest.mark.slow
@pytest.mark.parametrize(
    "case",
    [
        Tensors("1F1B", 0, 2, 2, zero=1),
        Tensors("DualPipeV", 2, 1, 4, zero=0),
        Tensors("1F1B", 0, 2, 2, zero=1, sequence=True),
    ],
    ids=str,
)
def test_gloo_does_what_local_does(case: Tensors, tmp_path: Path) -> None:
    """The same losses and weights to the last bit, on every rank; and a checkpoint of all of them,
    in which the weights are whole.
    """
    captures, batches = small_tensors.captures(Config()), small_tensors.batches(case)
    program = captures.compile(case.plan(), batches[0])
    local = piper_steps(program, captures.model, batches, adamw)
    check_steps(local, plain_steps(captures.model, token_loss, batches, adamw, clip=CLIP))
    for seen in train_processes(program, captures.model, batches, tmp_path):
        assert seen["losses"] == [step.loss for step in local]
        for states, step in zip(seen["states"], local, strict=True):
            assert all(torch.equal(states[name], value) for name, value in step.states.items())

    alone = Tensors("1F1B", 0, 1, case.parts, tp=1)
    loaded = Trainer(
        captures.compile(alone.plan(), batches[0]),
        transport="local",
        model=small_tensors.captures(Config()).model,
        optimizer=adamw,
    )
    loaded.load(tmp_path / "checkpoint")
    assert all(
        torch.equal(value, local[-1].states[name])
        for name, value in loaded.full_state_dict().items()
    )
