"""Ledgers: steps whose exact result tells what was counted twice, forgotten, or averaged."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from functools import cache
from typing import Any, Literal

import pytest
import torch
from oracle import piper_steps
from piper_runtime.states.optimizer import OptimizerFactory
from sharded import Sharded
from strategies import Captures, Case
from torch import Tensor, nn

TOKENS, WORDS = 3, 4
REDUCTIONS: tuple[Literal["last", "each"], ...] = ("last", "each")
Gather = tuple[Literal["each", "group", "step"] | None, int | None]
WHOLE: list[Gather] = [(None, None)]
LATER: list[Gather] = [(None, None), ("step", None)]
AGAIN: list[Gather] = [
    (None, None), ("each", 0), ("each", 2), ("group", 0), ("group", 2), ("step", None)
]  # fmt: skip
GATHERS = (WHOLE, LATER, LATER, AGAIN)
"""By stage of ZeRO: when states are gathered, and how many uses ahead."""

Batch = dict[str, Tensor]


def sharing(cases: Iterable[Case]) -> list[Sharded]:
    """Each case at every stage of ZeRO, with every policy of reduction and of gathers."""
    return [
        Sharded(
            case.schedule, case.pp, case.dp, case.microbatches,
            zero=zero, reduce=reduce, gather=gather, prefetch=prefetch,
        )
        for case, zero, reduce in itertools.product(cases, range(4), REDUCTIONS)
        for gather, prefetch in GATHERS[zero]
    ]  # fmt: skip


def mostly_slow(cases: Iterable[Sharded]) -> list[Any]:
    """The cases; all are slow but those of 1F1B with one policy for each stage."""
    return [pytest.param(case, marks=[] if _is_quick(case) else pytest.mark.slow) for case in cases]


def _is_quick(case: Sharded) -> bool:
    policies = case.reduce, case.gather
    return policies == (REDUCTIONS[case.zero % 2], None) and case.schedule == "1F1B"


def plain_sgd(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    """SGD whose step is the gradient."""
    return torch.optim.SGD(parameters, lr=1.0)


class Scale(nn.Module):
    """Multiplies by a weight."""

    def __init__(self, *weights: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.tensor(weights, dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.weight


class Ledger(nn.Module):
    """A product of ones: an embedding, scales, and the embedding again, at rows of its own.

    Its gradient with respect to any weight is the sum of what the batch says per token.
    """

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(2 * WORDS, 1, dtype=torch.float64)
        self.layers = nn.ModuleList(Scale(1.0) for _ in range(4))
        self.tail = nn.Embedding(2 * WORDS, 1, dtype=torch.float64)
        self.tail.weight = self.embed.weight
        nn.init.ones_(self.embed.weight)

    def forward(self, ids: Tensor) -> Tensor:
        x: Tensor = self.embed(ids)
        for layer in self.layers:
            x = layer(x)
        y: Tensor = x * self.tail(ids + WORDS)
        return y.squeeze(-1)


def entries(model: nn.Module, batch: Batch) -> Tensor:
    """The sum of the batch's amounts."""
    total: Tensor = (model(batch["ids"]) * batch["amounts"]).sum()
    return total


@cache
def ledger() -> Captures:
    return Captures(Ledger(), entries)


@pytest.mark.parametrize(
    "case",
    [
        Case("1F1B", 1, 1, 1),
        Case("GPipe", 1, 2, 8),
        Case("1F1B", 2, 2, 8),
        Case("GPipe", 4, 1, 4),
        Case("1F1B", 4, 2, 4),
        *mostly_slow(sharing([Case("1F1B", 2, 2, 4)])),
    ],
    ids=str,
)
def test_every_token_counts_once(case: Case) -> None:
    """Token k is worth 2**k, so that the bits of a gradient name the tokens in it."""
    check_tokens(case, None)


