"""Parts of sequences beside parts of products, heads of attention among them, train as plain PyTorch
does, in fp64.
"""

from __future__ import annotations

import itertools
from collections import Counter
from dataclasses import replace
from pathlib import Path

import hf_models
import piper
import pytest
import torch
from hf_models import FAMILIES, LLAMA_DIMS
from ir_facts import count_ops
from oracle import BOUND, adamw, check_steps, piper_steps, plain_steps, sgd
from oracle_processes import check_processes
from piper.simulate import ProgramFacts
from piper.simulate.communication import measure_traffic
from piper.strategy import Directive
from piper_runtime import Program
from sequence_models import (
    CLIP,
    DIMS,
    HEADS,
    LENGTH,
    ROWS,
    WIDTH,
    Config,
    Sequences,
    batches,
    captures,
    llama,
    llama_loss,
    token_loss,
)
from strategies import Captures

PLAIN = Config()
SCHEDULES = ("1F1B", "ZBVZeroBubble", "DualPipeV")
MATRIX = [
    Sequences(name, 2, 0, 4, zero=zero, cp=2, tp=2, between=between)
    for name, zero, between in itertools.product(SCHEDULES, range(4), (False, True))
]
QUICK = {MATRIX[2]}
"""1F1B with ZeRO-1, on eight ranks; what lies between products is whole."""
SUM = "piper.all_reduce"


def compile_case(case: Sequences, config: Config = PLAIN) -> Program:
    (batch,) = batches(case, steps=1)
    return captures(config).compile(case.plan(), batch)


@pytest.mark.parametrize(
    ("case", "config"),
    [
        *(
            pytest.param(case, PLAIN, id=str(case), marks=[] if case in QUICK else pytest.mark.slow)
            for case in MATRIX
        ),
        *(
            pytest.param(case, config, id=f"{case}-{config}", marks=pytest.mark.slow)
            for case, config in [
                (Sequences("1F1B", 0, 2, 2, zero=1, cp=2, tp=2, between=False), PLAIN),
                (Sequences("1F1B", 0, 0, 2, cp=2, tp=2, between=False), Config(causal=False)),
                (Sequences("1F1B", 0, 0, 2, cp=2, tp=4, between=False), Config(kv_heads=4)),
                (Sequences("1F1B", 0, 0, 1, cp=4, tp=2), Config(rms=False)),
            ]
        ),
    ],
)
def test_heads_and_sequences_equal_plain_pytorch(case: Sequences, config: Config) -> None:
    """Three steps each of SGD with momentum and of AdamW, clipped, of parts of causal attention,
    which are balanced, and of attention to all positions, with grouped heads and as many of keys.
    """
    model, given = captures(config).model, batches(case)
    program = compile_case(case, config)
    for factory in (sgd, adamw):
        expected = plain_steps(model, token_loss, given, factory, clip=CLIP)
        check_steps(piper_steps(program, model, given, factory), expected)


def test_a_rank_gathers_keys_of_its_heads_alone() -> None:
    """Of as many ranks along `tp` each sends that part of what one would along `cp`; along `tp`
    sums are of its positions.
    """
    case = Sequences("1F1B", 2, 0, 2, cp=2, tp=2, between=False)
    sent = [_bytes_by_axis(compile_case(replace(case, tp=tp))) for tp in (0, 2)]
    layers, passes, ranks = PLAIN.layers // case.pp, 6, case.cp
    keys = ROWS * LENGTH * (WIDTH // HEADS * PLAIN.kv_heads) * torch.float64.itemsize
    for found, parts in zip(sent, (1, case.tp), strict=True):
        exchanged = case.microbatches * layers * passes * keys // parts * (ranks - 1) // ranks
        assert found["cp"] == case.pp * exchanged
    hidden = ROWS * LENGTH // case.cp * WIDTH * torch.float64.itemsize
    sums = case.microbatches * PLAIN.layers * 4
    assert sent[1]["tp"] == sums * 2 * hidden * (case.tp - 1) // case.tp


def _bytes_by_axis(program: Program) -> Counter[str]:
    """What is exchanged within microbatches: bytes that a rank of each coordinate sends, together."""
    found = Counter[str]()
    for item in measure_traffic(ProgramFacts.read(program)):
        if item.comm.name.startswith("exchange"):
            found.update({item.comm.axes[0]: item.num_bytes})
    return found


def _llama_directives() -> list[Directive]:
    names = [f"model.layers.*.{name}" for name in LLAMA_DIMS]
    shards = zip(names, LLAMA_DIMS.values(), strict=True)
    return [
        piper.sequence("cp", DIMS),
        *(piper.shard(f"{name}.weight", axis="tp", dim=dim) for name, dim in shards),
        piper.shard("model.embed_tokens.weight", axis="tp"),
        piper.shard("lm_head.weight", axis="tp"),
    ]


@pytest.mark.slow
@pytest.mark.parametrize("between", [False, True], ids=["products", "between"])
def test_unmodified_llama_equals_itself(*, between: bool) -> None:
    """With parts of its vocabulary, too."""
    case = Sequences("1F1B", 2, 0, 2, zero=1, cp=2, tp=2)
    model, given = llama(), batches(case, steps=2)
    more = [*_llama_directives(), *([piper.sequence("tp", {"ids": 1})] if between else [])]
    plan = case.strategy(FAMILIES["llama"].tags, sgd, clip=CLIP, stages=case.stages, more=more)
    program = Captures(model, llama_loss).compile(plan, given[0])
    assert (count_ops(program, "chunks")[SUM] > 0) or between
    expected = plain_steps(model, llama_loss, given, sgd, clip=CLIP)
    floor = max(BOUND, 10 * hf_models.floor(model, hf_models.make_batch(case)))
    check_steps(piper_steps(program, model, given, sgd), expected, bound=floor)


@pytest.mark.slow
def test_gloo_does_what_local_does(tmp_path: Path) -> None:
    """Four processes, all of which feed whole sequences."""
    case = Sequences("1F1B", 0, 0, 2, zero=1, cp=2, tp=2, between=False)
    given, model = batches(case), captures(PLAIN).model
    program = compile_case(case)
    local = piper_steps(program, model, given, adamw)
    check_steps(local, plain_steps(model, token_loss, given, adamw, clip=CLIP))
    check_processes(program, model, given, local, tmp_path)
