"""Sharded states train as plain PyTorch does: ZeRO 0 to 3 and HSDP, in fp64."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Mapping
from functools import cache
from typing import Literal

import hf_models
import piper
import pytest
import small_gpt
import torch
from hf_models import FAMILIES, next_token_loss
from oracle import (
    BOUND,
    Step,
    adamw,
    check_steps,
    gradients_of,
    piper_steps,
    plain_steps,
    sgd,
)
from piper.strategy.update import Update
from piper_runtime import Program
from sharded import Sharded
from small_gpt import TAGS, token_loss
from strategies import Captures, Case
from torch import Tensor, nn

CLIP = 0.5
LAYERS = 6  # with embedding and head 8 chunks, two for each of 4 stages


REDUCTIONS: tuple[Literal["last", "each"], ...] = ("last", "each")
NAMES = ("1F1B", "Interleaved1F1B", "ZBVZeroBubble", "DualPipeV", "DualPipe")
MATRIX = [
    Sharded(name, 2, 2, 8, zero=zero, reduce=reduce)
    for zero, name, reduce in itertools.product(range(4), NAMES, REDUCTIONS)
]
QUICK = [  # every stage with every policy, every schedule, and every schedule at stage 3
    MATRIX[10 * zero + 2 * (shift % len(NAMES)) + policy]
    for zero in range(4)
    for policy, shift in enumerate((zero, zero + 2))
] + [case for case in MATRIX if case.zero == 3 and case.reduce == "each"]


def _strategy(case: Sharded) -> piper.Strategy:
    return case.strategy(TAGS, sgd, clip=CLIP, stages=case.stages)


def _compile(case: Sharded) -> tuple[Program, Captures, list[small_gpt.Batch]]:
    captures, batches = small_gpt.captures(tied=True, layers=LAYERS), small_gpt.batches(case)
    return captures.compile(_strategy(case), batches[0]), captures, batches


def _check(case: Sharded) -> None:
    """Three steps each of SGD with momentum and of AdamW, clipped, equal plain PyTorch."""
    program, captures, batches = _compile(case)
    for factory in (sgd, adamw):
        expected = plain_steps(captures.model, token_loss, batches, factory, clip=CLIP)
        check_steps(piper_steps(program, captures.model, batches, factory), expected)


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, id=str(case), marks=[] if case in QUICK else pytest.mark.slow)
        for case in MATRIX
    ],
)
def test_training_equals_plain_pytorch(case: Sharded) -> None:
    """Loss, norm, gradients and weights: every stage, policy and schedule; tied weights too."""
    _check(case)


@pytest.mark.parametrize(
    "case",
    [
        Sharded("ZBVZeroBubble", 2, 2, 4, zero=3, gather="each", prefetch=0),
        Sharded("ZBVZeroBubble", 2, 2, 4, zero=3, gather="each", prefetch=3),
        Sharded("DualPipeV", 2, 2, 4, zero=3, gather="group", prefetch=2),
        Sharded("1F1B", 2, 2, 4, zero=3, gather="step"),
        Sharded("1F1B", 2, 2, 4, zero=3, gather="step", reduce="last"),
        Sharded("1F1B", 2, 4, 2, zero=3, bucket_size=1),
    ],
    ids=str,
)
def test_gathers_at_other_times(case: Sharded) -> None:
    """However long states are kept whole, and however early they are gathered."""
    _check(case)


@pytest.mark.parametrize(
    "case",
    [
        Sharded("1F1B", 2, 2, 2, zero=zero, reduce=reduce, rep=2)
        for zero, reduce in itertools.product((1, 2, 3), REDUCTIONS)
    ],
    ids=str,
)
def test_hsdp_equals_plain_pytorch(case: Sharded) -> None:
    """States sharded along one data axis and whole along another, 2 x 2."""
    _check(case)


@pytest.mark.parametrize("zero", [1, 2, 3])
def test_shards_along_two_axes(zero: int) -> None:
    """A product of axes shares out states as one axis of its size does."""
    case = Case("1F1B", 1, 4, 2)
    captures, batches = small_gpt.captures(tied=True), small_gpt.batches(case, steps=2)
    strategy = piper.Strategy(
        mesh={"dp_replicate": 2, "dp_shard": 2},
        directives=[
            piper.annotate(TAGS),
            piper.split(microbatches=case.microbatches),
            piper.replicate(axis=("dp_replicate", "dp_shard"), zero=zero),
            piper.update(adamw, clip=CLIP),
        ],
    )
    program = captures.compile(strategy, batches[0])
    expected = plain_steps(captures.model, token_loss, batches, adamw, clip=CLIP)
    check_steps(piper_steps(program, captures.model, batches), expected)


@pytest.mark.parametrize("zero", [1, 2, 3])
def test_results_do_not_depend_on_who_is_first(zero: int) -> None:
    """The bits of a step are the same in any order that the program allows."""
    program, captures, batches = _compile(Sharded("ZBVZeroBubble", 2, 2, 4, zero=zero))
    expected = piper_steps(program, captures.model, batches)
    for seed in (0, 1):
        found = piper_steps(program, captures.model, batches, seed=seed)
        check_steps(found, expected, bound=0.0)


def test_transformers_gpt2_at_stage_3() -> None:
    """Unmodified GPT-2, whose head is its embedding, on two pipeline stages."""
    case = Sharded("1F1B", 2, 2, 2, zero=3)
    captures, batch = hf_models.captures("gpt2", layers=2), hf_models.make_batch(case)
    bound = max(BOUND, 10 * hf_models.floor(captures.model, batch))
    program = captures.compile(case.strategy(FAMILIES["gpt2"].tags, stages=2), batch)
    expected = plain_steps(captures.model, next_token_loss, [batch])
    check_steps(piper_steps(program, captures.model, [batch]), expected, bound=bound)


class Odd(nn.Module):
    """Parameters of 3 and 7 elements and of 0 dims, fewer than ranks; and one that is frozen."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.ModuleList([Vector(3), Vector(7)])
        self.last = Scale()

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.inner:
            x = layer(x)
        y: Tensor = self.last(x)
        return y


