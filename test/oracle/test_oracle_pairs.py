"""Pairs of cells whose backward ones are taken in halves train as plain PyTorch does, where nothing
but the default policy says in which order their pieces are issued.
"""

from __future__ import annotations

import re

import piper
import pytest
import sequence_models
import small_gpt
import small_moe
import small_tensors
from oracle import LossFunction, check_steps, piper_steps, plain_steps, sgd
from piper.schedules import generate, halve_pairs
from piper.strategy import Order, Place
from piper_runtime import Program
from sequence_models import Sequences
from small_gpt import Batch
from small_moe import Experted
from small_tensors import Tensors
from strategies import Captures

NAME, RANKS, MICROBATCHES = "DualPipeV", 2, 4


def halved(strategy: piper.Strategy) -> piper.Strategy:
    """The same, with I in each pair and W right behind it."""
    table = halve_pairs(generate(NAME, ranks=RANKS, microbatches=MICROBATCHES))
    others = [one for one in strategy.directives if not isinstance(one, Order | Place)]
    placed = [piper.place(stages=2 * RANKS, coordinates="v"), piper.order(table)]
    return piper.Strategy(mesh=strategy.mesh, directives=[*others, *placed])


def check(
    captures: Captures,
    strategy: piper.Strategy,
    batches: list[Batch],
    loss_fn: LossFunction,
    clip: float,
) -> None:
    """Three steps equal plain PyTorch, and pieces of W are issued between those of I."""
    program = captures.compile(halved(strategy), batches[0])
    expected = plain_steps(captures.model, loss_fn, batches, sgd, clip=clip)
    check_steps(piper_steps(program, captures.model, batches, sgd), expected)
    assert takes_turns(program)


def takes_turns(program: Program) -> bool:
    """Whether there is a gradient of weights in front of one of inputs of the same layer."""
    runs = re.findall(r"run @(\S+)\$([IW])\d*\(.* mb (\d+)", program.texts["ir/cluster.mlir"])
    behind = set()
    for chunk, half, microbatch in runs:
        if half == "W":
            behind.add((chunk, microbatch))
        elif (chunk, microbatch) in behind:
            return True
    return False


@pytest.mark.parametrize("again", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_experts(again: bool) -> None:
    """Rows are exchanged, or exchanged again for recomputation."""
    remat = piper.remat(policy="full") if again else None
    case = Experted(NAME, RANKS, 2, MICROBATCHES, zero=1, remat=remat)
    given = small_moe.batches(case)
    check(small_moe.captures(), case.plan(), given, small_moe.token_loss, small_moe.CLIP)


@pytest.mark.parametrize("sequence", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_tensors(sequence: bool) -> None:
    """All that a gradient of weights uses may be there before the other half of its chunk."""
    case = Tensors(
        NAME, RANKS, 1, MICROBATCHES, embed="vocabulary", head="vocabulary", sequence=sequence
    )
    captures, given = small_tensors.captures(small_tensors.PLAIN), small_tensors.batches(case)
    check(captures, case.plan(), given, small_gpt.token_loss, small_tensors.CLIP)


@pytest.mark.slow
def test_context() -> None:
    """Keys and values are gathered, and their gradients scattered."""
    case = Sequences(NAME, RANKS, 0, MICROBATCHES, zero=2, cp=2)
    captures = sequence_models.captures(sequence_models.Config())
    given = sequence_models.batches(case)
    check(captures, case.plan(), given, sequence_models.token_loss, sequence_models.CLIP)
