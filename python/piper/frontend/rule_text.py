"""The text of a rule: what it is made of, and what it says."""

from __future__ import annotations

import itertools
import string
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx
from torch._ops import OpOverload
from torch.utils import _pytree as pytree

__all__ = [
    "Rule",
    "argument",
    "by_part",
    "fresh_names",
    "operands",
    "results",
    "rule_text",
    "shapes",
    "sizes_in",
    "take",
]

Names = Sequence[str]


def fresh_names() -> Iterator[str]:
    """Yield a, b, ..., z, a1, b1, ..."""
    for number in itertools.count():
        yield from (f"{letter}{number or ''}" for letter in string.ascii_lowercase)


def take(fresh: Iterator[str], count: int) -> list[str]:
    """Return the next names."""
    return list(itertools.islice(fresh, count))


def operands(node: fx.Node) -> list[fx.Node]:
    """Return the operands in the order in which the dialect numbers them."""
    found: list[fx.Node] = []
    keywords = {name: node.kwargs[name] for name in sorted(node.kwargs)}
    fx.node.map_arg((node.args, keywords), found.append)
    return found


def shapes(node: fx.Node) -> list[torch.Size]:
    """Return the shape of each operand."""
    return [operand.meta["val"].shape for operand in operands(node)]


def results(node: fx.Node) -> list[Tensor]:
    """Return the results that are tensors."""
    return [leaf for leaf in pytree.tree_leaves(node.meta["val"]) if isinstance(leaf, Tensor)]


def argument(node: fx.Node, name: str) -> Any:
    """Return an argument by the name that the schema gives it."""
    op = node.target
    assert isinstance(op, OpOverload)
    names = [argument.name for argument in op._schema.arguments]
    position = names.index(name)
    if position < len(node.args):
        return node.args[position]
    return node.kwargs.get(name, op._schema.arguments[position].default_value)


def sizes_in(node: fx.Node, position: int, names: Names) -> list[str]:
    """Say which items of a list of sizes are those of which dims; -1 follows from the others."""
    sizes = node.args[position]
    assert isinstance(sizes, (list, tuple))
    pairs = enumerate(zip(sizes, names, strict=True))
    return [f"{position}.{item} = {name}" for item, (size, name) in pairs if size != -1]


def rule_text(inputs: Sequence[Names], outputs: Sequence[Names], more: Iterable[str] = ()) -> str:
    """Return ``a b, b -> a b; linear``; ``more`` is what stands behind the semicolon."""
    sides = (", ".join(" ".join(names) for names in side) for side in (inputs, outputs))
    text, behind = " -> ".join(sides), ", ".join(more)
    return f"{text}; {behind}" if behind else text


def by_part(
    node: fx.Node, names: Iterable[str], op: str, *, after: str = "", same: int | None = None
) -> list[str]:
    """Say which op of Piper's takes parts of a factor, whose dims have these ``names``.

    It gets which part it is by keyword, so that nothing is said of a call with keywords.
    """
    if node.kwargs:
        return []
    words = [*names, "by", f"piper.{op}.default"]
    words += ["after", f"piper.{after}.default"] if after else []
    words += [] if same is None else ["same", str(same)]
    return [" ".join(words)]


@dataclass(frozen=True, slots=True)
class Rule:
    """What a rule says of the dims of operands and results, and which factors results sum over."""

    operands: list[list[str]]
    results: list[list[str]]
    sums: frozenset[str]
    linear: bool

    @staticmethod
    def parse(text: str) -> Rule:
        """Read the text of a rule."""
        dims, _, behind = text.partition("; ")
        inputs, outputs = (
            [names.split() for names in side.split(",")] for side in dims.split("->")
        )
        entries = behind.split(", ")
        sums = (entry.removeprefix("sum ") for entry in entries if entry.startswith("sum "))
        return Rule(inputs, outputs, frozenset(sums), "linear" in entries)
