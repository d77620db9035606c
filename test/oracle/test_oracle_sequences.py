"""Sequences shared out by ranks train as plain PyTorch does, in fp64."""

from __future__ import annotations

import itertools

import pytest
import sequence_models
from ir_facts import count_ops, kept_bytes
from oracle import adamw, check_steps, piper_steps, plain_steps, sgd
from piper_runtime import Program
from sequence_models import (
    CLIP,
    HIDDEN,
    LENGTH,
    ROWS,
    WIDTH,
    Config,
    Sequences,
    batches,
    captures,
    padded,
    token_loss,
)

NAMES = ("1F1B", "ZBVZeroBubble", "DualPipeV")
PLAIN = Config()
MATRIX = [
    Sequences(name, 2, 2, 4, zero=zero, cp=2) for name, zero in itertools.product(NAMES, range(4))
]
QUICK = {MATRIX[0], MATRIX[7], MATRIX[10]}
PARALLEL = [
    Sequences(name, 2, 2, 4, zero=zero, tp=2) for name, zero in itertools.product(NAMES, range(4))
]
QUICK_PARALLEL = {PARALLEL[1], PARALLEL[4], PARALLEL[11]}


def compile_case(case: Sequences, config: Config = PLAIN) -> Program:
    (batch,) = batches(case, steps=1)
    return captures(config).compile(case.plan(), batch)


def check(case: Sequences, config: Config = PLAIN) -> None:
    """Three steps each of SGD with momentum and of AdamW, clipped, equal plain PyTorch."""
    model, given = captures(config).model, batches(case)
    program = compile_case(case, config)
    for factory in (sgd, adamw):
        expected = plain_steps(model, token_loss, given, factory, clip=CLIP)
        assert any(step.grad_norm > CLIP for step in expected if step.grad_norm is not None)
        check_steps(piper_steps(program, model, given, factory), expected)


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, id=str(case), marks=[] if case in QUICK else pytest.mark.slow)
        for case in MATRIX
    ],
)
def test_context_parallelism_equals_plain_pytorch(case: Sequences) -> None:
    """Beside pipelines and shards of states; labels are next tokens, also behind borders."""
    check(case)


@pytest.mark.parametrize(
    ("case", "config"),
    [
        (Sequences("1F1B", 0, 0, 2, cp=2), Config(kv_heads=4)),
        (Sequences("1F1B", 0, 0, 1, cp=4, zero=3), Config(kv_heads=1)),
        (Sequences("1F1B", 0, 0, 2, cp=4), Config(causal=False)),
        pytest.param(Sequences("1F1B", 2, 2, 2, cp=2), Config(causal=False), marks=pytest.mark.slow),
        pytest.param(Sequences("DualPipeV", 2, 0, 4, cp=4), PLAIN, marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_ranks_heads_and_kinds_of_attention(case: Sequences, config: Config) -> None:
    """Two or four ranks; as many heads of keys as of queries or one; causal and not."""
    check(case, config)


def test_padding_with_ignored_labels_changes_nothing() -> None:
    """A length that ranks cannot share out is padded by the user: the plain model, which is not
    told, sees the sequences as they are.
    """
    case = Sequences("1F1B", 0, 0, 2, cp=2)
    short = batches(case, length=LENGTH - 3)
    given = [padded(batch, LENGTH) for batch in short]
    model = captures(PLAIN).model
    found = piper_steps(compile_case(case), model, given, sgd)
    check_steps(found, plain_steps(model, token_loss, short, sgd, clip=CLIP))


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, id=str(case), marks=[] if case in QUICK_PARALLEL else pytest.mark.slow)
        for case in PARALLEL
    ],
)
def test_sequence_parallelism_equals_plain_pytorch(case: Sequences) -> None:
    check(case)
