"""Eight processes over gloo, on meshes of three axes, train as plain PyTorch does, in fp64."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import piper
import pytest
import sequence_models
import small_gpt
import small_moe
import small_tensors
from oracle import BOUND, LossFunction, adamw, distance, plain_steps
from oracle_processes import train_processes
from sequence_models import Sequences
from small_gpt import Batch
from small_moe import Experted
from small_tensors import Tensors
from strategies import Captures

RANKS = 8


def check(
    captures: Captures,
    strategy: piper.Strategy,
    batches: Sequence[Batch],
    loss_fn: LossFunction,
    *,
    clip: float,
    folder: Path,
) -> None:
    """Three steps of AdamW, clipped: loss and whole states of each, as every rank has them."""
    program = captures.compile(strategy, batches[0])
    expected = plain_steps(captures.model, loss_fn, batches, adamw, clip=clip)
    assert any(step.grad_norm > clip for step in expected if step.grad_norm is not None)
    ranks = train_processes(program, captures.model, batches, folder)
    assert len(ranks) == RANKS
    for seen in ranks:
        assert seen["losses"] == pytest.approx([step.loss for step in expected], abs=BOUND)
        for states, step in zip(seen["states"], expected, strict=True):
            assert states.keys() == step.states.keys()
            far = {name: distance(states[name], value) for name, value in step.states.items()}
            assert max(far.values()) <= BOUND, far


@pytest.mark.slow
def test_experts_beside_hsdp(tmp_path: Path) -> None:
    """Two groups of four ranks, in each of which states and experts are shared out."""
    case, family = Experted("1F1B", 0, 2, 2, zero=2, rep=2, ep=2), small_moe
    given, captures = family.batches(case), family.captures()
    check(captures, case.plan(), given, family.token_loss, clip=family.CLIP, folder=tmp_path)


@pytest.mark.slow
def test_tensors_beside_data_and_a_pipeline(tmp_path: Path) -> None:
    """Two ranks along each of pp, dp and tp; parts of embedding and head are of the vocabulary."""
    family = small_tensors
    case = Tensors("1F1B", 2, 2, 2, zero=1, embed="vocabulary", head="vocabulary")
    given, captures = family.batches(case), family.captures(family.PLAIN)
    check(captures, case.plan(), given, small_gpt.token_loss, clip=family.CLIP, folder=tmp_path)


@pytest.mark.slow
def test_sequences_beside_data_and_a_pipeline(tmp_path: Path) -> None:
    """Two ranks along each of pp, dp and cp, with two stages each."""
    case, family = Sequences("DualPipeV", 2, 2, 4, zero=2, cp=2), sequence_models
    given, captures = family.batches(case), family.captures(family.Config())
    check(captures, case.plan(), given, family.token_loss, clip=family.CLIP, folder=tmp_path)
