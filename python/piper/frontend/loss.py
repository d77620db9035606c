"""The loss contract: every loss becomes a sum over examples and, if it was a mean, a count made
from inputs only.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx
from torch._ops import OpOverload

from piper.frontend.data import CaptureError, role
from piper.frontend.joint import CleanGraph
from piper.frontend.op_facts import arguments
from piper.frontend.sites import node_site
from piper.frontend.smoothing import name_terms

__all__ = [
    "constant_count",
    "find_reduction",
    "insert",
    "is_backward",
    "is_combine",
    "is_linear",
    "make_sum",
]

aten = torch.ops.aten

_MEAN, _SUM = 1, 2

# Losses with a `reduction` argument, and the backward op that has it too. Class-index losses count
# valid labels, elementwise ones all elements.
_CLASS_LOSSES: dict[object, OpOverload] = {
    aten.nll_loss_forward.default: aten.nll_loss_backward.default,
    aten.nll_loss2d_forward.default: aten.nll_loss2d_backward.default,
}
_ELEMENT_LOSSES: dict[object, OpOverload] = {
    aten.mse_loss.default: aten.mse_loss_backward.default,
    aten.smooth_l1_loss.default: aten.smooth_l1_loss_backward.default,
    aten.huber_loss.default: aten.huber_loss_backward.default,
    aten.binary_cross_entropy.default: aten.binary_cross_entropy_backward.default,
    aten.soft_margin_loss.default: aten.soft_margin_loss_backward.default,
}
_SCALINGS = (aten.mul.Tensor, aten.mul.Scalar, aten.div.Tensor, aten.div.Scalar)
_UNARY_LINEAR = (
    aten.neg.default,
    aten.view.default,
    aten._unsafe_view.default,
    aten.squeeze.default,
    aten.squeeze.dim,
    aten.squeeze.dims,
    aten.unsqueeze.default,
    aten.clone.default,
    aten.alias.default,
    aten._to_copy.default,
)
_COMBINES = (aten.add.Tensor, aten.sub.Tensor)


def is_backward(node: fx.Node) -> bool:
    """Return whether autograd made ``node``."""
    return node.meta.get("partitioner_tag") == "is_backward"


@dataclass(frozen=True, slots=True)
class _Reduction:
    """The op that reduces the examples to a scalar, and its kind."""

    node: fx.Node
    kind: str


def is_combine(node: fx.Node) -> bool:
    """Return whether ``node`` adds or subtracts two values."""
    return node.target in _COMBINES and len(node.all_input_nodes) == 2


def is_linear(node: fx.Node) -> bool:
    """Return whether ``node`` scales its one operand by a number, or is a view of it."""
    operands = node.all_input_nodes
    linear = node.target in _UNARY_LINEAR or node.target in _SCALINGS
    return linear and len(operands) == 1 and node.args[0] is operands[0]


def make_sum(clean: CleanGraph, loss: fx.Node) -> fx.Node | None:
    """Rewrite a loss of ``clean`` and its backward to a sum; return the count, or None for a loss
    that was a sum.

    The count is an int64 scalar that depends on inputs only: the labels that differ from
    ``ignore_index`` for a cross-entropy, else the number of elements averaged. Between the
    reduction and the loss only scaling by numbers and views may stand. Raises CaptureError with the
    source line for any other loss.
    """
    reduction = _find_reduction(loss)
    if reduction.kind == "sum":
        return None
    if reduction.kind == "class":
        return _sum_class_loss(clean, reduction.node)
    if reduction.kind == "element":
        return _sum_element_loss(clean, reduction.node)
    if reduction.kind == "decomposed":
        return _sum_decomposed(clean, reduction.node)
    return _sum_mean(clean, reduction.node)


def find_reduction(loss: fx.Node) -> fx.Node:
    """Return the op that reduces the examples to a scalar."""
    return _find_reduction(loss).node


def _refuse(node: fx.Node, what: str) -> CaptureError:
    site = node_site(node)
    place = "" if site is None else f"{site}: "
    return CaptureError(
        f"{place}loss expected one sum or mean over examples times a constant, got {what}"
    )


def _find_reduction(loss: fx.Node) -> _Reduction:
    """Walk from the loss up to its reduction, over linear ops with one tensor operand."""
    node = loss
    while True:
        kind = _reduction_kind(node)
        if kind is not None:
            return _Reduction(_reducing_op(node), kind)
        node = _linear_operand(node)


def _linear_operand(node: fx.Node) -> fx.Node:
    """Return the only tensor operand of a linear op."""
    operands = node.all_input_nodes
    if node.target in _COMBINES:
        if len(operands) == 1:
            raise _refuse(node, f"a loss plus a constant ({node.target})")
        raise _refuse(node, name_terms(node))
    if node.op == "placeholder":
        raise _refuse(node, f"{role(node).kind} {role(node).name!r} itself")
    if is_linear(node):
        return operands[0]
    if node.target in _SCALINGS:
        raise _refuse(
            node,
            f"a scale that is a tensor ({node.target}); use reduction='mean' or 'sum', or a number",
        )
    raise _refuse(node, f"{node.target}")


def _reducing_op(node: fx.Node) -> fx.Node:
    if node.target is operator.getitem:
        producer = node.args[0]
        assert isinstance(producer, fx.Node)
        return producer
    return node


def _reduction_kind(node: fx.Node) -> str | None:
    """Return sum, mean, class, element or decomposed for a reduction to a scalar, else None."""
    op = _reducing_op(node)
    if op.target in (aten.sum.default, aten.sum.dim_IntList) and _reduces(op):
        return "sum"
    if op.target in (aten.mean.default, aten.mean.dim) and _reduces(op):
        return "mean"
    if op.target in _CLASS_LOSSES and (op is node or node.args[1] == 0):
        _check_weight(op)
        return _by_reduction(op, "class")
    if op.target in _ELEMENT_LOSSES:
        return _by_reduction(op, "element")
    if op.target is aten.binary_cross_entropy_with_logits.default:
        return _by_reduction(op, "decomposed")
    return None


def _reduces(op: fx.Node) -> bool:
    """Return whether ``op`` takes a tensor with elements to a scalar (a scalar's own sum is a no-op
    to walk over).
    """
    return bool(op.meta["val"].numel() == 1 and op.all_input_nodes[0].meta["val"].dim() > 0)


def _by_reduction(op: fx.Node, kind: str) -> str | None:
    reduction = dict(arguments(op))["reduction"]
    return {_MEAN: kind, _SUM: "sum"}.get(reduction)


def _check_weight(op: fx.Node) -> None:
    if dict(arguments(op))["weight"] is not None:
        raise _refuse(op, "a cross-entropy with class weights")


def _sum_class_loss(clean: CleanGraph, forward: fx.Node) -> fx.Node:
    """Set a cross-entropy to sum and count the labels that are not ignored."""
    named = dict(arguments(forward))
    labels = named["target"]
    _set_reduction(clean, forward, _CLASS_LOSSES[forward.target])
    graph = clean.graph
    with graph.inserting_before(forward):
        valid = insert(graph, forward, aten.ne.Scalar, (labels, named["ignore_index"]))
        return insert(graph, forward, aten.sum.default, (valid,))


def _sum_element_loss(clean: CleanGraph, forward: fx.Node) -> fx.Node:
    """Set an elementwise loss to sum and count its elements."""
    shapes = [node.meta["val"].shape for node in forward.all_input_nodes]
    total = torch.broadcast_shapes(*shapes).numel()  # type: ignore[no-untyped-call]
    _set_reduction(clean, forward, _ELEMENT_LOSSES[forward.target])
    return constant_count(clean.graph, forward, total)


def _sum_mean(clean: CleanGraph, mean: fx.Node) -> fx.Node:
    """Turn a mean into a sum, drop the division from its backward, and count its elements."""
    total = mean.all_input_nodes[0].meta["val"].numel()
    mean.target = aten.sum.default if mean.target is aten.mean.default else aten.sum.dim_IntList
    _drop_division(clean, mean, total)
    return constant_count(clean.graph, mean, total)


def _sum_decomposed(clean: CleanGraph, forward: fx.Node) -> fx.Node:
    """Set a loss whose backward autograd writes out to sum, and drop the division."""
    total = forward.all_input_nodes[0].meta["val"].numel()
    _set_reduction(clean, forward)
    _drop_division(clean, forward, total)
    return constant_count(clean.graph, forward, total)


def _drop_division(clean: CleanGraph, forward: fx.Node, total: int) -> None:
    """Remove the one division by ``total`` from the backward of ``forward``."""
    if clean.tangent is None:
        return
    divisions = [node for node in _backward_of(forward) if _divides_by(node, total)]
    if len(divisions) != 1:
        raise _refuse(forward, f"a mean whose backward divides {len(divisions)} times")
    operand = divisions[0].args[0]
    assert isinstance(operand, fx.Node)
    divisions[0].replace_all_uses_with(operand)
    clean.graph.erase_node(divisions[0])
    for nodes in clean.gradients.values():
        nodes[:] = [operand if node is divisions[0] else node for node in nodes]


def _divides_by(node: fx.Node, total: int) -> bool:
    return node.target in (aten.div.Scalar, aten.div.Tensor) and bool(node.args[1] == total)


def _backward_of(forward: fx.Node) -> Iterator[fx.Node]:
    """Yield the ops of autograd's node for ``forward``."""
    number = forward.meta.get("seq_nr")
    return (
        node
        for node in forward.graph.nodes
        if is_backward(node) and node.meta.get("seq_nr") == number
    )


