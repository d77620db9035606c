"""No slip with what ranks exchange in a step, as a user's pass may make, trains something else."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

import piper
import pytest
import torch
from compiled import Compiled, compiled, refusal
from families import SHARED_LAYERS
from oracle import check_steps, sgd
from piper.emit import emit_kernels
from piper.mlir import ir
from piper.mlir.passmanager import PassManager
from step_slips import STEP_SLIPS, exchanges_of
from torch import Tensor, nn

REST = "piper-verify,piper-record,piper-materialize,piper-lower"
LEVELS = {
    "partitioned": (
        "step",
        "piper-remat,piper-shard,piper-partition",
        f"piper-outline-chunks,{REST}",
    ),
    "outlined": ("chunks", "", REST),
}
"""Which text is changed, the passes before, and those that must see it."""


@dataclass(frozen=True)
class Mutant:
    """One change of one exchange."""

    slip: str
    place: int
    number: int


@cache
def text_of(family: str, level: str) -> str:
    name, before, _ = LEVELS[level]
    with ir.Context():
        module = ir.Module.parse(compiled(SHARED_LAYERS[family]).level(name))
        PassManager.parse(f"builtin.module({before})").run(module.operation)
        return str(module.operation.get_asm(enable_debug_info=True))


@cache
def mutants(family: str, level: str) -> list[Mutant]:
    with ir.Context():
        module = ir.Module.parse(text_of(family, level))
        return [
            Mutant(name, place, number)
            for name, slip in STEP_SLIPS.items()
            for place, op in enumerate(exchanges_of(module))
            for number, _ in enumerate(slip(op))
        ]


def judge(family: str, level: str, some: list[Mutant]) -> Iterator[tuple[Mutant, str, str]]:
    """Yield what becomes of each: its outcome, and why."""
    base = compiled(SHARED_LAYERS[family])
    for mutant in some:
        with ir.Context():
            module = ir.Module.parse(text_of(family, level))
            op = exchanges_of(module)[mutant.place]
            list(STEP_SLIPS[mutant.slip](op))[mutant.number]()
            yield (mutant, *_judge(base, module, LEVELS[level][2]))


def _judge(base: Compiled, module: ir.Module, passes: str) -> tuple[str, str]:
    reason = refusal(module.operation, passes)
    if reason is not None:
        return "refused", reason
    try:
        steps = base.run(module, kernels=emit_kernels(module))
    except Exception as error:  # noqa: BLE001 (whatever it is, it is seen)
        return "failed at run", str(error)
    try:
        check_steps(steps, base.steps)
    except AssertionError as error:
        return "survived", str(error)
    return "equivalent", ""


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("family", SHARED_LAYERS)
def test_every_slip_with_an_exchange_of_a_step_is_refused(family: str, level: str) -> None:
    """None is harmless; of one that is not refused the reason says what it does."""
    tried = set()
    for mutant, outcome, reason in judge(family, level, mutants(family, level)):
        assert outcome == "refused", f"{mutant}: {outcome}: {reason}"
        tried.add(mutant.slip)
    assert {"drop", "repeat", "instead", "other axis"} <= tried


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("family", SHARED_LAYERS)
def test_an_unchanged_step_is_accepted(family: str, level: str) -> None:
    with ir.Context():
        module = ir.Module.parse(text_of(family, level))
        assert refusal(module.operation, LEVELS[level][2]) is None


# By a pass of a strategy.


class Chain(nn.Module):
    """Products with nothing between them."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down, self.last = (nn.Linear(4, 4, bias=False) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.last(self.down(self.up(x)))
        return y


def squares(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    loss: Tensor = model(batch["x"]).square().mean()
    return loss


def test_a_pass_that_drops_a_sum_between_two_products_is_refused() -> None:
    strategy = piper.Strategy(
        mesh={"tp": 2},
        directives=[
            piper.annotate({"up": "up", "down": "down", "last": "last"}),
            piper.shard("up.weight", axis="tp", dim=0),
            piper.shard("down.weight", axis="tp", dim=1),
            piper.update(sgd),
            piper.user_pass("step_slips:drop_first", at="chunks"),
        ],
    )
    with pytest.raises(piper.CompileError) as raised:
        piper.compile(Chain(), squares, strategy, {"x": torch.ones(2, 4)})
    text = str(raised.value)
    assert "user_pass 'step_slips:drop_first' at 'chunks' left a module that is not valid" in text
    assert (
        "aten.mm.default expected operands on axis 'tp' that go together by its rule "
        '"m k, k n -> m n; sum k", got partial, replicated' in text
    )
    assert "test_step_mutants.py" in text.partition("aten.mm.default expected")[0].splitlines()[-1]
