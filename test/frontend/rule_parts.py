"""Comparing ops on parts with ops on the whole, as their rules say that they belong together."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any

import torch
from piper.frontend.rules import rule_of
from torch import Tensor, fx
from torch._ops import OpOverload
from torch.utils import _pytree as pytree

__all__ = ["Args", "check_parts", "node_of", "tensors"]

Args = tuple[Any, ...]


@dataclass(frozen=True)
class PartOp:
    """Which op takes parts of which dims, after which other, and which of its results is whole."""

    names: list[str]
    op: OpOverload
    stats: OpOverload | None
    same: int | None

    @staticmethod
    def parse(entry: str) -> PartOp:
        names, _, rest = entry.partition(" by ")
        op, *pairs = rest.split()
        more = dict(zip(pairs[::2], pairs[1::2], strict=True))
        assert more.keys() <= {"after", "same"}
        stats = overload(more["after"]) if "after" in more else None
        return PartOp(
            names.split(), overload(op), stats, int(more["same"]) if "same" in more else None
        )


def overload(name: str) -> OpOverload:
    namespace, packet, variant = name.split(".")
    found: OpOverload = getattr(getattr(getattr(torch.ops, namespace), packet), variant)
    return found


@dataclass(frozen=True)
class Rule:
    """A rule, read: names by tensor and dim, and what stands behind the semicolon."""

    operands: list[list[str]]
    results: list[list[str]]
    sizes: dict[str, str]
    sums: set[str]
    linear: bool
    parts: list[PartOp]

    @staticmethod
    def parse(text: str) -> Rule:
        dims, _, behind = text.partition("; ")
        operands, results = ([t.split() for t in side.split(", ")] for side in dims.split("->"))
        entries = behind.split(", ") if behind else []
        sizes = dict(entry.split(" = ") for entry in entries if " = " in entry)
        sums = {entry.removeprefix("sum ") for entry in entries if entry.startswith("sum ")}
        parts = [PartOp.parse(entry) for entry in entries if " by " in entry]
        assert len(sizes) + len(sums) + len(parts) + ("linear" in entries) == len(entries)
        return Rule(operands, results, sizes, sums, "linear" in entries, parts)

    def shared(self) -> set[str]:
        """The factors of which operands and results both have dims."""
        sides = (self.operands, self.results)
        left, right = ({name for names in side for name in names} for side in sides)
        return (left & right) - {"1"}


def node_of(op: OpOverload, args: Args, kwargs: dict[str, Any] | None = None) -> fx.Node:
    """The op as a node of a graph, with its operands and results."""
    graph = fx.Graph()

    def placeholder(value: Any) -> Any:
        if not isinstance(value, Tensor):
            return value
        node = graph.placeholder("x")
        node.meta["val"] = value
        return node

    node = graph.call_function(op, *pytree.tree_map(placeholder, (args, kwargs or {})))
    node.meta["val"] = op(*args, **kwargs or {})
    return node


def tensors(tree: Any) -> list[Tensor]:
    return [leaf for leaf in pytree.tree_leaves(tree) if isinstance(leaf, Tensor)]


def read_rule(op: OpOverload, args: Args) -> Rule:
    """The rule of an op: it has as many names as there are dims."""
    text = rule_of(node_of(op, args))
    assert text is not None, op
    rule = Rule.parse(text)
    whole = tensors(op(*args))
    for names, value in [
        *zip(rule.operands, tensors(args), strict=True),
        *zip(rule.results, whole, strict=True),
    ]:
        assert len(names) == value.dim()
        sizes = zip(names, value.shape, strict=True)
        assert all(size == 1 for name, size in sizes if name == "1")
    return rule


def check_parts(op: OpOverload, args: Args, *, tied: str = "") -> set[str]:
    """Compare parts with the whole, for each factor but the `tied` ones; return those factors."""
    rule, whole = read_rule(op, args), tensors(op(*args))
    free = (rule.shared() | rule.sums) - set(tied.split())
    for name in free:
        parts = [tensors(op(*cut_args(rule, args, name, part))) for part in (0, 1)]
        for index, (value, names) in enumerate(zip(whole, rule.results, strict=True)):
            found = [part[index] for part in parts]
            if name in names:
                wanted = [cut(value, names, name, part) for part in (0, 1)]
                torch.testing.assert_close(found, wanted, equal_nan=True)
            elif name in rule.sums:
                torch.testing.assert_close(found[0] + found[1], value)
            else:
                torch.testing.assert_close(found, [value, value])
    if rule.linear:
        check_linear(op, args)
    for part_op, count in itertools.product(rule.parts, (1, 2, 4)):
        check_part_op(rule, part_op, args, whole, count=count)
    return free


def check_part_op(
    rule: Rule, part_op: PartOp, args: Args, whole: list[Tensor], *, count: int
) -> None:
    """Compare what another op makes of parts, of which the last ones have padding, with the whole:
    padding of operands is anything, that of results is zero.
    """
    sides = zip((*rule.operands, *rule.results), (*tensors(args), *whole), strict=True)
    [size] = {
        size
        for names, value in sides
        for name, size in zip(names, value.shape, strict=True)
        if name in part_op.names
    }
    calls = [
        (pad_args(rule, part_op, args, index, count), {"index": torch.tensor([index])})
        for index in range(count)
    ]
    about: dict[str, Any] = {"parts": count, "size": size}
    if part_op.stats is not None:
        dim = next(d for d, name in enumerate(rule.results[0]) if name in part_op.names)
        made = [part_op.stats(*part, **index, **about) for part, index in calls]
        assert all(one.shape[dim] == 1 for one in made)
        about["stats"] = torch.cat(made, dim)
    found = [tensors(part_op.op(*part, **index, **about)) for part, index in calls]
    for number, (value, names) in enumerate(zip(whole, rule.results, strict=True)):
        parts = [result[number] for result in found]
        dims = [dim for dim, name in enumerate(names) if name in part_op.names]
        if dims:
            joined = torch.cat(parts, dims[0])
            torch.testing.assert_close(joined.narrow(dims[0], 0, size), value)
            assert not joined.narrow(dims[0], size, joined.shape[dims[0]] - size).any()
        elif number == part_op.same:
            torch.testing.assert_close(parts, [value] * count)
        else:
            torch.testing.assert_close(sum(parts), value)


def pad_args(rule: Rule, part_op: PartOp, args: Args, index: int, count: int) -> Args:
    """The arguments of an op on one of several parts, with noise behind the whole."""
    operands = iter(rule.operands)

    def pad_one(value: Any) -> Any:
        if not isinstance(value, Tensor):
            return value
        for dim, name in enumerate(next(operands)):
            if name in part_op.names:
                missing = -value.shape[dim] % count
                noise = torch.rand_like(value).repeat_interleave(max(1, missing), dim)
                value = torch.cat([value, noise.narrow(dim, 0, missing)], dim)
                value = value.chunk(count, dim)[index].contiguous()
        return value

    def size(place: int, value: Any) -> Any:
        return -(-value // count) if rule.sizes.get(str(place)) in part_op.names else value

    padded = pytree.tree_map(pad_one, args)
    return tuple(size(place, value) for place, value in enumerate(padded))


def check_linear(op: OpOverload, args: Args) -> None:
    """Operands that add up give results that do."""
    leaves, spec = pytree.tree_flatten(args)
    some = [leaf * torch.rand_like(leaf) if isinstance(leaf, Tensor) else leaf for leaf in leaves]
    pairs = zip(leaves, some, strict=True)
    rest = [leaf - part if isinstance(leaf, Tensor) else leaf for leaf, part in pairs]
    first, second = (tensors(op(*pytree.tree_unflatten(part, spec))) for part in (some, rest))
    for total, *parts in zip(tensors(op(*args)), first, second, strict=True):
        torch.testing.assert_close(parts[0] + parts[1], total)


def cut_args(rule: Rule, args: Args, name: str, part: int) -> Args:
    """The arguments of an op on one half of a factor."""
    names = iter(rule.operands)

    def size(place: str, value: Any) -> Any:
        if isinstance(value, list):
            return [size(f"{place}.{item}", entry) for item, entry in enumerate(value)]
        return value // 2 if rule.sizes.get(place) == name else value

    parts = [size(str(place), value) for place, value in enumerate(args)]

    def cut_one(value: Any) -> Any:
        return cut(value, next(names), name, part) if isinstance(value, Tensor) else value

    return tuple(pytree.tree_map(cut_one, parts))


def cut(value: Tensor, names: list[str], name: str, part: int) -> Tensor:
    """One half of each dim of a name; contiguous, as arguments of kernels are."""
    for dim, other in enumerate(names):
        if other == name:
            value = value.chunk(2, dim)[part]
    return value.contiguous()
