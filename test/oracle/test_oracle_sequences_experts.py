"""Parts of sequences beside experts that ranks share out train as plain PyTorch does, in fp64."""

from __future__ import annotations

import itertools
from collections import Counter
from pathlib import Path

import hf_models
import moe_models
import piper
import pytest
import torch
from hf_models import LLAMA_DIMS
from oracle import BOUND, adamw, check_steps, piper_steps, plain_steps, sgd
from oracle_processes import check_processes
from piper.simulate import ProgramFacts
from piper.simulate.communication import measure_traffic
from piper.strategy import Directive
from piper_runtime import Program
from sequence_models import (
    CLIP,
    DIMS,
    LENGTH,
    ROWS,
    WIDTH,
    Config,
    Sequences,
    batches,
    captures,
    llama_loss,
    token_loss,
)
from small_moe import BIASES, CHOICES, EXPERTS, with_bias
from strategies import Captures

SPARSE = Config(experts=True)
SCHEDULES = ("1F1B", "ZBVZeroBubble", "DualPipeV")
MATRIX = [
    Sequences(name, 2, 0, 4, zero=zero, cp=2, ep=2)
    for name, zero in itertools.product(SCHEDULES, range(4))
]
MORE = [
    Sequences("1F1B", 2, 2, 2, zero=1, cp=2, ep=2),  # copies of experts
    Sequences("1F1B", 0, 0, 2, zero=1, cp=4, ep=2),
    Sequences("1F1B", 0, 0, 2, cp=2, ep=4),
    Sequences("1F1B", 0, 0, 2, zero=3, cp=2),  # all experts on every rank
    Sequences("1F1B", 0, 0, 2, zero=1, cp=2, ep=2, tp=2, between=False),
    Sequences("1F1B", 0, 0, 2, zero=1, cp=2, ep=2, tp=2),
]
QUICK = {MATRIX[1]}
"""1F1B with ZeRO-1, on eight ranks."""


def compile_case(case: Sequences) -> Program:
    (batch,) = batches(case, steps=1)
    return captures(SPARSE).compile(case.plan(), batch)


def check(case: Sequences, bias: str) -> None:
    """Three steps each of SGD with momentum and of AdamW, clipped, equal plain PyTorch."""
    model, given = with_bias(captures(SPARSE).model, bias), batches(case)
    program = compile_case(case)
    for factory in (sgd, adamw):
        expected = plain_steps(model, token_loss, given, factory, clip=CLIP)
        check_steps(piper_steps(program, model, given, factory), expected)


@pytest.mark.slow
def test_templates_name_what_both_axes_exchange() -> None:
    """Keys are gathered for the backward pass while rows travel, and those names alone will do."""
    case = MATRIX[9]
    order = (
        "B B.dispatch F F.keys F.values B1 B.collect F1 F.counts F2 F.dispatch F3 F.collect "
        "B.keys B.values B2 F4 B.keys B.values B3"
    )
    model, given = captures(SPARSE).model, batches(case)
    plan = case.plan(more=[piper.overlap("layer", order)])
    program = captures(SPARSE).compile(plan, given[0])
    expected = plain_steps(model, token_loss, given, sgd, clip=CLIP)
    check_steps(piper_steps(program, model, given), expected)
    with pytest.raises(piper.CompileError, match=r"B\.collect, B\.keys, B\.values, B2, B\.keys"):
        captures(SPARSE).compile(case.plan(more=[piper.overlap("layer", "F F9")]), given[0])


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, id=str(case), marks=[] if case in QUICK else pytest.mark.slow)
        for case in MATRIX + MORE
    ],
)
def test_experts_and_sequences_equal_plain_pytorch(case: Sequences) -> None:
    """Also where ranks share out products, and heads of attention."""
    check(case, "all")


@pytest.mark.slow
@pytest.mark.parametrize("bias", [bias for bias in BIASES if bias != "all"])
def test_experts_that_nobody_chooses_and_ranks_without_rows(bias: str) -> None:
    """Rows of several parts of a sequence go to one rank, and none to the other."""
    check(MATRIX[1], bias)


def test_a_rank_sends_rows_of_its_positions_alone() -> None:
    """Along `ep` formulas are those of experts alone, with the tokens of a part."""
    case = MATRIX[1]
    found = Counter[str]()
    for item in measure_traffic(ProgramFacts.read(compile_case(case))):
        if item.comm.name.startswith("exchange"):
            found.update({item.comm.axes[0]: item.num_bytes})
    rows = ROWS * LENGTH // case.cp * CHOICES * WIDTH * torch.float64.itemsize
    counts = EXPERTS * torch.int64.itemsize
    layer = (4 * rows + counts) * (case.ep - 1) // case.ep
    assert found["ep"] == case.microbatches * SPARSE.layers * layer


def _model_directives(case: Sequences) -> list[Directive]:
    shards = [
        piper.shard(f"model.layers.*.{name}.weight", axis="tp", dim=dim)
        for name, dim in LLAMA_DIMS.items()
        if name.startswith("self_attn")
    ]
    return [
        piper.sequence("cp", DIMS),
        piper.shard("model.layers.*.mlp.experts.*", axis="ep"),
        *(shards if case.tp else []),
    ]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "case"),
    [
        ("qwen3_moe", Sequences("1F1B", 2, 0, 2, zero=1, cp=2, ep=2)),
        ("qwen3_moe", Sequences("1F1B", 0, 0, 2, zero=1, cp=2, ep=2, tp=2)),
        ("deepseek_v3", Sequences("DualPipeV", 2, 0, 4, zero=1, cp=2, ep=2)),
    ],
    ids=str,
)
def test_unmodified_models_equal_themselves(name: str, case: Sequences) -> None:
    """Two steps, as near to plain PyTorch as that is to itself in microbatches."""
    model, given = moe_models.captures(name, layers=2).model, batches(case, steps=2)
    plan = case.strategy(
        moe_models.TAGS, sgd, clip=CLIP, stages=case.stages, more=_model_directives(case)
    )
    program = Captures(model, llama_loss).compile(plan, given[0])
    expected = plain_steps(model, llama_loss, given, sgd, clip=CLIP)
    floor = max(BOUND, 10 * hf_models.floor(model, hf_models.make_batch(case)))
    check_steps(piper_steps(program, model, given, sgd), expected, bound=floor)


@pytest.mark.slow
def test_gloo_does_what_local_does(tmp_path: Path) -> None:
    """Four processes: those along `cp` feed the same whole sequences."""
    case = Sequences("1F1B", 0, 0, 2, zero=1, cp=2, ep=2)
    given, model = batches(case), captures(SPARSE).model
    program = compile_case(case)
    local = piper_steps(program, model, given, adamw)
    check_steps(local, plain_steps(model, token_loss, given, adamw, clip=CLIP))
    check_processes(program, model, given, local, tmp_path)
