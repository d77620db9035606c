"""Experts shared out over ranks train as plain PyTorch does, in fp64, wherever rows go."""

from __future__ import annotations

import copy
import itertools
import re
from dataclasses import replace

import piper
import pytest
import small_moe
import torch
from ir_facts import count_ops
from oracle import Step, adamw, check_steps, piper_steps, plain_steps, sgd
from piper.strategy.replicate import Reduce
from piper_runtime import InstructionError, Program
from small_moe import BIASES, CLIP, Experted, token_loss
from torch import nn

LAYERS = 2
REDUCTIONS: tuple[Reduce, ...] = ("last", "each")
POLICY = "B B.dispatch F F.counts F1 F.dispatch B1 B.collect F2 F.collect B2 F3"
TEMPLATE = "F F.counts B B.dispatch F1 F.dispatch B1 B.collect F2 F.collect B2 F3"
# Gradients of weights where the template puts them, and behind all else where it does not.
SPREAD = "I I.dispatch F F.counts W F1 F.dispatch I1 I.collect W1 F2 F.collect I2 W2 F3"
BEHIND = "F F.counts I I.dispatch F1 F.dispatch I1 I.collect F2 F.collect I2 F3"
BF16_BOUND = 2.0**-5  # four times the distance from 1 to the next number
NAMES = ("1F1B", "Interleaved1F1B", "ZBVZeroBubble", "DualPipeV", "DualPipe")
MATRIX = [
    Experted(name, 2, 2, 4, zero=zero, reduce=reduce)
    for zero, name, reduce in itertools.product(range(4), NAMES, REDUCTIONS)
]
QUICK = [  # every stage with every policy, and every schedule
    MATRIX[10 * zero + 2 * (shift % len(NAMES)) + policy]
    for zero in range(4)
    for policy, shift in enumerate((zero, zero + 2))
]


def compile_case(case: Experted) -> Program:
    (batch,) = small_moe.batches(case, steps=1)
    return small_moe.captures().compile(case.plan(), batch)


def check(case: Experted, model: nn.Module) -> list[Step]:
    """Three steps each of SGD with momentum and of AdamW, clipped, equal plain PyTorch."""
    program, batches = compile_case(case), small_moe.batches(case)
    for factory in (sgd, adamw):
        expected = plain_steps(model, token_loss, batches, factory, clip=CLIP)
        assert any(step.grad_norm > CLIP for step in expected if step.grad_norm is not None)
        check_steps(piper_steps(program, model, batches, factory), expected)
    return expected


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, id=str(case), marks=[] if case in QUICK else pytest.mark.slow)
        for case in MATRIX
    ],
)
def test_training_equals_plain_pytorch(case: Experted) -> None:
    """Every stage, policy and schedule, on ranks of which pairs hold the same experts."""
    check(case, small_moe.captures().model)


@pytest.mark.parametrize(
    "case",
    [
        Experted("1F1B", 2, 0, 2, ep=4, zero=1),
        Experted("1F1B", 0, 0, 2, ep=2),
        Experted("1F1B", 0, 2, 1, ep=4, zero=3),
        Experted("1F1B", 0, 3, 2, ep=2, zero=2),
        Experted("DualPipeV", 2, 0, 4, ep=2, zero=2),
        Experted("ZBVZeroBubble", 2, 2, 4, ep=4, zero=3),
    ],
    ids=str,
)
def test_other_meshes(case: Experted) -> None:
    """All ranks hold different experts, or as many as two or three hold the same; with and
    without a pipeline.
    """
    check(case, small_moe.captures().model)


@pytest.mark.parametrize(
    "case",
    [
        Experted("1F1B", 2, 2, 2, zero=zero, reduce=reduce, rep=2)
        for zero, reduce in itertools.product(range(4), REDUCTIONS)
    ],
    ids=str,
)
def test_hsdp(case: Experted) -> None:
    """Two groups of ranks, in each of which experts are shared out, and states over all ranks."""
    check(case, small_moe.captures().model)


@pytest.mark.parametrize("bias", ["unused", "one-rank"])
@pytest.mark.parametrize(
    "case",
    [
        Experted("1F1B", 2, 2, 2, ep=2, zero=1),
        Experted("DualPipeV", 2, 0, 4, ep=4, zero=2),
        Experted("1F1B", 0, 0, 1, ep=4),
    ],
    ids=str,
)
def test_uneven_routing(case: Experted, bias: str) -> None:
    """An expert that no token of any rank chooses, and ranks to which no row goes."""
    model = small_moe.with_bias(small_moe.captures().model, bias)
    unused = [value < -1 for value in BIASES[bias]]
    for step, layer in itertools.product(check(case, model), range(LAYERS)):
        gradient = step.gradients[f"layers.{layer}.experts.up"].flatten(1)
        assert gradient.any()
        assert not gradient[unused].any()


def test_all_experts_are_used() -> None:
    """In the other tests, and tokens would go to others without the bias of the choice."""
    case, model = MATRIX[0], small_moe.captures().model
    batches = small_moe.batches(case)
    steps = plain_steps(model, token_loss, batches, sgd)
    for step, layer in itertools.product(steps, range(LAYERS)):
        assert step.gradients[f"layers.{layer}.experts.up"].flatten(1).any(1).all()
    biased = small_moe.with_bias(model, "none")
    unbiased = plain_steps(biased, token_loss, batches, sgd)
    assert abs(unbiased[0].loss - steps[0].loss) > 1e-6


