"""One forward pass, captured for the examples of a microbatch and for those of the whole batch.

    sum / len(x)          div(sum, 8)            div(sum, 32)           refused
    x.flatten(0, 1)       view(x, [8 * T, D])    view(x, [32 * T, D])   a size

A program computes a loss microbatch by microbatch, plain PyTorch at once. Numbers of Python do not
tell what they were made from, so that the ops of both captures are compared: they are the same, up
to sizes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import torch
from torch import fx
from torch._ops import OpOverload
from torch.utils import _pytree as pytree

from piper.frontend.coupling.follow import SIZES
from piper.frontend.coupling.found import Op
from piper.frontend.data import CaptureError, role
from piper.frontend.joint import needed_by
from piper.frontend.sites import node_site

__all__ = ["check_call", "differs", "forward_text", "origin", "pair_ops"]

aten = torch.ops.aten

# What leaves values as they are. Whether a copy is needed may depend on sizes of one element.
_COPIES: Final = frozenset({aten.clone.default, aten.alias.default, aten.detach.default})
_SAME: Final[Mapping[object, object]] = {aten._unsafe_view.default: aten.view.default}
_CURE: Final = (
    "in a program, which computes the loss microbatch by microbatch, it would be another; use a "
    'mean (or reduction="mean"), a sum without the division, or what each example has for itself, '
    "or compile for one microbatch on one rank"
)


def pair_ops(here: fx.Node, whole: fx.Node, counts: tuple[int, int]) -> Iterator[Op]:
    """Yield the ops and placeholders that a loss is made of, in order, captured for ``counts``
    examples each.

    Raises CaptureError, with a source line, for the first op that differs in more than sizes.
    """
    sides = [_ordered(loss) for loss in (here, whole)]
    left = iter([*sides[0], None])
    first = next(left)
    known: dict[fx.Node, fx.Node] = {}  # by the second of a pair
    for second in sides[1]:
        spread = _spread(first, second, known) if counts[0] == 1 else None
        if spread is None and first is not None:
            _check(first, second, known, counts)
        elif spread is None:
            raise differs(second, counts, "how many ops are needed", *map(len, sides))
        pair = spread or first
        assert pair is not None
        known[second] = pair
        yield Op(pair, second)
        if spread is None:
            first = next(left)
    if first is not None:
        raise differs(first, counts, "how many ops are needed", *map(len, sides))


def _spread(
    first: fx.Node | None, second: fx.Node, known: Mapping[fx.Node, fx.Node]
) -> fx.Node | None:
    """Return the value that need not be spread over examples, where there is one alone."""
    expand = aten.expand.default
    if second.target is not expand or (first is not None and first.target is expand):
        return None
    return known.get(origin(second.all_input_nodes[0]))


def _ordered(loss: fx.Node) -> list[fx.Node]:
    needed = needed_by([loss])
    return [node for node in loss.graph.nodes if node in needed and node.target not in _COPIES]


def origin(node: fx.Node) -> fx.Node:
    """Return what a value is a copy of."""
    while node.target in _COPIES:
        node = node.all_input_nodes[0]
    return node


def _check(
    first: fx.Node, second: fx.Node, known: Mapping[fx.Node, fx.Node], counts: tuple[int, int]
) -> None:
    if first.op == "placeholder" or second.op == "placeholder":
        if first.op == second.op and role(first) == role(second):
            return
        names = [str(node.meta.get("role", node.target)) for node in (first, second)]
        raise differs(next(iter(first.users)), counts, "what is read", *names)
    check_call(first, second, known, counts)


def check_call(
    first: fx.Node,
    second: fx.Node,
    known: Mapping[fx.Node, fx.Node],
    counts: tuple[int, int],
    *,
    partly: bool = False,
) -> None:
    """Refuse two calls that are not of one op, with operands that belong together and arguments
    that are equal up to sizes; ``partly`` leaves operands that are not ``known`` out.
    """
    targets = [_SAME.get(node.target, node.target) for node in (first, second)]
    if targets[0] != targets[1]:
        told = [f"{side.target} ({node_site(side)})" for side in (first, second)]
        raise differs(second, counts, "the op", *told)
    _check_arguments(first, second, known, counts, partly)
    shapes = [[len(value.shape) for value in _tensors(node)] for node in (first, second)]
    if shapes[0] != shapes[1]:
        raise differs(first, counts, f"the number of dims of op {first.target}", *shapes)


def _check_arguments(
    first: fx.Node,
    second: fx.Node,
    known: Mapping[fx.Node, fx.Node],
    counts: tuple[int, int],
    partly: bool,
) -> None:
    allowed = SIZES.get(first.target, ())
    sides = [_arguments(node) for node in (first, second)]
    for name in sides[0]:
        old, new = (side.get(name) for side in sides)
        if name == "memory_format" or (name in allowed and _are_sizes(old, new)):
            continue
        for one, other in zip(*map(_leaves, (old, new)), strict=False):
            both_nodes = isinstance(one, fx.Node) and isinstance(other, fx.Node)
            same = one == other
            if both_nodes:
                expected = known.get(origin(other))
                same = expected is origin(one) or (partly and expected is None)
            if not same:
                raise differs(first, counts, f"argument {name!r} of op {first.target}", one, other)
        lengths = [len(_leaves(value)) for value in (old, new)]
        if lengths[0] != lengths[1]:
            raise differs(first, counts, f"argument {name!r} of op {first.target}", old, new)


def _are_sizes(old: Any, new: Any) -> bool:
    lengths = [len(_leaves(value)) for value in (old, new)]
    return lengths[0] == lengths[1]


def _leaves(value: Any) -> list[Any]:
    return pytree.tree_leaves(value, is_leaf=lambda leaf: leaf is None)


def _arguments(node: fx.Node) -> dict[str, Any]:
    names = (
        [argument.name for argument in node.target._schema.arguments]
        if isinstance(node.target, OpOverload)
        else []
    )
    names += [str(position) for position in range(len(names), len(node.args))]
    return {**dict(zip(names, node.args, strict=False)), **node.kwargs}


def _tensors(node: fx.Node) -> list[torch.Tensor]:
    leaves = pytree.tree_leaves(node.meta["val"])
    return [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]


def differs(
    node: fx.Node, counts: tuple[int, int], what: str, old: object, new: object
) -> CaptureError:
    """Return the error for what is not the same for both numbers of examples."""
    return CaptureError(
        f"{node_site(node)}: the loss depends on how many examples there are: {what} is {old} for "
        f"{counts[0]} and {new} for {counts[1]}; {_CURE}"
    )


def forward_text(losses: Iterable[fx.Node]) -> str:
    """Return all that losses are made of as text, without names: alike for alike forward passes."""
    numbers: dict[fx.Node, int] = {}
    lines: list[str] = []
    wanted: Sequence[fx.Node] = list(losses)
    needed = needed_by(wanted)
    for node in wanted[0].graph.nodes if wanted else ():
        if node in needed:
            numbers[node] = len(numbers)
            told = role(node) if node.op == "placeholder" else node.target
            given = fx.node.map_arg((node.args, node.kwargs), lambda arg: f"%{numbers[arg]}")
            lines.append(f"{told} {given} {[value.shape for value in _tensors(node)]}")
    return "\n".join([*lines, *(f"%{numbers[node]}" for node in wanted)])
