"""Losses that couple examples: what one contributes depends on which others are beside it.

    balance = probabilities.mean(0)          a statistic of the batch
    loss = (nll + balance.square().sum()).mean()
    loss = nll.sum() / len(nll)              a number of examples

Such a loss is another one in every microbatch and on every data-parallel rank. To find it, the
forward pass is captured a second time, for all examples of the batch. What grows with their number
is followed from op to op (``follow``): nothing but the reduction of the loss may sum over examples,
mix or pick some, and what only local losses are made of, which are meant to be others. Numbers that
differ between both captures are refused (``twins``).
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from torch import fx

from piper.frontend.coupling.follow import follow
from piper.frontend.coupling.found import UNKNOWN, Found, Op
from piper.frontend.coupling.layout import num_examples, of_sizes
from piper.frontend.coupling.twins import origin, pair_ops
from piper.frontend.data import CaptureError, LossSpec
from piper.frontend.loss import find_reduction
from piper.frontend.rule_text import Rule, operands
from piper.frontend.rules import rule_of
from piper.frontend.sites import node_site

__all__ = ["refusal", "refuse_coupling"]

_CURE: Final = (
    "compute it for each example by itself, declare by piper.local_loss that this is meant, or "
    "compile for one microbatch on one rank"
)


def refuse_coupling(
    losses: Sequence[LossSpec], twins: Sequence[LossSpec], counts: tuple[int, int]
) -> None:
    """Raise CaptureError, with its source line, for a forward op that makes of some examples what
    depends on others, or on how many there are, unless the loss is linear in a sum that it makes,
    or only local losses need it.

    ``losses`` and ``twins`` are those of one forward pass, for ``counts`` examples each.
    """
    main = [[spec for spec in specs if not spec.local] for specs in (losses, twins)]
    if len(main[0]) != len(main[1]):
        raise CaptureError("loss expected the same terms for any number of examples")
    for here, whole in zip(*main, strict=True):
        _refuse(here, pair_ops(here.value, whole.value, counts), whole.value)


def _refuse(loss: LossSpec, ops: Iterable[Op], value: fx.Node) -> None:
    """Follow the examples through the ops of a loss, whose value is the last."""
    tail = list(_tail(value))
    may_sum = {tail[0]} if loss.count is not None else set(tail)
    summed = False
    found: dict[fx.Node, Found] = {}
    for op in ops:
        found[op.whole] = made = _follow(op, found)
        if made.what is None or (made.is_sum and op.whole in may_sum):
            summed |= made.what is not None
            continue
        raise refusal(op, made.what)
    if loss.count is None and not summed:
        raise refusal(
            Op(tail[0], tail[0]), "makes a loss of no example, which every microbatch would add"
        )


def refusal(op: Op, what: str) -> CaptureError:
    """Return the error for an op that does this with the examples of a batch."""
    cure = _CURE
    if what is UNKNOWN:
        cure = f"say by piper.register_rule how its dims belong together, {_CURE}"
    return CaptureError(
        f"{node_site(op.whole)}: op {op.whole.target} {what}, so that the loss of each depends on "
        f"the others: it would be another loss in every microbatch and data-parallel rank; {cure}"
    )


def _tail(value: fx.Node) -> Iterator[fx.Node]:
    """Yield the reduction of a loss, and the ops before it up to the first of several operands."""
    node = find_reduction(value)
    while node.op == "call_function":
        yield node
        if len(node.all_input_nodes) != 1 or not _is_linear(node):
            return
        node = node.all_input_nodes[0]


def _is_linear(node: fx.Node) -> bool:
    text = rule_of(node)
    return text is not None and Rule.parse(text).linear


def _follow(op: Op, found: dict[fx.Node, Found]) -> Found:
    """Return what an op does, given what those before it did."""
    node = op.whole
    if node.op == "placeholder":
        return Found([of_sizes(*(one.meta["val"].shape for one in (op.here, op.whole)))])
    if node.target is operator.getitem:
        producer, position = node.args
        assert isinstance(producer, fx.Node)
        assert isinstance(position, int)
        known = found[producer]
        layout = known.layouts[position]
        return Found([layout], numbers=known.numbers and not num_examples(layout))
    given = [found[origin(one)] for one in operands(node)]
    return follow(
        op,
        [known.layouts[0] for known in given],
        numbered=[known.numbers for known in given],
    )
