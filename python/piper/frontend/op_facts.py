"""Facts about ops: effects from the schema, FLOPs, layout and rule from a node's fake tensors."""

from __future__ import annotations

import math
import operator
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, fx
from torch._ops import OpOverload
from torch.utils import _pytree as pytree
from torch.utils.flop_counter import flop_registry

from piper.frontend.rules import rule_of

__all__ = ["Effects", "OpFacts", "effects", "is_random", "node_facts"]

Effects = Literal["pure", "view", "random", "mutating", "host_sync"]

aten = torch.ops.aten
own = torch.ops.piper

# Ops whose schema hides what they are.
_EXPLICIT: dict[OpOverload, Effects] = {
    aten._unsafe_view.default: "view",
    aten._reshape_alias.default: "view",
    aten.lift_fresh_copy.default: "pure",
    # Tagged for boolean masks, whose results have symbolic shapes and are refused for that.
    aten.index.Tensor: "pure",
    aten._local_scalar_dense.default: "host_sync",
    aten.is_nonzero.default: "host_sync",
}
# Arguments that are the probability of a random op: it is pure at 0.
_PROBABILITIES = ("p", "dropout_p", "dropout")
# What is as costly to do twice as the ops that torch has a FLOP formula for: other products, and
# exchanges between ranks with the order of what they exchange.
_COSTLY = frozenset(
    {
        aten._grouped_mm,
        aten._scaled_dot_product_flash_attention_for_cpu,
        aten._scaled_dot_product_flash_attention_for_cpu_backward,
        aten._scaled_dot_product_fused_attention_overrideable,
        aten._scaled_dot_product_fused_attention_overrideable_backward,
        own.moe_sort,
        own.moe_exchange_counts,
        own.moe_dispatch,
        own.moe_collect,
    }
)
_FREE: tuple[Effects, ...] = ("view", "host_sync")


@dataclass(frozen=True, slots=True)
class OpFacts:
    """What the compiler knows of one op.

    Its effects, its FLOPs, whether a captured result is not contiguous, whether it is too costly to
    compute twice, which argument, if any, is the list of flags that says which of its results are
    computed, and how dims of operands belong to those of results, if that is known (``rules``).
    """

    effects: Effects
    flops: int
    strided: bool
    heavy: bool = False
    mask: int | None = None
    rule: str | None = None


def effects(op: OpOverload) -> Effects:
    """Return the effects of ``op``: from the explicit table, else its tags, else the alias
    information of its schema.

    A view returns an alias of an argument that it does not write to.
    """
    if op in _EXPLICIT:
        return _EXPLICIT[op]
    if op._schema.is_mutable:
        return "mutating"
    if torch.Tag.nondeterministic_seeded in op.tags:
        return "random"
    if torch.Tag.data_dependent_output in op.tags or torch.Tag.dynamic_output_shape in op.tags:
        return "host_sync"
    return "view" if any(result.alias_info is not None for result in op._schema.returns) else "pure"


def is_random(node: fx.Node) -> bool:
    """Return whether ``node`` draws random numbers: its op is random and no probability argument is
    zero.
    """
    op = node.target
    if not isinstance(op, OpOverload) or effects(op) != "random":
        return False
    probabilities = [value for name, value in arguments(node) if name in _PROBABILITIES]
    return not probabilities or any(value != 0.0 for value in probabilities)


def arguments(node: fx.Node) -> Iterator[tuple[str, Any]]:
    """Yield (name, value) of every argument of an ATen node, defaults included."""
    op = node.target
    assert isinstance(op, OpOverload)
    for position, argument in enumerate(op._schema.arguments):
        if position < len(node.args):
            yield argument.name, node.args[position]
        elif argument.name in node.kwargs:
            yield argument.name, node.kwargs[argument.name]
        elif argument.has_default_value():
            yield argument.name, argument.default_value


def node_facts(node: fx.Node) -> OpFacts:
    """Return the facts of an op node of a capture (``getitem`` is a free view)."""
    strided = any(not value.is_contiguous() for value in _tensors(node.meta["val"]))
    if node.target is operator.getitem:
        return OpFacts("view", 0, strided)
    op = node.target
    assert isinstance(op, OpOverload), node.target
    kind = effects(op)
    if kind == "random" and not is_random(node):
        kind = "pure"
    flops = 0 if kind in _FREE else _flops(node, op)
    heavy = op.overloadpacket in flop_registry or op.overloadpacket in _COSTLY
    return OpFacts(kind, flops, strided, heavy, _mask(op), rule_of(node))


def _mask(op: OpOverload) -> int | None:
    """Return the position of the argument that ATen's backward ops of several results share."""
    names = [argument.name for argument in op._schema.arguments]
    return names.index("output_mask") if "output_mask" in names else None


def _flops(node: fx.Node, op: OpOverload) -> int:
    """Return torch's formula for the op where it has one, else one per element of the largest
    tensor it touches.
    """
    args, kwargs = fx.node.map_arg((node.args, node.kwargs), lambda arg: arg.meta["val"])
    formula = flop_registry.get(op.overloadpacket)
    if formula is not None:
        return int(formula(*args, **kwargs, out_val=node.meta["val"]))
    return max((math.prod(t.shape) for t in _tensors((args, kwargs, node.meta["val"]))), default=0)


def _tensors(tree: Any) -> list[Tensor]:
    return [leaf for leaf in pytree.tree_leaves(tree) if isinstance(leaf, Tensor)]
