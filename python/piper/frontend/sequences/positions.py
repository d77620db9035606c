"""Where the positions of a sequence lie among the dims of values, seen at two lengths.

Of a step that is captured at the length of a part and at the whole length, those dims differ in
size that positions lie along, and those that the model made as long as a sequence:

    x      [2, 4, 16]     [2, 8, 16]     positions along dim 1
    ones   [2, 4]         [2, 8]         as long, and the same for each position
    view   [8, 16]        [16, 16]       positions along dim 0, for two rows

That `piper-partition` sees positions where they are rests on the sizes of a part, which may happen
to fit what the model does with the whole otherwise; here both are looked at.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor, fx

from piper.frontend.rule_text import Rule
from piper.frontend.rules import rule_of

__all__ = ["Dims", "Given", "Left", "follow_positions", "longer"]

aten = torch.ops.aten

Dims = frozenset[int]
NONE: Final[Dims] = frozenset()
_NEW: Final = frozenset(  # take a tensor for its dtype alone
    getattr(aten, name).default for name in ("new_empty", "new_full", "new_ones", "new_zeros")
)
_VIEWS: Final = frozenset({aten.view.default, aten._unsafe_view.default})


class Left(Exception):  # noqa: N818  (nothing is wrong here)
    """What the op does with positions is for `piper-partition` to refuse."""


@dataclass(frozen=True, slots=True)
class Given:
    """An operand or result at both lengths, and the dims along which it has positions."""

    part: Sequence[int]
    whole: Sequence[int]
    positions: Dims = NONE

    @property
    def longer(self) -> Dims:
        """The dims that follow the length."""
        return longer(self.part, self.whole)


def longer(part: Sequence[int], whole: Sequence[int]) -> Dims:
    """Return the dims whose sizes differ."""
    return frozenset(d for d, (n, m) in enumerate(zip(part, whole, strict=True)) if n != m)


def follow_positions(
    part: fx.Node, whole: fx.Node, operands: Sequence[Given], lengths: Sequence[tuple[int, int]]
) -> list[Dims]:
    """Return along which dims each result of an op has positions; ``lengths`` are those of a part
    and the whole of each sequence.

    Raises ValueError that says what an op does otherwise at the whole length than with parts, and
    Left for an op that sees several positions.
    """
    sides = _results(part), _results(whole)
    if part.target in _NEW or not any(operand.longer for operand in operands):
        return [NONE for _ in sides[0]]
    if part.target in _VIEWS:
        return [_through_view(operands[0], _given(sides[0][0], sides[1][0]), lengths)]
    texts = rule_of(part), rule_of(whole)
    if texts[0] is None or (_sees_several(Rule.parse(texts[0]), operands) and not _sorts(part)):
        if any(operand.positions for operand in operands):
            raise Left
        raise ValueError("has no rule that says what it does with more positions")
    if texts[0] != texts[1] or len(sides[0]) != len(sides[1]):
        raise ValueError("treats dims in another way for more positions")
    made = [_given(*both) for both in zip(*sides, strict=True)]
    found = _by_rule(Rule.parse(texts[0]), operands, made)
    if any(len(dims) > 1 for dims in found):
        raise ValueError("pairs positions with each other, of which a part has fewer pairs")
    return found


def _sorts(node: fx.Node) -> bool:
    """Return whether an op is one on rows of experts: it sees tokens one by one, in another order."""
    return str(node.target).startswith("piper.moe_")


def _results(node: fx.Node) -> list[Tensor | None]:
    """Return the results of an op; of those that it is not asked for there is none."""
    value = node.meta["val"]
    return list(value) if isinstance(value, (list, tuple)) else [value]


def _given(part: Tensor | None, whole: Tensor | None) -> Given:
    if part is None or whole is None:
        return Given((), ())
    if part.dim() != whole.dim():
        raise ValueError("makes a value of more or fewer dims")
    return Given(part.shape, whole.shape)


def _sees_several(rule: Rule, operands: Sequence[Given]) -> bool:
    """Return whether an op makes something of several positions that is no sum over them."""
    pairs = zip(rule.operands, operands, strict=True)
    named = {names[dim] for names, given in pairs for dim in given.positions}
    return any(named - set(names) - rule.sums for names in rule.results)


def _by_rule(rule: Rule, operands: Sequence[Given], made: Sequence[Given]) -> list[Dims]:
    """Follow names; a dim of a new name, as long as a sequence, has positions if an operand has."""
    pairs = list(zip(rule.operands, operands, strict=True))
    named = {names[dim] for names, given in pairs for dim in given.positions}
    alike = {names[dim] for names, given in pairs for dim in given.longer} - named
    for names in rule.results:
        if alike - set(names):
            raise ValueError("goes over as many equal elements as there are positions")
    return [
        frozenset(
            dim
            for dim in result.longer
            if names[dim] in named or (named and names[dim] not in alike)
        )
        for names, result in zip(rule.results, made, strict=True)
    ]


def _through_view(operand: Given, made: Given, lengths: Sequence[tuple[int, int]]) -> Dims:
    """Follow the dim that is as long as a sequence, or several in a row, through a view.

    What is before it may be split and joined otherwise, and so may what is behind it.
    """
    if len(operand.longer) != 1 or len(made.longer) != 1:
        raise ValueError("treats dims in another way for more positions")
    (before,), (after,) = operand.longer, made.longer
    behind = math.prod(operand.part[before + 1 :]) == math.prod(made.part[after + 1 :])
    sizes = made.part[after], made.whole[after]
    whole_rows = any(
        sizes[0] % part == 0 and sizes[1] == sizes[0] // part * whole for part, whole in lengths
    )
    if not behind or not whole_rows:
        raise ValueError("cuts the sequence into pieces of which a part has fewer")
    return made.longer if operand.positions else NONE