def constant_count(graph: fx.Graph, after: fx.Node, total: int) -> fx.Node:
    """Insert a count that depends on shapes alone, written where ``after`` was."""
    with graph.inserting_before(after):
        options = {"dtype": torch.int64, "device": torch.device("cpu")}
        return insert(graph, after, aten.full.default, ([], total), options)


def _set_reduction(clean: CleanGraph, forward: fx.Node, backward: OpOverload | None = None) -> None:
    """Set `reduction` to sum in a loss op and in its backward op."""
    nodes = [node for node in _backward_of(forward) if node.target is backward]
    if backward is not None and clean.tangent is not None and len(nodes) != 1:
        raise _refuse(forward, f"a loss with {len(nodes)} backward ops")
    for node in (forward, *nodes):
        op = node.target
        assert isinstance(op, OpOverload)
        position = [argument.name for argument in op._schema.arguments].index("reduction")
        if len(node.args) > position:
            node.update_arg(position, _SUM)
        else:
            node.update_kwarg("reduction", _SUM)


def insert(
    graph: fx.Graph,
    like: fx.Node,
    op: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any] | None = None,
) -> fx.Node:
    """Insert an op written where ``like`` was, with its fake value."""
    node = graph.call_function(op, args, kwargs or {})
    node.meta = {
        key: like.meta[key]
        for key in ("stack_trace", "nn_module_stack", "partitioner_tag")
        if key in like.meta
    }
    given, named = fx.node.map_arg((args, kwargs or {}), lambda arg: arg.meta["val"])
    mode = _mode_of(like)
    with mode:
        node.meta["val"] = op(*given, **named)
    return node


def _mode_of(node: fx.Node) -> Any:
    value = next(arg.meta["val"] for arg in node.all_input_nodes)
    assert isinstance(value, Tensor)
    return value.fake_mode  # type: ignore[attr-defined]
