"""Weights shared out by outputs and by inputs train as plain PyTorch does, in fp64."""

from __future__ import annotations

import copy
import itertools
import re
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

import piper
import pytest
import small_gpt
import small_moe
import small_tensors
import torch
from ir_facts import count_ops
from oracle import Step, adamw, check_steps, piper_steps, plain_steps, sgd
from piper.strategy import Directive
from piper_runtime import Program
from small_gpt import TAGS, token_loss
from small_moe import Experted
from small_tensors import CLIP, By, Config, Tensors
from torch import Tensor, nn

NAMES = ("1F1B", "Interleaved1F1B", "ZBVZeroBubble", "DualPipeV")
MATRIX = [
    Tensors(name, 2, 2, 4, zero=zero, tp=tp)
    for tp, zero, name in itertools.product((2, 4), range(4), NAMES)
]
QUICK = [
    MATRIX[16 * (zero % 2) + 4 * zero + shift] for zero in range(4) for shift in (zero, zero - 1)
]
PLAIN = small_tensors.PLAIN
LAYERS = PLAIN.layers
SAVED = Tensors("1F1B", 2, 2, 4, remat=piper.remat(policy="save"))
BF16_BOUND = 2.0**-5  # four times the distance from 1 to the next number


def marked(ordinary: bool) -> Any:
    return [] if ordinary else pytest.mark.slow


def compile_case(case: Tensors, config: Config = PLAIN) -> Program:
    (batch,) = small_tensors.batches(case, steps=1, config=config)
    return small_tensors.captures(config).compile(case.plan(), batch)


def check(case: Tensors, config: Config = PLAIN) -> list[Step]:
    """Three steps each of SGD with momentum and of AdamW, clipped, equal plain PyTorch."""
    model = small_tensors.captures(config).model
    batches = small_tensors.batches(case, config=config)
    program = compile_case(case, config)
    for factory in (sgd, adamw):
        expected = plain_steps(model, token_loss, batches, factory, clip=CLIP)
        assert any(step.grad_norm > CLIP for step in expected if step.grad_norm is not None)
        check_steps(piper_steps(program, model, batches, factory), expected)
    return expected


@pytest.mark.parametrize(
    "case",
    [pytest.param(case, id=str(case), marks=marked(case in QUICK)) for case in MATRIX],
)
def test_training_equals_plain_pytorch(case: Tensors) -> None:
    """Every stage and schedule, on two or four ranks that share weights out; heads of keys and
    values are as many as ranks in the first case.
    """
    check(case, Config(kv_heads=case.tp))


SEQUENCES = [
    Tensors(name, 2, 2, 4, zero=zero, tp=tp, sequence=True)
    for tp, zero, name in itertools.product((2, 4), range(4), NAMES)
]
QUICK_SEQUENCES = [SEQUENCES[16 * (zero % 2) + 5 * zero] for zero in range(4)]


@pytest.mark.parametrize(
    "case",
    [pytest.param(case, id=str(case), marks=marked(case in QUICK_SEQUENCES)) for case in SEQUENCES],
)
def test_parts_of_sequences(case: Tensors) -> None:
    """Norms and residual connections are computed on parts, and sums scattered to them."""
    check(case, Config(kv_heads=case.tp))
    counts = count_ops(compile_case(case, Config(kv_heads=case.tp)), "chunks")
    assert counts["piper.reduce_scatter"] >= LAYERS * 2


@pytest.mark.parametrize(
    ("case", "config"),
    [
        (Tensors("1F1B", 2, 1, 4, zero=0), Config(rms=True)),
        (Tensors("ZBVZeroBubble", 2, 2, 4, zero=3), Config(rms=True, kv_heads=4)),
        (Tensors("1F1B", 2, 2, 2, zero=2), Config(kv_heads=4)),
        (Tensors("1F1B", 0, 1, 1, tp=4), Config(kv_heads=4)),
        (Tensors("1F1B", 2, 1, 2, tp=4, zero=1), Config(heads=8, kv_heads=4)),
        (Tensors("1F1B", 0, 1, 2, tp=2), Config(rms=True)),
    ],
    ids=str,
)
def test_norms_and_heads(case: Tensors, config: Config) -> None:
    """Both norms; as many heads of keys and values as ranks, or more; groups of heads on four ranks;
    without a pipeline.
    """
    check(case, config)


ENDS: tuple[By, ...] = ("vocabulary", "width")


@pytest.mark.parametrize("tied", [False, True], ids=["apart", "tied"])
@pytest.mark.parametrize("by", ENDS)
@pytest.mark.parametrize(
    ("schedule", "zero"),
    [
        pytest.param(name, zero, marks=marked((name, zero) == ("DualPipeV", 1)))
        for name, zero in itertools.product(("1F1B", "DualPipeV"), (1, 3))
    ],
)
def test_embedding_and_head(schedule: str, tied: bool, by: By, zero: int) -> None:
    """Of a tied weight one directive shares out both; else embedding and head are shared out along
    different dims.
    """
    other = ENDS[1 - ENDS.index(by)]
    head: By = "whole" if tied else other
    case = Tensors(schedule, 2, 2, 4, zero=zero, embed=by, head=head)
    check(case, Config(tied=tied))


