"""Rules: how the dims of an op's operands belong to those of its results.

    add(a, b)             "a b, b -> a b; linear"        b is broadcast
    mm(a, b)              "m k, k n -> m n; sum k"
    softmax(a, 1)         "a b -> a c"
    moe_linear(x, w, c)   "m i, e o i, r e -> m o; sum i"
    moe_sort(i, 8, 1)     "t k -> n, r e; 2 = r"

Dims of one name are one factor: where a rank has a part of one, it has the same part of the others.
A dim that must be whole has a name of its own on each side, and `1` is one element that is
broadcast. Behind the semicolon stands which arguments are the size of which factor (2: argument 2,
1.0: the first item of argument 1), over which factors results without them are sums, so that parts
of operands give parts of the sum, and whether the op is linear in all operands together, so that it
may be applied to parts of sums. Of an op without a rule nothing is known.

The rows of experts are no plain factors: a part of `m`, `e` or `r` is what the ops themselves make
of it, with counts of its own. Their names say which sizes change together.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final

import piper_runtime.ops  # noqa: F401  (registers the ops below)
import torch
from torch import fx
from torch._ops import OpOverload

from piper.frontend.attention_rules import ATTENTION_RULES
from piper.frontend.rule_checks import canonical, check_call, find_problems
from piper.frontend.rule_text import fresh_names, results, rule_text, shapes, take
from piper.frontend.shape_rules import SHAPE_RULES
from piper.frontend.whole_rules import WHOLE_RULES

__all__ = ["register_rule", "rule_of"]

aten = torch.ops.aten
own = torch.ops.piper

# Of matrix products and Piper's own ops, whose shapes always have these dims.
_FIXED: Final[Mapping[OpOverload, str]] = MappingProxyType(
    {
        aten.mm.default: "m k, k n -> m n; sum k",
        aten.bmm.default: "b m k, b k n -> b m n; sum k",
        own.moe_sort.default: "t k -> n, r e; 2 = r",
        own.moe_permute.default: "t d, n -> n d",
        own.moe_permute_backward.default: "n d, n -> t d",
        own.moe_exchange_counts.default: "r e -> r e",
        own.moe_dispatch.default: "n d, r e, r e -> m d",
        own.moe_group.default: "m d, r e -> m d",
        own.moe_linear.default: "m i, e o i, r e -> m o; sum i",
        own.moe_linear_input.default: "m o, e o i, r e -> m i; sum o",
        own.moe_linear_weight.default: "m o, m i, r e -> e o i",
        own.moe_ungroup.default: "m d, r e -> m d",
        own.moe_collect.default: "m d, r e, r e -> n d",
        own.moe_unpermute.default: "n d, n, t k -> t d",
        own.moe_unpermute_rows.default: "t d, n, t k -> n d",
        own.moe_unpermute_weights.default: "t d, n d, n -> t k; 3 = k, sum d",
    }
)
# Pointwise ops without torch's tag for them.
_POINTWISE: Final = frozenset(
    {
        aten.clone.default,
        aten._to_copy.default,
        aten.detach.default,
        aten.alias.default,
        aten.copy.default,
        aten.zeros_like.default,
        aten.ones_like.default,
        aten.full_like.default,
        aten.elu_backward.default,
        aten.hardsigmoid_backward.default,
        aten.hardswish_backward.default,
        aten.hardtanh_backward.default,
        aten.leaky_relu_backward.default,
        aten.mish_backward.default,
        aten.softplus_backward.default,
    }
)
# Of these, linear: in all operands, if each is a tensor, and in the first, if the second is none.
_LINEAR: Final = frozenset(
    {
        aten.clone.default,
        aten.detach.default,
        aten.alias.default,
        aten.neg.default,
        aten.add.Tensor,
        aten.sub.Tensor,
    }
)
_SCALED: Final = frozenset({aten.mul.Tensor, aten.div.Tensor, aten.mul.Scalar, aten.div.Scalar})


_registered: Final[dict[OpOverload, str]] = {}


def register_rule(op: OpOverload, rule: str) -> None:
    """Say how the dims of an op's operands belong to those of its results, as the top tells.

        piper.register_rule(torch.ops.mine.scaled_mm.default, "m k, k n,  -> m n; sum k")

    On parts of a factor the op then makes parts of the results, or terms of their sum if `sum` says
    so; a part of any other dim is made whole before. It holds for models that are compiled from
    then on. What the op computes is not looked at.

    Raises:
        TypeError: what is no overload of an op.
        ValueError: an op that writes to its arguments or has a rule; a malformed rule, or one for
            other numbers of operands and results than the op has.
    """
    if not isinstance(op, OpOverload):
        raise TypeError(
            "register_rule expected an op and its overload, such as torch.ops.mine.scale.default, "
            f"got {op!r}"
        )
    for problem in find_problems(op, rule):
        raise ValueError(f"register_rule of {op} expected {problem}")
    if op._schema.is_mutable:
        raise ValueError(f"register_rule of {op} expected an op that writes to no argument")
    text = canonical(rule)
    if op in _FIXED or op in _BY_NODE or op in _POINTWISE or torch.Tag.pointwise in op.tags:
        raise ValueError(f"register_rule of {op} expected an op for which Piper has no rule")
    if _registered.setdefault(op, text) != text:
        raise ValueError(
            f"register_rule of {op} expected one rule, got {text!r} and before {_registered[op]!r}"
        )


def rule_of(node: fx.Node) -> str | None:
    """Return the rule of an op node of a capture, at the shapes that it has there; or None."""
    op = node.target
    if not isinstance(op, OpOverload) or op._schema.is_mutable:
        return None
    if op in _FIXED:
        return _FIXED[op]
    if op in _BY_NODE:
        return _BY_NODE[op](node)
    if op in _registered:
        check_call(node, _registered[op])
        return _registered[op]
    random = torch.Tag.nondeterministic_seeded in op.tags
    if op in _POINTWISE or (torch.Tag.pointwise in op.tags and not random):
        return _pointwise(node)
    return None


def _pointwise(node: fx.Node) -> str | None:
    """Align dims from the last one."""
    sides, outputs = shapes(node), results(node)
    shape = torch.broadcast_shapes(*sides)  # type: ignore[no-untyped-call]
    if not sides or not outputs or any(output.shape != shape for output in outputs):
        return None  # such as `equal`, which torch tags as pointwise
    names = take(fresh_names(), len(shape))
    operands = []
    for side in sides:
        skipped = len(shape) - len(side)
        pairs = zip(names[skipped:], side, shape[skipped:], strict=True)
        operands.append([name if size == whole else "1" for name, size, whole in pairs])
    return rule_text(operands, [names for _ in outputs], ["linear"] * _is_linear(node))


def _is_linear(node: fx.Node) -> bool:
    """Return whether a pointwise op may be applied to parts of a sum."""
    operands = len(shapes(node))
    if node.target is aten._to_copy.default:
        # From a wider dtype, every part would be rounded.
        before, after = (value.meta["val"].dtype for value in (node.all_input_nodes[0], node))
        return bool(after.is_floating_point) and torch.promote_types(before, after) == after
    if node.target in _SCALED:
        return operands == 1 and isinstance(node.args[0], fx.Node)
    return node.target in _LINEAR and operands == len(node.args)


def _with_bias(node: fx.Node) -> str:
    """A product and a bias, which is added once: no sum over parts."""
    bias = shapes(node)[0]
    names = ["m", "n"][2 - len(bias) :]
    whole = results(node)[0].shape[2 - len(bias) :]
    pairs = zip(names, bias, whole, strict=True)
    broadcast = [name if size == wide else "1" for name, size, wide in pairs]
    return rule_text([broadcast, ["m", "k"], ["k", "n"]], [["m", "n"]])


_BY_NODE: Final[Mapping[OpOverload, Callable[[fx.Node], str | None]]] = MappingProxyType(
    {
        **ATTENTION_RULES,
        **SHAPE_RULES,
        **WHOLE_RULES,
        aten.addmm.default: _with_bias,
    }
)
