"""What docs/optimizers.md says of factories is so."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import piper
import pytest
import torch
from piper_runtime.optimizer import ELEMENTWISE, TakesNames, call_factory
from torch import nn

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "optimizers.md").read_text()


def factories() -> list[Any]:
    """What the blocks of the page define, in order."""
    found = []
    for block in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL):
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
