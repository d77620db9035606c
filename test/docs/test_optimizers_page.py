"""What docs/optimizers.md says of factories is so."""

from __future__ import annotations

import copy
import re
from pathlib import Path
from typing import Any

import piper
import pytest
import torch
from piper_runtime.states.optimizer import ELEMENTWISE, TakesNames, call_factory
from torch import Tensor, nn
from torch.nn import functional

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "optimizers.md").read_text()


FACTORIES, _, RATES = PAGE.partition("## Learning rates that change")
BLOCK = re.compile(r"```python\n(.*?)```", re.DOTALL)


def factories() -> list[Any]:
    """What the blocks of the page define, in order."""
    found = []
    for block in BLOCK.findall(FACTORIES):
        names: dict[str, Any] = {"piper": piper, "torch": torch}
        exec(block, names)  # noqa: S102 (the page is ours)
        found.append(names["make_adamw"])
    return found


def test_factories_of_the_page_make_groups() -> None:
    plain, by_name = factories()
    model = nn.ModuleDict({"fc": nn.Linear(2, 3), "norm": nn.LayerNorm(3)})
    named = list(model.named_parameters())
    assert not isinstance(plain, TakesNames)
    [group] = call_factory(plain, named).param_groups
    assert len(group["params"]) == 4
    first, second = call_factory(by_name, named).param_groups
    assert [len(group["params"]) for group in (first, second)] == [1, 3]
    assert (first["weight_decay"], second["weight_decay"]) == (0.1, 0.0)


def test_every_class_is_named() -> None:
    said = PAGE.split("element by element: ")[1].partition(" of `torch.optim`")[0]
    assert re.findall(r"`(\w+)`", said) == list(ELEMENTWISE)


def test_groups_may_be_empty_but_not_half_of_pairs() -> None:
    """Torch's rule, for which the page has a way."""
    parameter = nn.Parameter(torch.ones(2))
    bare: list[dict[str, Any]] = [{"params": [parameter]}, {"params": []}]
    torch.optim.AdamW(bare)
    pairs: list[dict[str, Any]] = [{"params": [("w", parameter)]}, {"params": []}]
    with pytest.raises(ValueError, match="names"):
        torch.optim.AdamW(pairs)


# Learning rates.

MESH = {"pp": 2, "dp": 2}
DIRECTIVES = (
    piper.annotate({"*": "layer"}),
    piper.split(microbatches=2),
    piper.place(stages=2),
    piper.order("1F1B"),
)


def mean_square(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    return functional.mse_loss(model(batch["x"]), batch["y"])


def inputs() -> list[dict[str, Tensor]]:
    generator = torch.Generator().manual_seed(0)
    rows = [torch.randn(8, 5, generator=generator, dtype=torch.float64) for _ in range(4)]
    return [{"x": row, "y": row.flip(1)} for row in rows]


def plain(model: nn.Module) -> tuple[dict[str, Tensor], float]:
    """States and learning rate after the steps of one process, with the scheduler of the page."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, eps=1e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.05, total_steps=10)
    for batch in inputs():
        optimizer.zero_grad()
        mean_square(model, batch).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        schedule.step()
    return model.state_dict(), optimizer.param_groups[0]["lr"]


@pytest.mark.parametrize("zero", [0, 3])
def test_schedules_of_the_page(zero: int) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 7), nn.ReLU(), nn.Linear(7, 5)).double()
    first, second = BLOCK.findall(RATES)
    names: dict[str, Any] = {"piper": piper, "torch": torch, "batches": inputs()}
    exec(first, names)  # noqa: S102 (the page is ours)
    strategy = piper.Strategy(
        mesh=MESH,
        directives=[*DIRECTIVES, piper.replicate(zero=zero), piper.update(names["make_adamw"])],
    )
    names["program"] = piper.compile(model, mean_square, strategy, inputs()[0])
    exec(second, names)  # noqa: S102 (the page is ours)
    states = names["trainer"].full_state_dict()
    wanted, rate = plain(copy.deepcopy(model))
    assert max(float((states[name] - wanted[name]).abs().max()) for name in wanted) < 1e-10
    assert {optimizer.param_groups[0]["lr"] for optimizer in names["optimizers"]} == {rate}
    assert rate != 1e-2
