"""Sharded states train as plain PyTorch does: ZeRO 0 to 3, in fp64."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from functools import cache
from typing import Literal

import hf_models
import pytest
import small_gpt
import torch
from hf_models import FAMILIES, next_token_loss
from oracle import BOUND, adamw, check_steps, piper_steps, plain_steps, sgd
from piper.simulate import ProgramFacts
from piper.simulate.communication import measure_traffic
from piper_runtime.states.optimizer import OptimizerFactory
from sharded import Sharded
from sharded_gpt import CLIP, NAMES, check_training, compile_case
from small_gpt import TAGS, token_loss
from strategies import Captures
from torch import Tensor, nn

REDUCTIONS: tuple[Literal["last", "each"], ...] = ("last", "each")
MATRIX = [
    Sharded(name, 2, 2, 8, zero=zero, reduce=reduce)
    for zero, name, reduce in itertools.product(range(4), NAMES, REDUCTIONS)
]
QUICK = [  # every stage with every policy, every schedule, and every schedule at stage 3
    MATRIX[10 * zero + 2 * (shift % len(NAMES)) + policy]
    for zero in range(4)
    for policy, shift in enumerate((zero, zero + 2))
] + [case for case in MATRIX if case.zero == 3 and case.reduce == "each"]
OTHERS = [
    Sharded(name, 2, 2, 8, zero=3, reduce="each")
    for name in ("GPipe", "LoopedBFS", "ZBH1", "ZBH2", "InterleavedZeroBubble")
]


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, id=str(case), marks=[] if case in QUICK else pytest.mark.slow)
        for case in MATRIX
    ]
    + [
        pytest.param(case, id=str(case), marks=[] if case is OTHERS[-1] else pytest.mark.slow)
        for case in OTHERS
    ],
)
def test_training_equals_plain_pytorch(case: Sharded) -> None:
    """Loss, norm, gradients and weights: every stage, policy and schedule; tied weights too."""
    check_training(case)


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
    check_training(case)


@pytest.mark.parametrize("zero", [1, 2, 3])
def test_results_do_not_depend_on_who_is_first(zero: int) -> None:
    """The bits of a step are the same in any order that the program allows."""
    program, captures, batches = compile_case(Sharded("ZBVZeroBubble", 2, 2, 4, zero=zero))
    expected = piper_steps(program, captures.model, batches)
    for seed in (0, 1):
        found = piper_steps(program, captures.model, batches, seed=seed)
        check_steps(found, expected, bound=0.0)


@pytest.mark.parametrize("factory", [sgd, adamw])
def test_transformers_gpt2_at_stage_3(factory: OptimizerFactory) -> None:
    """Unmodified GPT-2, whose head is its embedding, on two pipeline stages: three steps."""
    case = Sharded("1F1B", 2, 2, 2, zero=3)
    captures, batch = hf_models.captures("gpt2", layers=2), hf_models.make_batch(case)
    batches = [{name: rows.roll(step, 0) for name, rows in batch.items()} for step in range(3)]
    bound = max(BOUND, *(10 * hf_models.floor(captures.model, batch) for batch in batches))
    strategy = case.strategy(FAMILIES["gpt2"].tags, factory, clip=CLIP, stages=2)
    program = captures.compile(strategy, batch)
    expected = plain_steps(captures.model, next_token_loss, batches, factory, clip=CLIP)
    assert all(step.grad_norm is not None and step.grad_norm > CLIP for step in expected)
    check_steps(piper_steps(program, captures.model, batches), expected, bound=bound)


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


@pytest.mark.parametrize("reduce", REDUCTIONS)
@pytest.mark.parametrize("zero", range(4))
def test_without_update_sums_are_whole(zero: int, reduce: Literal["last", "each"]) -> None:
    """Nothing takes parts of a gradient that is summed once; the rest is shared out as ever."""
    case = Sharded("1F1B", 2, 2, 2, zero=zero, reduce=reduce)
    captures, batches = small_gpt.captures(tied=True), small_gpt.batches(case, steps=1)
    program = captures.compile(case.strategy(TAGS, stages=case.stages), batches[0])
    parts = zero > 1 and reduce == "each"
    for spec in program.manifest.buckets:
        assert spec.shard_axes == (("dp",) if zero else ())
        assert spec.grad_sharded == parts
    ops = {
        item.op
        for item in measure_traffic(ProgramFacts.read(program))
        if item.coordinates == (0,) and item.comm.axes == ("dp",)
    }
    assert ops == {"reduce_scatter" if parts else "all_reduce", *["all_gather"][: zero == 3]}
