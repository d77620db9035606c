"""The terms of a loss: one that sums or averages over examples, and those that are declared local.

    loss  = ce + 0.01 * local_loss(balance, name="balance")

    "loss"     ce               a sum over examples, divided by how many there are (``loss``)
    "balance"  0.01 * balance   of a microbatch on a rank, divided by how many of these there are

Each has a tangent of its own. The mark is an op, of which there are two: behind the term in the
forward pass, and before it in the backward pass. Both are taken out.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import torch
from torch import fx

from piper.frontend.data import CaptureError, LossSpec, Role
from piper.frontend.joint import CleanGraph, needed_by
from piper.frontend.loss import (
    constant_count,
    find_reduction,
    insert,
    is_backward,
    is_combine,
    is_linear,
    make_sum,
)
from piper.frontend.sites import node_site

__all__ = ["make_losses"]

aten, own = torch.ops.aten, torch.ops.piper

_MAIN = "loss"
_TAKEN = (_MAIN, "grad_norm")  # what a step reports anyway


@dataclass(frozen=True, slots=True)
class _Step:
    """An op between a local term and the loss, and the place of the term among its operands."""

    op: fx.Node
    position: int


def make_losses(clean: CleanGraph) -> tuple[LossSpec, ...]:
    """Take the loss of ``clean`` apart: the term over examples first, as ``make_sum`` leaves it.

    Raises CaptureError, with the source line, for a local loss that is no term, and for a term over
    examples that is no sum or mean.
    """
    marks = [node for node in clean.graph.nodes if node.target is own.local_term.default]
    _check_names(marks)
    local = [_take(clean, mark) for mark in marks]
    if clean.loss is None:
        return tuple(local)
    _refuse_shared(find_reduction(clean.loss), local)
    count = make_sum(clean, clean.loss)
    return LossSpec(_MAIN, clean.loss, count, 1.0, clean.tangent), *local


def _refuse(node: fx.Node, name: object, what: str) -> CaptureError:
    return CaptureError(f"{node_site(node)}: local loss {name!r} expected {what}")


def _check_names(marks: Iterable[fx.Node]) -> None:
    known = [*_TAKEN]
    for mark in marks:
        name = str(mark.args[1])
        if name in known:
            raise _refuse(mark, name, f"a name of its own, got one of {known}")
        known.append(name)


def _refuse_shared(reduction: fx.Node, local: Iterable[LossSpec]) -> None:
    """Refuse terms that read what becomes a sum instead of a mean."""
    for spec in local:
        if reduction in needed_by([spec.value]):
            raise _refuse(
                reduction,
                spec.name,
                "to be made of other values than the sum or mean over examples, got this one: "
                "compute it twice",
            )


def _take(clean: CleanGraph, mark: fx.Node) -> LossSpec:
    """Take one local term out of the loss, which becomes None if it is all of it."""
    value, name = mark.args
    assert isinstance(value, fx.Node)
    assert isinstance(name, str)
    count = constant_count(clean.graph, mark, 1)
    assert clean.loss is not None
    steps = list(_steps(mark, clean.loss))
    tangent = clean.tangent
    if any(is_combine(step.op) for step in steps):
        value = _take_apart(clean, steps, value)
        tangent = _give_tangent(clean, name)
    else:
        value, clean.loss = (clean.loss if steps else value), None
        if tangent is not None:
            tangent.meta["role"] = Role("tangent", name)
    _remove(clean, mark)
    for entry in _entries(clean.graph, name):
        _remove(clean, entry)
    return LossSpec(name, value, count, 1.0, tangent, local=True)


def _steps(mark: fx.Node, loss: fx.Node) -> Iterator[_Step]:
    """Yield the ops from a mark to the loss: sums with other terms, and scaling by numbers."""
    node = mark
    while node is not loss:
        users = [user for user in node.users if not is_backward(user) and user.op != "output"]
        if len(users) != 1:
            raise _refuse(mark, mark.args[1], f"to be used once, got {len(users)} uses")
        (op,) = users
        if not is_combine(op) and not is_linear(op):
            raise _refuse(
                op,
                mark.args[1],
                "to be a term of the loss, with nothing behind but other terms and numbers that "
                f"scale it, got {op.target}",
            )
        yield _Step(op, op.args.index(node))
        node = op


def _take_apart(clean: CleanGraph, steps: list[_Step], value: fx.Node) -> fx.Node:
    """Return a term with all that is done with it, and let the loss go on with the other terms."""
    for step in steps:
        value = _again(clean.graph, step, value)
    meets = next(index for index, step in enumerate(steps) if is_combine(step.op))
    op = steps[meets].op
    rest = _operand(clean.graph, op, 1 - steps[meets].position)
    op.replace_all_uses_with(rest)
    clean.loss = rest if op is clean.loss else clean.loss
    for step in reversed(steps[: meets + 1]):
        clean.graph.erase_node(step.op)
    return value


def _again(graph: fx.Graph, step: _Step, value: fx.Node) -> fx.Node:
    """Compute for a term alone what an op does with it."""
    op = step.op
    if is_combine(op):
        return _operand(graph, op, step.position, value)
    assert callable(op.target)
    with graph.inserting_before(op):
        return _placed(op, insert(graph, op, op.target, (value, *op.args[1:]), dict(op.kwargs)))


def _operand(graph: fx.Graph, op: fx.Node, position: int, value: fx.Node | None = None) -> fx.Node:
    """Return what one operand of a sum adds to it, in the dtype of the sum; ``value`` replaces it.

    The second one may be subtracted, and have a factor.
    """
    given = op.args[position] if value is None else value
    assert isinstance(given, fx.Node)
    with graph.inserting_before(op):
        alpha = op.kwargs.get("alpha", 1)
        if position == 1 and alpha != 1:
            given = _placed(op, insert(graph, op, aten.mul.Tensor, (given, alpha)))
        if position == 1 and op.target is aten.sub.Tensor:
            given = _placed(op, insert(graph, op, aten.neg.default, (given,)))
        dtype = op.meta["val"].dtype
        if given.meta["val"].dtype != dtype:
            options = {"dtype": dtype}
            given = _placed(op, insert(graph, op, aten._to_copy.default, (given,), options))
    return given


def _placed(op: fx.Node, made: fx.Node) -> fx.Node:
    """Let the backward pass of ``op`` know ``made`` as its forward op."""
    made.meta |= {"seq_nr": op.meta["seq_nr"]} if "seq_nr" in op.meta else {}
    return made


def _entries(graph: fx.Graph, name: str) -> list[fx.Node]:
    """Return the op behind which the backward pass of a term is its own, if there is one."""
    target = own.local_term_backward.default
    return [node for node in graph.nodes if node.target is target and node.args[1] == name]


def _give_tangent(clean: CleanGraph, name: str) -> fx.Node | None:
    """Start the backward pass of a term with a tangent of its own; None if it has no gradient."""
    entries = _entries(clean.graph, name)
    if not entries:
        return None
    (entry,) = entries
    old = clean.tangent
    assert old is not None
    with clean.graph.inserting_after(old):
        tangent = clean.graph.placeholder(f"tangent_{len(clean.graph.nodes)}")
    tangent.meta = {"role": Role("tangent", name), "val": old.meta["val"]}
    copied = {old: tangent}

    def copy(node: fx.Node) -> fx.Node:
        if node not in copied:
            given = {argument: copy(argument) for argument in node.all_input_nodes}
            changed = any(new is not before for before, new in given.items())
            copied[node] = clean.graph.node_copy(node, given.__getitem__) if changed else node
        return copied[node]

    (grad, _) = entry.args
    assert isinstance(grad, fx.Node)
    with clean.graph.inserting_before(entry):
        entry.update_arg(0, copy(grad))
    return tangent


def _remove(clean: CleanGraph, mark: fx.Node) -> None:
    """Replace a mark by what it is given."""
    (value, _) = mark.args
    assert isinstance(value, fx.Node)
    mark.replace_all_uses_with(value)
    clean.graph.erase_node(mark)
    for nodes in clean.gradients.values():
        nodes[:] = [value if node is mark else node for node in nodes]