class Scale(nn.Module):
    """Multiplies by a scalar that is trained and by one that is not."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(0.7, dtype=torch.float64))
        self.frozen = nn.Parameter(torch.tensor([1.5], dtype=torch.float64), requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        return x * self.scale * self.frozen


class Vector(nn.Module):
    """Adds the mean of its weight times the input."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.linspace(-1, 1, size, dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        return x + (x.unsqueeze(-1) * self.weight).tanh().mean(-1)


def squares(model: nn.Module, batch: Mapping[str, Tensor]) -> Tensor:
    """The mean of the outputs' squares."""
    loss: Tensor = (model(batch["x"]) ** 2).mean()
    return loss


@cache
def odd() -> Captures:
    return Captures(Odd(), squares)


@pytest.mark.parametrize(("zero", "bucket_size"), [*itertools.product((1, 2, 3), (25_000_000, 1))])
def test_odd_sizes(zero: int, bucket_size: int) -> None:
    """Shards of a few elements on four ranks, some of which hold none."""
    case = Sharded("1F1B", 2, 4, 2, zero=zero, bucket_size=bucket_size)
    generator = torch.Generator().manual_seed(0)
    batches = [
        {"x": torch.randn(case.parts, 5, generator=generator, dtype=torch.float64)}
        for _ in range(3)
    ]
    captures, tags = odd(), {"inner.*": "inner", "last": "last"}
    program = captures.compile(case.strategy(tags, adamw, clip=0.1), batches[0])
    expected = plain_steps(captures.model, squares, batches, adamw, clip=0.1)
    check_steps(piper_steps(program, captures.model, batches), expected)


@pytest.mark.parametrize("zero", range(4))
@pytest.mark.parametrize("name", ["1F1B", "DualPipe"])
def test_steps_without_update_leave_weights(name: str, zero: int) -> None:
    """A strategy without an update reduces gradients and nothing more; twins too."""
    case = Sharded(name, 2, 2, 4, zero=zero)
    captures, batches = small_gpt.captures(tied=True), small_gpt.batches(case, steps=2)
    program = captures.compile(case.strategy(TAGS, stages=case.stages), batches[0])
    expected = plain_steps(captures.model, token_loss, batches)
    check_steps(piper_steps(program, captures.model, batches), expected)


@pytest.mark.parametrize("zero", range(4))
def test_master_values_have_a_dtype_of_their_own(zero: int) -> None:
    """A float32 model whose optimizer updates float64 values: weights are those, rounded."""
    case = Sharded("1F1B", 2, 2, 2, zero=zero)
    captures, batches = single(), small_gpt.batches(case)
    plain = case.strategy(TAGS, sgd, clip=CLIP, stages=2, reduce_dtype=torch.float64)
    directives = [
        piper.update(sgd, clip=CLIP, master_dtype=torch.float64)
        if isinstance(directive, Update)
        else directive
        for directive in plain.directives
    ]
    strategy = piper.Strategy(mesh=case.mesh, directives=directives)
    found = piper_steps(captures.compile(strategy, batches[0]), captures.model, batches)
    expected = mastered_steps(captures.model, batches)
    check_steps(found, expected, bound=1e-6)
    assert {value.dtype for value in found[0].states.values()} == {torch.float32}


@cache
def single() -> Captures:
    """The small GPT in float32."""
    model = copy.deepcopy(small_gpt.captures(tied=True).model).float()
    return Captures(model, token_loss)


def mastered_steps(model: nn.Module, batches: list[small_gpt.Batch]) -> list[Step]:
    """Plain PyTorch with float64 copies of the weights that the optimizer updates."""
    model = copy.deepcopy(model)
    own = list(model.parameters())
    masters = [nn.Parameter(parameter.detach().double()) for parameter in own]
    optimizer, steps = sgd(masters), []
    for batch in batches:
        model.zero_grad()
        loss = token_loss(model, batch)
        loss.backward()  # type: ignore[no-untyped-call]
        gradients = gradients_of(model)
        for parameter, master in zip(own, masters, strict=True):
            assert parameter.grad is not None
            master.grad = parameter.grad.double()
        norm = float(nn.utils.clip_grad_norm_(masters, CLIP))
        optimizer.step()
        with torch.no_grad():
            for parameter, master in zip(own, masters, strict=True):
                parameter.copy_(master)
        by_parameter = dict(zip(own, masters, strict=True))
        named = model.named_parameters(remove_duplicate=False)
        states = {name: by_parameter[value].detach().float() for name, value in named}
        states |= {name: value.clone() for name, value in model.named_buffers()}
        steps.append(Step(float(loss.detach()), norm, gradients, states))
    return steps
