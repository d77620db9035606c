"""Values and gradients in other dtypes than the model's, against plain PyTorch with the same."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Sequence
from functools import cache
from typing import Literal

import piper
import pytest
import small_gpt
import torch
import torch.nn.functional as F  # noqa: N812
from oracle import Step, adamw, check_steps, distance, piper_steps, sgd
from piper.strategy.update import Update
from piper_runtime.states.optimizer import OptimizerFactory
from sharded import Sharded
from sharded_gpt import CLIP, NAMES
from small_gpt import ROWS, TAGS, Batch, token_loss
from strategies import Captures
from torch import Tensor, nn

Order = Sequence[Sequence[slice]]  # rows that are computed at once, in groups that are summed first
REDUCTIONS: tuple[Literal["last", "each"], ...] = ("last", "each")
BF16 = 2.0**-8  # relative distance of neighbours, twice the most that one rounding does
FP32_SUMS = 1e-6  # relative: squares of some thousand elements, added in another order
NEVER = 1e6  # a norm that is not reached, so that nothing is multiplied by its rounding


QUICK = [
    ("1F1B", 0, "last"),
    ("ZBVZeroBubble", 1, "last"),
    ("1F1B", 2, "each"),
    ("DualPipeV", 3, "each"),
]


@cache
def model_in(dtype: torch.dtype, *, tied: bool) -> Captures:
    """The small GPT in a dtype."""
    model = copy.deepcopy(small_gpt.captures(tied=tied).model).to(dtype)
    return Captures(model, token_loss)


def train(
    captures: Captures,
    case: Sharded,
    batches: list[Batch],
    wide: torch.dtype,
    factory: OptimizerFactory = sgd,
    *,
    clip: float = CLIP,
) -> list[Step]:
    """Train with gradients and the optimizer's values in a wider dtype than the model's."""
    plain = case.strategy(TAGS, factory, clip=clip, stages=case.stages, reduce_dtype=wide)
    directives = [
        piper.update(factory, clip=clip, master_dtype=wide) if isinstance(one, Update) else one
        for one in plain.directives
    ]
    program = captures.compile(piper.Strategy(mesh=case.mesh, directives=directives), batches[0])
    steps = piper_steps(program, captures.model, batches)
    own = {parameter.dtype for parameter in captures.model.parameters()}
    assert {value.dtype for value in steps[0].states.values()} == own
    assert {value.dtype for value in steps[0].gradients.values()} == {wide}
    return steps


def plain_training(
    model: nn.Module,
    batches: Sequence[Batch],
    wide: torch.dtype,
    factory: OptimizerFactory = sgd,
    *,
    clip: float = CLIP,
    order: Order = ((slice(None),),),
) -> list[Step]:
    """The same in plain PyTorch: the model, wide copies that the optimizer updates, wide sums."""
    model = copy.deepcopy(model)
    own = list(model.parameters())
    masters = [nn.Parameter(parameter.detach().to(wide)) for parameter in own]
    optimizer, steps = factory(masters), []
    for batch in batches:
        loss, sums = _sum_gradients(model, batch, wide, order)
        for master, total in zip(masters, sums, strict=True):
            master.grad = total.clone()
        norm = float(nn.utils.clip_grad_norm_(masters, clip))
        optimizer.step()
        with torch.no_grad():
            for parameter, master in zip(own, masters, strict=True):
                parameter.copy_(master)
        gradient_of = dict(zip(own, sums, strict=True))
        named = dict(model.named_parameters(remove_duplicate=False))
        gradients = {name: gradient_of[value] for name, value in named.items()}
        states = {name: value.detach().clone() for name, value in named.items()}
        states |= {name: value.clone() for name, value in model.named_buffers()}
        steps.append(Step(loss, norm, gradients, states))
    return steps


def _sum_gradients(
    model: nn.Module, batch: Batch, wide: torch.dtype, order: Order
) -> tuple[float, list[Tensor]]:
    """The mean loss of a batch, and gradients of its parts, summed in a wide dtype."""
    own = list(model.parameters())
    count, loss = int((batch["labels"] != small_gpt.IGNORED).sum()), 0.0
    sums: list[Tensor] = []
    for group in order:
        group_sums = [torch.zeros_like(parameter, dtype=wide) for parameter in own]
        for rows in group:
            logits, labels = (
                model(batch["ids"][rows]).flatten(0, 1),
                batch["labels"][rows].flatten(),
            )
            part = F.cross_entropy(logits, labels, reduction="sum")
            found = torch.autograd.grad(part, own, torch.full_like(part, 1 / count))
            loss += float(part.detach()) / count
            for total, gradient in zip(group_sums, found, strict=True):
                total += gradient
        sums = [a + b for a, b in zip(sums, group_sums, strict=True)] if sums else group_sums
    return loss, sums


def order_of(case: Sharded) -> Order:
    """The order in which gradients are summed: on each rank first, or microbatch by microbatch."""
    parts = [slice(ROWS * part, ROWS * (part + 1)) for part in range(case.parts)]
    count = case.microbatches
    if piper.replicate(zero=case.zero, reduce=case.reduce).policy == "last":
        return [parts[first : first + count] for first in range(0, len(parts), count)]
    return [parts[microbatch::count] for microbatch in range(count)]


@pytest.mark.parametrize("zero", range(4))
def test_master_values_have_a_dtype_of_their_own(zero: int) -> None:
    """A float32 model whose optimizer updates float64 values: weights are those, rounded."""
    case, captures = Sharded("1F1B", 2, 2, 2, zero=zero), model_in(torch.float32, tied=True)
    batches = small_gpt.batches(case)
    expected = plain_training(captures.model, batches, torch.float64)
    check_steps(train(captures, case, batches, torch.float64), expected, bound=1e-6)


@pytest.mark.parametrize("factory", [sgd, adamw])
@pytest.mark.parametrize(
    "case",
    [
        pytest.param(
            Sharded(name, 2, 2, 4, zero=zero, reduce=reduce),
            id=f"{name}-zero{zero}-{reduce}",
            marks=[] if (name, zero, reduce) in QUICK else pytest.mark.slow,
        )
        for name, zero, reduce in itertools.product(NAMES, range(4), REDUCTIONS)
        if name != "DualPipe"
    ],
)
def test_bf16_with_fp32_masters_is_plain_pytorch(case: Sharded, factory: OptimizerFactory) -> None:
    """Three steps of a bf16 model, with main gradients and the optimizer's values in fp32.

    Plain PyTorch computes the same microbatches in bf16 and adds their gradients in the same order
    in fp32: gradients and weights are equal to the bit. (DualPipe, whose two copies of a stage sum
    apart, has an order of its own: see below.) The norm is within the rounding of its sum,
    the loss within those of bf16: of a term, and of the sum.
    """
    captures, batches = model_in(torch.bfloat16, tied=False), small_gpt.batches(case)
    found = train(captures, case, batches, torch.float32, factory, clip=NEVER)
    order = order_of(case)
    expected = plain_training(
        captures.model, batches, torch.float32, factory, clip=NEVER, order=order
    )
    for ours, plain in zip(found, expected, strict=True):
        assert ours.loss == pytest.approx(plain.loss, rel=2 * BF16)
        assert ours.grad_norm == pytest.approx(plain.grad_norm, rel=FP32_SUMS)
        for name, gradient in plain.gradients.items():
            assert torch.equal(ours.gradients[name], gradient), name
        for name, value in plain.states.items():
            assert torch.equal(ours.states[name], value), name


@pytest.mark.parametrize("zero", range(4))
@pytest.mark.parametrize("name", ["1F1B", "DualPipe"])
def test_bf16_with_clipping(name: str, zero: int) -> None:
    """Sums rounded otherwise move a weight by one rounding of bf16, and that hardly ever."""
    case = Sharded(name, 2, 2, 4, zero=zero, reduce="last")
    captures = model_in(torch.bfloat16, tied=False)
    batches = small_gpt.batches(case, steps=1)
    [found] = train(captures, case, batches, torch.float32)
    [plain] = plain_training(captures.model, batches, torch.float32, order=order_of(case))
    assert plain.grad_norm is not None
    assert plain.grad_norm > 2 * CLIP
    assert found.grad_norm == pytest.approx(plain.grad_norm, rel=FP32_SUMS)
    for state, gradient in plain.gradients.items():
        assert distance(found.gradients[state], gradient) < FP32_SUMS, state
    ours, theirs = (
        torch.cat([step.states[state].flatten() for state in plain.states]).double()
        for step in (found, plain)
    )
    assert bool(((ours - theirs).abs() <= BF16 * theirs.abs()).all())
    assert int((ours != theirs).sum()) <= len(ours) // 1000


@pytest.mark.parametrize("zero", [0, 3])
def test_contributions_of_a_tied_weight_are_summed_in_fp32(zero: int) -> None:
    """Autograd adds those of its two uses in bf16 and rounds; all else is equal to the bit."""
    case, captures = Sharded("1F1B", 2, 2, 4, zero=zero), model_in(torch.bfloat16, tied=True)
    batches = small_gpt.batches(case, steps=1)
    [found] = train(captures, case, batches, torch.float32)
    [plain] = plain_training(captures.model, batches, torch.float32, order=order_of(case))
    tied = {"embed.token.weight", "head.out.weight"}
    assert tied < plain.gradients.keys()
    for name, gradient in plain.gradients.items():
        if name in tied:
            assert distance(found.gradients[name], gradient) < BF16
        else:
            assert torch.equal(found.gradients[name], gradient), name
