"""The bytes that ranks move in a step are those of the textbook's formulas, policy by policy.

Every rank's transport is asked what it was handed, and the formulas know the model alone: P bytes
of parameters, in L layers, M microbatches on n ranks.

    all_reduce      2 (n-1)/n P    gradients, where every rank keeps the whole sum
    reduce_scatter    (n-1)/n P    gradients, where it keeps its part
    all_gather        (n-1)/n P    states
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable
from fractions import Fraction
from functools import cache
from typing import Any, Literal

import pytest
import torch
from piper_runtime import Trainer
from sharded import Sharded
from strategies import Captures
from torch import Tensor, nn
from weighing import Weighing

LAYERS, WIDTH, MICROBATCHES = 4, 8, 4
LAYER = WIDTH * 8  # bytes, in fp64
Reduce = Literal["last", "each"]
REDUCTIONS: tuple[Reduce, ...] = ("last", "each")
Gather = tuple[Literal["each", "group", "step"] | None, int | None]
LATER: list[Gather] = [(None, None), ("step", None), ("step", 3)]
AGAIN: list[Gather] = [
    *(("each", prefetch) for prefetch in (0, 1, 3)),
    *(("group", prefetch) for prefetch in (0, 1, 3)),
    ("step", None),
]
SHARES: dict[str, Callable[[int], Fraction]] = {
    "all_reduce": lambda n: Fraction(2 * (n - 1), n),
    "reduce_scatter": lambda n: Fraction(n - 1, n),
    "all_gather": lambda n: Fraction(n - 1),
}
"""What part of its operand one of n ranks sends."""
GATHERS: tuple[list[Gather], ...] = ([(None, None)], LATER, LATER, AGAIN)


def cases(pp: int, n: int) -> list[Any]:
    """All policies; slow but one of each stage, and on a pipeline without shared gathers."""
    found = []
    for zero, reduce in itertools.product(range(4), REDUCTIONS):
        for gather, prefetch in GATHERS[zero]:
            if pp > 1 and gather == "group":
                continue  # how many runs follow each other depends on the schedule
            case = Sharded(
                "1F1B", pp, n, MICROBATCHES,
                zero=zero, reduce=reduce, gather=gather, prefetch=prefetch,
            )  # fmt: skip
            quick = pp == 1 and reduce == REDUCTIONS[zero % 2] and (gather, prefetch) in (
                (None, None), ("group", 1)
            )  # fmt: skip
            found.append(pytest.param(case, id=str(case), marks=[] if quick else pytest.mark.slow))
    return found


class Layer(nn.Module):
    """Multiplies by a vector."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(WIDTH, dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.weight


class Layers(nn.Module):
    """Layers one behind the other, each a chunk and a bucket."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer() for _ in range(LAYERS))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


def output(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    """The sum of the outputs."""
    loss: Tensor = model(batch["x"]).sum()
    return loss


def sgd(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    """Plain SGD."""
    return torch.optim.SGD(parameters, lr=1.0)


@cache
def layers() -> Captures:
    return Captures(Layers(), output)


def formulas(case: Sharded, stage: int) -> dict[str, Fraction]:
    """Bytes that a rank of a stage sends in a step, by kind.

    The backward of the first layer does not read its weight: nobody asks for the gradient of the
    batch. Runs in a row that share a gather are both passes of the last layer.
    """
    n, held = case.dp, LAYERS // case.pp
    once = Fraction(n - 1, n) * held * LAYER
    reductions = MICROBATCHES if case.reduce == "each" else 1
    if case.zero == 0 or (case.zero == 1 and case.reduce == "each"):
        found = {"all_reduce": 2 * reductions * once}
    else:
        found = {"reduce_scatter": reductions * once}
    if case.zero in (1, 2) or case.gather == "step":
        return found | {"all_gather": once}
    if case.zero == 3:
        uses = MICROBATCHES * (2 * held - (stage == 0) - (case.gather == "group"))
        return found | {"all_gather": uses * once / held}
    return found


@pytest.mark.parametrize("case", [*cases(pp=1, n=4), *cases(pp=2, n=2)])
def test_ranks_move_what_the_formulas_say(case: Sharded) -> None:
    """In the second step, since what is gathered into the next one is there from the first on."""
    batch = {"x": torch.ones(case.parts, WIDTH, dtype=torch.float64)}
    stages = case.stages
    strategy = case.strategy({"layers.*": "layer"}, sgd, stages=stages)
    transport = Weighing()
    program = layers().compile(strategy, batch)
    trainer = Trainer(program, model=layers().model, optimizer=sgd, transport=transport)
    trainer.step(batch)
    first = Counter(transport.operands)
    trainer.step(batch)
    trainer.close()
    moved = transport.operands - first
    for rank in range(case.pp * case.dp):
        found = {
            kind: SHARES[kind](case.dp) * operand
            for (at, kind), operand in moved.items()
            if at == rank
        }
        assert found == formulas(case, rank // case.dp), f"rank {rank}"