@pytest.mark.parametrize(
    ("schedule", "zero"),
    [
        pytest.param(name, zero, marks=marked((name, zero) in (("1F1B", 3), ("DualPipeV", 0))))
        for name, zero in itertools.product(NAMES, (0, 3))
    ],
)
def test_sums_are_made_again(schedule: str, zero: int) -> None:
    """Where a backward pass keeps only what comes from other chunks: what a row parallel product of
    the forward pass leaves is summed again, but for the last one, which only the output needs.
    """
    again = Tensors(schedule, 2, 2, 4, zero=zero, remat=piper.remat("layer", policy="full"))
    check(again)
    counted = (
        count_ops(compile_case(case), "chunks")["piper.all_reduce"] for case in (again, SAVED)
    )
    evaluation = 2 * LAYERS
    assert [count - evaluation for count in counted] == [LAYERS * (2 + 1 + 2), LAYERS * (2 + 2)]


@pytest.mark.parametrize(
    "template",
    [
        "B B.reduce B1 B.reduce B2 F F.reduce F1 F.reduce F2",
        "B F B.reduce F.reduce B1 F1 B.reduce F.reduce B2 F2",
        "F F.reduce I I.reduce F1 W F.reduce I1 I.reduce W1 F2 I2 W2",
    ],
    ids=["one-by-one", "in-turns", "halves"],
)
def test_templates_name_every_sum(template: str) -> None:
    """A layer finishes several sums in each pass: a name stands once for each of them."""
    case = Tensors("DualPipeV", 2, 2, 4, zero=1)
    plan, more = case.plan(), piper.overlap("layer", template)
    strategy = piper.Strategy(mesh=plan.mesh, directives=[*plan.directives, more])
    captures, batches = small_tensors.captures(PLAIN), small_tensors.batches(case)
    program = captures.compile(strategy, batches[0])
    expected = plain_steps(captures.model, token_loss, batches, sgd, clip=CLIP)
    check_steps(piper_steps(program, captures.model, batches), expected)
    assert issued(program.texts["program_pp1.py"]).count(template) == 3


def issued(text: str) -> str:
    """The pieces of layers in the order in which a program issues them: F, F.reduce, ..."""
    made = re.findall(r"r\.run\(layer_\d_([FBIW]\d?),|r\.all_reduce\(layer_\d_([FBIW])\d+_m", text)
    return " ".join(run or f"{of}.reduce" for run, of in made)


@dataclass(frozen=True)
class Both(Experted):
    """A case whose ranks share out experts along `ep`, and other weights along `tp`."""

    tp: int = 2

    @property
    def mesh(self) -> dict[str, int]:
        """See `Case`."""
        return {**super().mesh, "tp": self.tp}

    def shards(self) -> list[Directive]:
        """The expert that all tokens share by its inputs, the head by its outputs."""
        shared = piper.shard("layers.*.shared.weight", axis="tp", dim=1)
        return [shared, *(piper.shard(f"head.{name}", axis="tp") for name in ("weight", "bias"))]


@pytest.mark.parametrize(
    "case",
    [
        Both("1F1B", 2, 2, 2, zero=1),
        pytest.param(Both("1F1B", 2, 2, 2, zero=3), marks=pytest.mark.slow),
        Both("DualPipeV", 2, 0, 4, zero=2),
        pytest.param(Both("DualPipeV", 2, 2, 4, zero=0), marks=pytest.mark.slow),
        Both("1F1B", 0, 1, 2, ep=2, tp=4),
    ],
    ids=str,
)
def test_beside_experts(case: Both) -> None:
    """Ranks along `tp` send the same rows to the ranks of their experts."""
    captures, batches = small_moe.captures(), small_moe.batches(case)
    program = captures.compile(case.plan(more=case.shards()), batches[0])
    for factory in (sgd, adamw):
        expected = plain_steps(captures.model, token_loss, batches, factory, clip=small_moe.CLIP)
        check_steps(piper_steps(program, captures.model, batches, factory), expected)


@pytest.mark.parametrize(
    "names", [pytest.param("*.experts.*", marks=pytest.mark.slow), "*.experts.up"]
)
def test_experts_that_ranks_with_the_same_tokens_share_out(names: str) -> None:
    """Rows are sorted by all experts: ranks gather them, and have a part of their gradients."""
    captures = small_moe.captures()
    batches = small_moe.batches(Experted("1F1B", 0, 2, 2, ep=1))
    strategy = piper.Strategy(
        mesh={"dp": 2, "tp": 2},
        directives=[
            piper.annotate(small_moe.TAGS),
            piper.split(microbatches=2),
            piper.order("1F1B"),
            piper.shard(f"layers.{names}", axis="tp"),
            piper.replicate(axis="dp", zero=1),
            piper.update(sgd, clip=small_moe.CLIP),
        ],
    )
    program = captures.compile(strategy, batches[0])
    expected = plain_steps(captures.model, token_loss, batches, sgd, clip=small_moe.CLIP)
    check_steps(piper_steps(program, captures.model, batches), expected)