@pytest.mark.parametrize(
    "case",
    [
        *mostly_slow(sharing([Case("1F1B", 2, 4, 4)])),
        *mostly_slow(sharing([Case("GPipe", 1, 2, 8), Case("DualPipeV", 2, 2, 4)])),
        pytest.param(Sharded("Interleaved1F1B", 2, 2, 4, zero=3), marks=pytest.mark.slow),
        pytest.param(Sharded("ZBVZeroBubble", 2, 2, 4, zero=3), marks=pytest.mark.slow),
        Sharded("DualPipe", 2, 2, 4, zero=3),
        Sharded("1F1B", 2, 2, 4, zero=3, rep=2),
    ],
    ids=str,
)
def test_every_token_of_an_update_counts_once(case: Sharded) -> None:
    """The same where the optimizer's state is shared out, and so what it is given."""
    check_tokens(case, plain_sgd)


def check_tokens(case: Case, factory: OptimizerFactory | None) -> None:
    """Every gradient has the bits of its tokens; SGD of rate 1 takes them off a weight of 1."""
    count = case.parts * TOKENS
    ids = torch.arange(count).mul(7).remainder(WORDS).view(case.parts, TOKENS)
    amounts = 2.0 ** torch.arange(count, dtype=torch.float64).view(case.parts, TOKENS)
    tags = {"embed": "first", "layers.*": "layer", "tail": "last"}
    (step,) = piper_steps(
        ledger().compile(
            case.strategy(tags, factory, stages=case.stages if isinstance(case, Sharded) else None),
            {"ids": ids, "amounts": amounts},
        ),
        ledger().model,
        [{"ids": ids, "amounts": amounts}],
    )
    everything = 2**count - 1
    assert step.loss == everything
    by_word = [sum(2**k for k in range(count) if 7 * k % WORDS == word) for word in range(WORDS)]
    table = [int(value) for value in step.gradients["embed.weight"].flatten()]
    assert table == by_word + by_word
    assert torch.equal(step.gradients["tail.weight"], step.gradients["embed.weight"])
    for layer in range(4):
        assert int(step.gradients[f"layers.{layer}.weight"]) == everything
    for name, gradient in step.gradients.items():
        assert torch.equal(step.states[name], 1 - (0 if factory is None else 1) * gradient)


class Pair(nn.Module):
    """Two weights in two chunks that multiply one input side by side."""

    def __init__(self) -> None:
        super().__init__()
        self.first = Scale(1.0, -3.0)
        self.second = Scale(0.5)

    def forward(self, x: Tensor) -> Tensor:
        y = self.first(x)
        return torch.cat([y, self.second(x.sum(-1, keepdim=True) / 2)], dim=-1)


PAIR_TAGS = {"first": "first", "second": "second"}


def energy(model: nn.Module, batch: Batch) -> Tensor:
    """Minus half of the outputs' squares, as a mean over examples."""
    loss: Tensor = -0.5 * (model(batch["x"]) ** 2).sum(-1).mean()
    return loss


def output(model: nn.Module, batch: Batch) -> Tensor:
    """The sum of the outputs."""
    loss: Tensor = model(batch["x"]).sum()
    return loss


def _signs(case: Case) -> Tensor:
    signs = torch.ones(case.parts, 2, dtype=torch.float64)
    signs[::3] = -1
    return signs


DOUBLING = [
    Case("1F1B", 1, 1, 4),
    Case("GPipe", 1, 2, 2),
    Case("1F1B", 2, 1, 8),
    Case("1F1B", 2, 2, 4),
    *mostly_slow(sharing([Case("GPipe", 1, 4, 2), Case("1F1B", 2, 2, 4)])),
]


@cache
def pair(loss_fn: Callable[[nn.Module, Batch], Tensor]) -> Captures:
    return Captures(Pair(), loss_fn)