@pytest.mark.parametrize("capacity", [1.5, 2])
def test_room_for_some_rows(capacity: float) -> None:
    """As many rows as come, and not for all that could."""
    check(Experted("1F1B", 2, 2, 2, zero=1, capacity=capacity), small_moe.captures().model)


def test_too_many_rows_end_the_step() -> None:
    """All rows of two ranks for one that has room for those of one: none is dropped."""
    case = Experted("1F1B", 2, 2, 2, capacity=1.0)
    model = small_moe.with_bias(small_moe.captures().model, "one-rank")
    message = (
        r"all_to_all\(.*label='layer.0 dispatch'.*"
        r"expected at most 15 rows, got 30: \[15, 15\] from ranks 0, 1"
    )
    with pytest.raises(InstructionError, match=re.compile(message, re.DOTALL)):
        piper_steps(compile_case(case), model, small_moe.batches(case))


@pytest.mark.parametrize(
    "case", [Experted("1F1B", 2, 2, 4), Experted("DualPipeV", 2, 2, 4, zero=2)], ids=str
)
def test_bf16_is_as_near_as_plain_bf16(case: Experted) -> None:
    """Three steps in bf16 differ from fp64 by less than a bound that plain PyTorch meets, too."""
    captures, batches = small_moe.captures(dtype=torch.bfloat16), small_moe.batches(case)
    program = captures.compile(case.plan(), batches[0])
    exact = copy.deepcopy(captures.model).double()
    expected = plain_steps(exact, token_loss, batches, sgd, clip=CLIP)
    plain = plain_steps(captures.model, token_loss, batches, sgd, clip=CLIP)
    check_steps(plain, expected, bound=BF16_BOUND)
    check_steps(piper_steps(program, captures.model, batches), expected, bound=BF16_BOUND)


@pytest.mark.parametrize("zero", [1, 3])
def test_results_do_not_depend_on_who_is_first(zero: int) -> None:
    """The bits of a step are the same in any order that the program allows."""
    case, model = Experted("DualPipeV", 2, 2, 4, zero=zero), small_moe.captures().model
    program, batches = compile_case(case), small_moe.batches(case, steps=2)
    expected = piper_steps(program, model, batches)
    for seed in (0, 1):
        check_steps(piper_steps(program, model, batches, seed=seed), expected, bound=0.0)


@pytest.mark.parametrize("schedule", ["1F1B", "DualPipeV"])
def test_rows_are_exchanged_again(schedule: str) -> None:
    """Where a backward pass keeps only what comes from other chunks: counts, rows there, and rows
    back. What else it computes is the same to the last bit.
    """
    case = Experted(schedule, 2, 2, 4, zero=1, remat=piper.remat("layer", policy="full"))
    saved = Experted(schedule, 2, 2, 4, zero=1, remat=piper.remat(policy="save"))
    check(case, small_moe.captures().model)
    again, once = (count_ops(compile_case(c), "chunks")["piper.all_to_all"] for c in (case, saved))
    assert (once, again) == (LAYERS * (5 + 3), LAYERS * (8 + 3))


def test_templates_change_the_order_alone() -> None:
    """Pieces of two cells are issued as the template says, and the bits of a step are the same."""
    default = Experted("DualPipeV", 2, 2, 4, zero=1)
    cases = [default, replace(default, overlap=piper.overlap("layer", TEMPLATE))]
    model, batches = small_moe.captures().model, small_moe.batches(default)
    programs = [compile_case(case) for case in cases]
    expected, found = (piper_steps(program, model, batches) for program in programs)
    check_steps(found, expected, bound=0.0)
    first, second = (issued(program.texts["program_pp1.py"]) for program in programs)
    assert sorted(first.split()) == sorted(second.split())
    assert first.count(POLICY) == second.count(TEMPLATE) == 3
    assert first.count(TEMPLATE) == second.count(POLICY) == 0


@pytest.mark.parametrize(
    ("template", "order"),
    [(SPREAD, SPREAD), (BEHIND, f"{BEHIND} W W1 W2")],
    ids=["spread", "behind"],
)
def test_gradients_of_weights_wait(template: str, order: str) -> None:
    """A template that has the halves of backward cells takes those of pairs in halves."""
    case = Experted("DualPipeV", 2, 2, 4, zero=1, overlap=piper.overlap("layer", template))
    check(case, small_moe.captures().model)
    assert issued(compile_case(case).texts["program_pp1.py"]).count(order) == 3


def issued(text: str) -> str:
    """The pieces of layers in the order in which a program issues them: F, F.counts, ..."""
    made = re.findall(
        r"r\.run\(layer_\d_([FBIW]\d?),|r\.all_to_all\(layer_\d_([FBI])\d+_m.*label='layer.\d (\w+)'",
        text,
    )
    return " ".join(run or f"{name}.{label}" for run, name, label in made)
