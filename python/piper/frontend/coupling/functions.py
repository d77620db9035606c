"""What the backward of a torch.autograd.Function computes: anything, so it is looked at, too.

    def backward(ctx, grad):
        return grad / grad.norm()        couples the examples
        return grad / len(grad)          depends on how many there are

The gradients of other ops follow from what these compute.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import fx

from piper.frontend.coupling.check import refusal
from piper.frontend.coupling.follow import follow
from piper.frontend.coupling.found import Found, Op
from piper.frontend.coupling.layout import of_sizes
from piper.frontend.coupling.twins import check_call, differs
from piper.frontend.rule_text import Rule, operands, results
from piper.frontend.rules import rule_of
from piper.frontend.trace import OF_FUNCTION

__all__ = ["of_functions", "refuse_functions"]


def of_functions(graph: fx.Graph) -> list[fx.Node]:
    """Return the ops that backward functions of the user compute."""
    return [node for node in graph.nodes if OF_FUNCTION in (node.meta.get("custom") or {})]


def refuse_functions(
    here: Sequence[fx.Node], whole: Sequence[fx.Node], counts: tuple[int, int]
) -> None:
    """Raise CaptureError, with its source line, for an op that mixes examples, or depends on how
    many there are, unless gradients of parameters are linear in a sum that it makes.

    Both are of one step, for ``counts`` examples each.
    """
    known: dict[fx.Node, fx.Node] = {}
    found: dict[fx.Node, Found] = {}
    if len(here) != len(whole):
        raise differs(
            (*here, *whole)[-1], counts, "how many ops a backward has", len(here), len(whole)
        )
    for first, second in zip(here, whole, strict=True):
        check_call(first, second, known, counts, partly=True)
        known[second] = first
        op = Op(first, second)
        found[second] = made = _follow(op, found)
        if made.what is not None and not (made.is_sum and _is_linear_on(second)):
            raise refusal(op, made.what)


def _follow(op: Op, found: dict[fx.Node, Found]) -> Found:
    pairs = zip(operands(op.here), operands(op.whole), strict=True)
    given = [
        found[second]
        if second in found
        else Found([of_sizes(results(first)[0].shape, results(second)[0].shape)])
        for first, second in pairs
    ]
    return follow(
        op,
        [one.layouts[0] for one in given],
        numbered=[one.numbers for one in given],
    )


def _is_linear_on(node: fx.Node) -> bool:
    """Return whether all that is made of a value up to gradients is linear in it."""
    for user in node.users:
        if user.op == "output" or user.meta.get("is_gradient_acc"):
            continue
        text = rule_of(user)
        if text is None or not Rule.parse(text).linear or len(user.all_input_nodes) != 1:
            return False
        if not _is_linear_on(user):
            return False
    return True