@pytest.mark.parametrize("case", DOUBLING, ids=str)
def test_weights_double_each_step(case: Case) -> None:
    """The gradient of the mean is -w, so SGD with rate 1 makes w 2w: exactly 8w after three."""
    batch = {"x": _signs(case)}
    model = pair(energy).model
    program = pair(energy).compile(case.strategy(PAIR_TAGS, plain_sgd), batch)
    steps = piper_steps(program, model, [batch] * 3)
    for name, first in model.named_parameters():
        assert torch.equal(steps[-1].states[name], 8 * first)


def _decaying(kind: type[torch.optim.Optimizer]) -> OptimizerFactory:
    def factory(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
        return kind(parameters, lr=0.5, weight_decay=0.5)  # type: ignore[call-arg]

    return factory


@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.AdamW])
@pytest.mark.parametrize("case", mostly_slow(sharing([Case("1F1B", 2, 2, 4)])), ids=str)
def test_zero_gradients_only_decay(case: Sharded, kind: type[torch.optim.Optimizer]) -> None:
    """Every element shrinks by 1 - rate * decay = 3/4 in each step, and is decayed only once."""
    batch = {"x": torch.zeros(case.parts, 2, dtype=torch.float64)}
    model = pair(output).model
    program = pair(output).compile(case.strategy(PAIR_TAGS, _decaying(kind), clip=1.0), batch)
    steps = piper_steps(program, model, [batch] * 3)
    for count, step in enumerate(steps, start=1):
        assert step.grad_norm == 0
        for name, first in model.named_parameters():
            assert torch.equal(step.states[name], first * 0.75**count)


class Narrow(nn.Module):
    """One weight in bf16."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = Scale(1.0, -3.0).bfloat16()

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.scale(x)
        return y


@cache
def narrow() -> Captures:
    return Captures(Narrow(), output)


@pytest.mark.parametrize(
    ("dtype", "sums"), [(torch.float32, 512.0), (None, 256.0)], ids=["fp32", "bf16"]
)
def test_main_gradients_have_the_reduce_dtype(dtype: torch.dtype | None, sums: float) -> None:
    """512 ones are 512 in fp32; in bf16 the sum stays at 256, where a one is below the rounding.

    The loss, -2 of each microbatch in bf16, is never summed in bf16.
    """
    case = Case("1F1B", 1, 1, 512)
    batch = {"x": torch.ones(case.parts, 2, dtype=torch.bfloat16)}
    program = narrow().compile(case.strategy({"scale": "scale"}, reduce_dtype=dtype), batch)
    (step,) = piper_steps(program, narrow().model, [batch])
    gradient = step.gradients["scale.weight"]
    assert gradient.dtype == (dtype or torch.bfloat16)
    assert gradient.tolist() == [sums, sums]
    assert step.loss == -2 * case.parts


REDUCED = [
    *mostly_slow(sharing([Case("1F1B", 1, 2, 4)])),
    Sharded("1F1B", 1, 2, 4, zero=3, rep=2),
    pytest.param(Sharded("1F1B", 1, 2, 4, zero=0, rep=2), marks=pytest.mark.slow),
]


@pytest.mark.parametrize(("dtype", "each"), [(torch.float32, 259), (None, 256)], ids=str)
@pytest.mark.parametrize("case", REDUCED, ids=str)
def test_shared_main_gradients_have_the_reduce_dtype(
    case: Sharded, dtype: torch.dtype | None, each: int
) -> None:
    """On each rank 256, then three ones, each below the rounding of bf16, as twos are of 512."""
    rows = torch.ones(case.parts, 2, dtype=torch.bfloat16)
    rows[:: case.microbatches] = 256
    strategy = case.strategy({"scale": "scale"}, plain_sgd, reduce_dtype=dtype)
    program = narrow().compile(strategy, {"x": rows})
    (step,) = piper_steps(program, narrow().model, [{"x": rows}])
    gradient = step.gradients["scale.weight"]
    assert gradient.dtype == (dtype or torch.bfloat16)
    assert gradient.tolist() == [each * case.parts / case.microbatches] * 2
