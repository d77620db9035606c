"""What docs/tensors.md shows is what docs/tensors.py compiles, and what the table of rules says."""

from __future__ import annotations

import re
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from piper.frontend.rules import rule_of
from torch import fx
from torch.utils import _pytree as pytree

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "tensors.md").read_text()

aten = torch.ops.aten


def test_strategy_is_that_of_the_script() -> None:
    _, body = (ROOT / "docs" / "tensors.py").read_text().split("    return piper.Strategy(\n")
    arguments = textwrap.dedent(body.partition("\n    )\n")[0])
    assert arguments.count("piper.") == 14
    assert f"piper.Strategy(\n{textwrap.indent(arguments, '    ')}\n)\n" in PAGE


def rows() -> dict[str, str]:
    """The rules of the page, by what they are of."""
    table = PAGE.split("| op | rule |\n|---|---|\n")[1].split("\n\n")[0]
    return dict(re.findall(r"^\| (.+) \| `(.+)` \|$", table, re.MULTILINE))


def zeros(*shape: int) -> torch.Tensor:
    return torch.zeros(shape)


def indices(*shape: int) -> torch.Tensor:
    return torch.zeros(shape, dtype=torch.int64)


HEADS = zeros(1, 2, 3, 4)
CALLS: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "product": (aten.mm.default, (zeros(2, 3), zeros(3, 4))),
    "sum of rows and a bias": (aten.add.Tensor, (zeros(2, 3), zeros(3))),
    "sort along dim 1": (aten.sort.default, (zeros(2, 3), 1)),
    "view of 4 x 16 as 4 x 2 x 8": (aten.view.default, (zeros(4, 16), [4, 2, 8])),
    "two tensors joined along dim 1": (aten.cat.default, ([zeros(2, 3), zeros(2, 4)], 1)),
    "embedding": (aten.embedding.default, (zeros(5, 3), indices(2, 4))),
    "layer norm of rows": (
        aten.native_layer_norm.default,
        (zeros(2, 3), [3], zeros(3), zeros(3), 1e-5),
    ),
    "attention": (
        torch.ops.piper.attention.default,
        (HEADS, HEADS, HEADS, None, True, 1.0, 0),
    ),
}


def test_all_rules_are_tested() -> None:
    assert rows().keys() == CALLS.keys()


@pytest.mark.parametrize("name", CALLS)
def test_rule_is_that_of_the_op(name: str) -> None:
    op, args = CALLS[name]
    graph = fx.Graph()

    def placeholder(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        node = graph.placeholder("x")
        node.meta["val"] = value
        return node

    node = graph.call_function(op, pytree.tree_map(placeholder, args))
    node.meta["val"] = op(*args)
    assert rule_of(node) == rows()[name]


@pytest.mark.slow
def test_what_ranks_hold_and_exchange_is_what_the_script_prints(tmp_path: Path) -> None:
    """It fails if the programs exchange other bytes than formulas say."""
    command = [sys.executable, str(ROOT / "docs" / "tensors.py"), "out"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    shown = PAGE.split("$ python docs/tensors.py out\n")[1].partition("```")[0]
    assert [line.rstrip() for line in done.stdout.splitlines()] == shown.splitlines()