@pytest.mark.parametrize("case", [MATRIX[0], MATRIX[11], SEQUENCES[5]], ids=str)
def test_bf16_is_as_near_as_plain_bf16(case: Tensors) -> None:
    """Three steps in bf16 differ from fp64 by less than a bound that plain PyTorch meets, too."""
    captures, batches = (
        small_tensors.captures(PLAIN, dtype=torch.bfloat16),
        small_tensors.batches(case),
    )
    program = captures.compile(case.plan(), batches[0])
    exact = copy.deepcopy(captures.model).double()
    expected = plain_steps(exact, token_loss, batches, sgd, clip=CLIP)
    plain = plain_steps(captures.model, token_loss, batches, sgd, clip=CLIP)
    check_steps(plain, expected, bound=BF16_BOUND)
    check_steps(piper_steps(program, captures.model, batches), expected, bound=BF16_BOUND)


@pytest.mark.parametrize("case", [MATRIX[3], MATRIX[14]], ids=str)
def test_ranks_along_the_axis_hold_the_same_copies(case: Tensors) -> None:
    """To the last bit, after three steps: of what no directive shares out."""
    program, batches = compile_case(case), small_tensors.batches(case)
    trainer = piper.Trainer(
        program, transport="local", model=small_tensors.captures(PLAIN).model, optimizer=adamw
    )
    for batch in batches:
        trainer.step(batch)
    seen = 0
    for rank, home in trainer._homes.items():
        for name, bucket in home.buckets.items():
            if not bucket.spec.varying_axes:
                first = trainer._homes[rank - rank % case.tp].buckets[name]
                assert torch.equal(bucket.value, first.value), (rank, name)
                seen += rank % case.tp != 0
    assert seen


@torch.library.custom_op("oracle_tensors::soft_cap", mutates_args=())
def soft_cap(x: Tensor, bound: float) -> Tensor:
    """What torch has no op for."""
    return bound * torch.tanh(x / bound)


@torch.library.custom_op("oracle_tensors::soft_cap_gradient", mutates_args=())
def soft_cap_gradient(grad: Tensor, x: Tensor, bound: float) -> Tensor:
    """Its gradient."""
    return grad * (1 - torch.tanh(x / bound) ** 2)


soft_cap.register_fake(lambda x, bound: torch.empty_like(x))
soft_cap_gradient.register_fake(lambda grad, x, bound: torch.empty_like(x))


def keep(ctx: Any, inputs: tuple[Tensor, float], output: Tensor) -> None:
    ctx.save_for_backward(inputs[0])
    ctx.bound = inputs[1]


def back(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
    return soft_cap_gradient(grad, *ctx.saved_tensors, ctx.bound), None


soft_cap.register_autograd(back, setup_context=keep)


class Capped(nn.Module):
    """Two products with an op of a user between."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(8, 12), nn.Linear(12, 8)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.down(soft_cap(self.up(x), 0.5))
        return x + y


def test_ops_of_users_need_a_rule() -> None:
    """Without one they are refused, with one line each they compute on parts."""
    case = Tensors("1F1B", 0, 2, 2, layers=False)
    parts: dict[str, nn.Module] = {
        "embed": nn.Embedding(small_gpt.VOCABULARY, 8),
        "layers": nn.Sequential(Capped(), Capped()),
        "head": nn.Linear(8, small_gpt.VOCABULARY),
    }
    model = nn.Sequential(OrderedDict(parts)).double()
    batches = small_tensors.batches(case)
    shards = [
        piper.shard("layers.*.up.*", axis="tp"),
        piper.shard("layers.*.down.weight", axis="tp", dim=1),
    ]
    strategy = case.strategy(TAGS, sgd, clip=CLIP, more=shards)
    line = Capped.forward.__code__.co_firstlineno + 1
    message = (
        rf"test_oracle_tensors\.py:{line} \(layers\.0\): .*oracle_tensors.soft_cap.default .* "
        r"say by piper.register_rule"
    )
    with pytest.raises(piper.CaptureError, match=message):
        piper.compile(model, token_loss, strategy, batches[0])
    piper.register_rule(torch.ops.oracle_tensors.soft_cap.default, "b t h -> b t h")
    piper.register_rule(torch.ops.oracle_tensors.soft_cap_gradient.default, "b t h, b t h -> b t h")
    program = piper.compile(model, token_loss, strategy, batches[0])
    expected = plain_steps(model, token_loss, batches, sgd, clip=CLIP)
    check_steps(piper_steps(program, model, batches), expected)
    assert not count_ops(program, "chunks")["piper.all_gather"]
