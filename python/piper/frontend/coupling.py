"""Losses that couple examples: what one contributes depends on which others are beside it.

    balance = probabilities.mean(0)          a statistic of the batch
    loss = (nll + balance.square().sum()).mean()

Such a loss is another one in every microbatch and on every data-parallel rank. To find it, the
batch dim of inputs is followed through the forward ops by their rules: nothing but the reduction of
the loss may sum over it, and what only local losses are made of, which are meant to be others.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import torch
from torch import fx

from piper.frontend.data import CaptureError, InputSpec, LossSpec, role
from piper.frontend.joint import needed_by
from piper.frontend.loss import find_reduction, is_backward
from piper.frontend.rule_text import Rule, operands, results
from piper.frontend.rules import rule_of
from piper.frontend.sites import node_site

__all__ = ["refuse_coupling"]

aten = torch.ops.aten

# What mixes the elements along a dim, though it is no sum over it.
_MIXES: Final = frozenset(
    {
        aten.mean.dim,
        aten._softmax.default,
        aten._log_softmax.default,
    }
)

Dims = frozenset[int]
NONE: Final[Dims] = frozenset()


def refuse_coupling(
    graph: fx.Graph, *, losses: Sequence[LossSpec], inputs: Sequence[InputSpec]
) -> None:
    """Raise CaptureError, with its source line, for a forward op that sums over examples, unless
    the loss is linear in the sum, or only local losses need it.
    """
    batch = {spec.name: spec.dim for spec in inputs}
    main = [spec.value for spec in losses if not spec.local]
    allowed = needed_by(spec.value for spec in losses if spec.local) - needed_by(main)
    allowed |= {node for value in main for node in _tail(find_reduction(value))}
    marks: dict[fx.Node, list[Dims]] = {}  # by node: of each result, the dims of examples
    for node in graph.nodes:
        if node.op == "placeholder":
            dim = batch.get(role(node).name) if role(node).kind == "input" else None
            marks[node] = [NONE if dim is None else frozenset({dim})]
        elif node.op == "call_function" and not is_backward(node):
            marks[node], couples = _follow(node, marks)
            if couples and node not in allowed:
                raise CaptureError(
                    f"{node_site(node)}: op {node.target} sums over the examples of a batch, so "
                    "that the loss of each depends on the others: it would be another loss in "
                    "every microbatch and data-parallel rank; compute it for each example by "
                    "itself, declare by piper.local_loss that this is meant, or compile for one "
                    "microbatch on one rank"
                )


def _tail(reduction: fx.Node) -> Iterator[fx.Node]:
    """Yield the reduction and the ops before it that are linear in their one operand."""
    node = reduction
    while True:
        yield node
        text = rule_of(node) if node.op == "call_function" else None
        linear = node is reduction or (text is not None and Rule.parse(text).linear)
        if not linear or len(node.all_input_nodes) != 1:
            return
        node = node.all_input_nodes[0]


def _follow(node: fx.Node, marks: Mapping[fx.Node, list[Dims]]) -> tuple[list[Dims], bool]:
    """Return the dims of examples of each result, and whether the op sums over some."""
    if node.target is operator.getitem:
        producer, position = node.args
        assert isinstance(producer, fx.Node)
        assert isinstance(position, int)
        known = marks[producer]
        return [known[position] if position < len(known) else NONE], False
    given = [marks[operand][0] for operand in operands(node)]
    outputs = results(node)
    if not any(given):
        return [NONE for _ in outputs], False
    floating = any(output.is_floating_point() for output in outputs)
    text = rule_of(node)
    if text is None:
        whole = node.target is aten.mean.default
        return [_first(node, given, output.shape) for output in outputs], whole and floating
    rule = Rule.parse(text)
    pairs = zip(rule.operands, given, strict=True)
    found = {names[dim] for names, dims in pairs for dim in dims} - {"1"}
    kept = [
        frozenset(dim for dim, name in enumerate(names) if name in found) for names in rule.results
    ]
    lost = found - {name for names in rule.results for name in names}
    mixed = lost if node.target in _MIXES else lost & rule.sums
    return kept, bool(mixed) and floating


def _first(node: fx.Node, given: Sequence[Dims], shape: torch.Size) -> Dims:
    """Of an op without a rule, take examples that lie along the first dim to stay there."""
    sizes = {
        operand.meta["val"].shape[0]
        for operand, dims in zip(operands(node), given, strict=True)
        if 0 in dims
    }
    return frozenset({0}) if len(shape) and sizes == {shape[0]} else NONE
