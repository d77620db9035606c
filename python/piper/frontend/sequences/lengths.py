"""What depends on the length of a sequence that ranks share out.

Ranks along an axis have parts of sequences, and the step is captured at the length of a part. So
numbers that a model makes of the length would be those of a part, and a mask that hides nothing
there may hide something in the whole:

    x / x.shape[1]                             x / 4 for a part of 4 positions, x / 8 for all 8
    (j <= i) & (j > i - 4)                     causal for 4 positions, a window of 4 for 8

To find them, the step is captured at the whole length, too, and both captures are compared: ops,
numbers, and where positions lie. Constant masks of attention are not compared but computed: that of
the whole must be causal, or hide nothing, as that of the part does.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

import piper_runtime.ops  # noqa: F401  (torch knows Piper's ops from then on)
import torch
from piper_runtime.inputs.batch import SequenceSpec
from torch import fx
from torch.utils import _pytree as pytree

from piper.frontend.causal import Mask, read_mask
from piper.frontend.data import Capture, CaptureError, Role, role, site_of
from piper.frontend.op_facts import arguments
from piper.frontend.rule_text import operands, results
from piper.frontend.sequences.positions import Dims, Given, Left, follow_positions, longer

__all__ = ["refuse_lengths"]

aten = torch.ops.aten
own = torch.ops.piper

# Where attention has its queries, and its mask.
_ATTENTION: Final[dict[object, tuple[int, int]]] = {
    own.attention.default: (0, 3),
    own.attention_backward.default: (1, 6),
}
_COUNTING: Final = frozenset({aten.arange.default, aten.arange.start, aten.arange.start_step})
_SIZES: Final = frozenset({"size", "input_sizes"})  # arguments that results and rules tell of
_QUERY_DIM: Final = 2

Pair = tuple[fx.Node, fx.Node]


def refuse_lengths(part: Capture, whole: Capture, sequence: SequenceSpec) -> None:
    """Raise CaptureError, with its source line, for what a step does otherwise at the whole length
    of sequences than at that of the parts that ranks have.

    Ops that see several positions at once are not looked for: `piper-partition` refuses them.
    """
    _refuse_local(part, sequence)
    comparison = _Comparison(part, whole, sequence)
    try:
        for pair in _pairs(part, whole):
            comparison.check(pair)
        comparison.check_results()
    except Left:
        return


def _refuse_local(part: Capture, sequence: SequenceSpec) -> None:
    """Refuse local losses: they are about whole examples, of which a rank has parts."""
    for loss in part.losses:
        if loss.local:
            raise CaptureError(
                f"{site_of(loss.value)}: local loss {loss.name!r} is one of whole examples, and "
                f"ranks along axis {sequence.axis!r} have parts of sequences: expected no local "
                "loss there"
            )


def _pairs(part: Capture, whole: Capture) -> list[Pair]:
    """Return the nodes of both captures that belong to each other, in the order of those of the
    part.

    Where nodes do different things, or a mask is one that is computed, what they are made of is
    left out.
    """
    pending = list(_results(part, whole))
    found: set[Pair] = set()
    while pending:
        pair = pending.pop()
        if pair not in found:
            found.add(pair)
            pending += _operand_pairs(pair)
    order = {node: index for index, node in enumerate(part.graph.nodes)}
    after = {node: index for index, node in enumerate(whole.graph.nodes)}
    return sorted(found, key=lambda pair: (order[pair[0]], after[pair[1]]))


def _results(part: Capture, whole: Capture) -> Iterator[Pair]:
    """Yield losses, counts that are no constants, and gradients."""
    for small, large in zip(part.losses, whole.losses, strict=False):
        yield small.value, large.value
        if small.count is not None and large.count is not None and small.count.all_input_nodes:
            yield small.count, large.count
    for mine, other in zip(part.gradients, whole.gradients, strict=False):
        yield mine.node, other.node


def _operand_pairs(pair: Pair) -> list[Pair]:
    small, large = pair
    sides = operands(small), operands(large)
    if small.target != large.target or len(sides[0]) != len(sides[1]):
        return []
    masks = _masks(pair)
    skipped = masks[0] if masks is not None and isinstance(masks[0], fx.Node) else None
    return [both for both in zip(*sides, strict=True) if both[0] is not skipped]


def _masks(pair: Pair) -> tuple[Any, Any] | None:
    """Return the masks of attention over positions, else None."""
    small, large = pair
    if small.target not in _ATTENTION or small.target != large.target:
        return None
    query, mask = _ATTENTION[small.target]
    sizes = [node.args[query].meta["val"].shape[_QUERY_DIM] for node in pair]  # type: ignore[union-attr]
    return None if sizes[0] == sizes[1] else (small.args[mask], large.args[mask])


@dataclass(slots=True)
class _Comparison:
    """Two captures, and where positions lie in what was compared so far."""

    part: Capture
    whole: Capture
    sequence: SequenceSpec
    positions: dict[Pair, list[Dims]] = field(default_factory=dict)
    masks: dict[fx.Node, Mask | None] = field(default_factory=dict)

    def check(self, pair: Pair) -> None:
        small, large = pair
        if small.op == "placeholder" or large.op == "placeholder":
            self.positions[pair] = [self._check_placeholder(pair)]
            return
        self._check_mask(pair)
        if small.target != large.target or len(operands(small)) != len(operands(large)):
            raise self._refuse(
                small,
                f"computes {small.target} for {self._part}, where the model computes "
                f"{large.target} for {self._all}",
            )
        if small.target is operator.getitem:
            self.positions[pair] = [self._check_item(pair)]
        else:
            self.positions[pair] = self._follow(pair)
            self._check_arguments(pair)

    def check_results(self) -> None:
        """Refuse other losses, or gradients of other parameters."""
        mine, other = (
            [loss.name for loss in taken.losses] + [grad.state for grad in taken.gradients]
            for taken in (self.part, self.whole)
        )
        if mine != other:
            raise self._refuse(
                self.part.losses[0].value,
                f"the step makes losses and gradients {mine} for {self._part} and {other} for "
                f"{self._all}",
            )

    @property
    def _lengths(self) -> list[tuple[int, int]]:
        """How long each sequence is in a part and as a whole."""
        return [
            (spec.shape[dim], spec.shape[dim] * self.sequence.parts)
            for spec in self.part.inputs
            if (dim := self.sequence.dims.get(spec.name)) is not None
        ]

    @property
    def _part(self) -> str:
        return f"a part of {self._lengths[0][0]} positions"

    @property
    def _all(self) -> str:
        return f"all {self._lengths[0][1]}"

    def _check_placeholder(self, pair: Pair) -> Dims:
        small, large = pair
        if small.op != large.op or role(small) != role(large):
            user = next(iter(small.users)) if small.op == "placeholder" else small
            raise self._refuse(
                user,
                f"{user.target} takes {self._name(self.part, small)} for {self._part} and "
                f"{self._name(self.whole, large)} for {self._all}",
            )
        found = role(small)
        dim = self.sequence.dims.get(found.name) if found.kind == "input" else None
        return frozenset() if dim is None else frozenset({dim})

    @staticmethod
    def _name(capture: Capture, node: fx.Node) -> str:
        """Say what a value is: the constant, if it is one."""
        if node.op != "placeholder":
            return f"a result of {node.target}"
        found: Role = role(node)
        state = next((s for s in capture.states if s.name == found.name), None)
        value = None if state is None else state.value
        if value is None:
            return f"{found.kind} {found.name!r}"
        return f"the constant {value.tolist()}" if value.numel() < 9 else "another constant"

    def _check_item(self, pair: Pair) -> Dims:
        """Return the positions of one result of an op that has several."""
        (small, position), (large, other) = pair[0].args, pair[1].args
        assert isinstance(small, fx.Node)
        assert isinstance(large, fx.Node)
        assert isinstance(position, int)
        if position != other:
            raise self._refuse(pair[0], f"takes another result of {small.target} for {self._all}")
        known = self.positions[small, large]
        return known[position] if position < len(known) else frozenset()

    def _check_arguments(self, pair: Pair) -> None:
        """Refuse other numbers, but for sizes."""
        small, large = pair
        for (name, mine), (_, other) in zip(arguments(small), arguments(large), strict=True):
            if name in _SIZES or _is_equal(mine, other) or _is_whole_slice(pair, name):
                continue
            if small.target in _COUNTING:
                raise CaptureError(
                    f"{site_of(small)}: {small.target} numbers positions from 0 on every rank, "
                    "expected them as an input of the batch, such as position_ids"
                )
            raise self._refuse(
                small,
                f"argument {name!r} of {small.target} is {mine} for {self._part} and {other} for {self._all}",
            )

    def _check_mask(self, pair: Pair) -> None:
        """Refuse a mask that does not hide what comes after a position, or nothing, and no more."""
        masks = _masks(pair)
        if masks is None or masks == (None, None):
            return
        kinds = [self._read(mask) for mask in masks]
        if kinds[0] is not None and kinds[0] == kinds[1] and kinds[0].kind != "other":
            return
        sees = "has a mask that is no constant"
        if kinds[1] is not None:
            sees = f"has a mask over {self._all} positions that is not causal"
            if kinds[1].kind != "other":
                sees = f"has another mask over {self._all} positions than over a part"
            if kinds[1].window is not None:
                sees = f"sees a window of {kinds[1].window} of {self._all} positions"
        raise CaptureError(
            f"{site_of(pair[0])}: attention {sees} where ranks along axis {self.sequence.axis!r} "
            "have parts of sequences: expected a constant mask that is causal over all positions, "
            "or hides none; windows and paddings are not supported there"
        )

    def _read(self, mask: Any) -> Mask | None:
        if not isinstance(mask, fx.Node):
            return Mask("open")
        if mask not in self.masks:
            self.masks[mask] = read_mask(mask)
        return self.masks[mask]

    def _follow(self, pair: Pair) -> list[Dims]:
        small, large = pair
        given = []
        for both in _operand_pairs(pair):
            mine, other = (node.meta["val"].shape for node in both)
            given.append(Given(mine, other, self.positions[both][0]))
        if _masks(pair) is not None:  # over the whole, which the parts are given
            both_results = zip(results(small), results(large), strict=True)
            return [longer(mine.shape, other.shape) for mine, other in both_results]
        try:
            return follow_positions(small, large, given, self._lengths)
        except ValueError as error:
            raise self._refuse(small, f"{small.target} {error}") from None

    def _refuse(self, node: fx.Node, what: str) -> CaptureError:
        return CaptureError(
            f"{site_of(node)}: {what}; ranks along axis {self.sequence.axis!r} have parts of "
            "sequences: expected a step that does not depend on their length"
        )


def _is_equal(mine: Any, other: Any) -> bool:
    """Return whether arguments are the same, but for values, which are compared by themselves."""
    sides = [pytree.tree_leaves(argument) for argument in (mine, other)]
    if len(sides[0]) != len(sides[1]):
        return False
    return all(
        (isinstance(one, fx.Node) and isinstance(two, fx.Node)) or one == two or _is_nan(one, two)
        for one, two in zip(*sides, strict=True)
    )


def _is_nan(*numbers: Any) -> bool:
    return all(isinstance(number, float) and math.isnan(number) for number in numbers)


def _is_whole_slice(pair: Pair, name: str) -> bool:
    """Return whether an argument is the end of a slice that leaves nothing out."""
    slices = (aten.slice.Tensor, aten.slice_backward.default)
    if name != "end" or pair[0].target not in slices:
        return False
    return all(node.all_input_nodes[0].meta["val"].shape == node.meta["val"].shape for node in pair)
