"""What an op does with the examples in its operands, and what its rule tells of that."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import fx

from piper.frontend.coupling.layout import Dim, Layout, combine, holds_examples, of_sizes
from piper.frontend.rule_text import Rule, argument, results

__all__ = ["MIXES", "NUMBERS", "PAIRS", "PICKS", "SUMS", "UNKNOWN", "Found", "Op", "by_rule"]

aten = torch.ops.aten

SUMS: Final = "sums over the examples of a batch"
MIXES: Final = "mixes the examples of a batch"
PICKS: Final = "takes some of the examples of a batch, or groups that depend on how many there are"
PAIRS: Final = "pairs the examples of a batch with one another"
NUMBERS: Final = "makes values that depend on how many examples there are"
UNKNOWN: Final = "is not known to treat the examples of a batch apart"


@dataclass(frozen=True, slots=True)
class Op:
    """An op, captured for the examples of a microbatch and for those of the whole batch."""

    here: fx.Node
    whole: fx.Node

    def fresh(self) -> list[Layout]:
        """Return the layout of every result by its sizes alone."""
        pairs = zip(results(self.here), results(self.whole), strict=True)
        return [of_sizes(here.shape, whole.shape) for here, whole in pairs]

    def both(self, name: str) -> tuple[Any, Any]:
        """Return an argument for both numbers of examples."""
        return argument(self.here, name), argument(self.whole, name)


@dataclass(frozen=True, slots=True)
class Found:
    """The layout of every result; what the op does with several examples, if it does, and whether
    that is a sum over them, part by part; whether the results number the examples.
    """

    layouts: Sequence[Layout]
    what: str | None = None
    is_sum: bool = False
    numbers: bool = False


def by_rule(op: Op, given: Sequence[Layout], text: str) -> Found:
    """Return what an op does by its rule: what results do not have in common with operands is
    summed over, or mixed.
    """
    rule = Rule.parse(text)
    fresh = op.fresh()
    dims: dict[str, Dim] = {}
    for names, layout in zip(rule.operands, given, strict=True):
        for name, dim in zip(names, layout, strict=True):
            found = combine(dims.get(name, ()), dim)
            if found is None:
                return Found(fresh, MIXES)
            dims[name] = found
    every = rule.results[:1] if op.whole.target in _LOSSES else rule.results
    lost = {
        name
        for name, dim in dims.items()
        if holds_examples(dim) and not all(name in names for names in every)
    }
    if lost:
        is_sum = lost <= rule.sums
        return Found(fresh, SUMS if is_sum or op.whole.target in _MEANS else MIXES, is_sum)
    layouts = [
        tuple(dims.get(name) or plain for name, plain in zip(names, layout, strict=True))
        for names, layout in zip(rule.results, fresh, strict=True)
    ]
    if op.whole.target is aten.embedding.default and argument(op.whole, "scale_grad_by_freq"):
        return Found(fresh, f"{MIXES} with scale_grad_by_freq=True")
    return Found(layouts)


_MEANS: Final = frozenset({aten.mean.default, aten.mean.dim})
_LOSSES: Final = frozenset({aten.nll_loss_forward.default, aten.nll_loss2d_forward.default})
