"""Losses of several terms, of which one is written as a single call: label smoothing.

    cross_entropy(label_smoothing=s) = (1 - s) * nll_loss(p) + s / classes * mean(-p.sum(classes))

Both terms are made in one call from the same log-probabilities p.
"""

from __future__ import annotations

import operator
from typing import Final

import torch
from torch import fx

from piper.frontend.joint import needed_by

__all__ = ["name_terms"]

aten = torch.ops.aten

_NLL: Final = frozenset({aten.nll_loss_forward.default, aten.nll_loss2d_forward.default})


def name_terms(combine: fx.Node) -> str:
    """Say of a sum of two terms, which is no loss over examples, what it is, and what would be."""
    if _is_smoothing(combine):
        return (
            "a cross-entropy with label_smoothing, which adds a second mean; expected "
            "label_smoothing=0, or reduction='none' and .mean() or .sum() of the result, where a "
            "mean counts ignored labels, too"
        )
    return (
        f"several terms ({combine.target}); return one, and declare others, which are of a "
        "microbatch on a rank, by piper.local_loss"
    )


def _is_smoothing(combine: fx.Node) -> bool:
    """Return whether one call made both terms: a class loss, and another of its operand."""
    first, second = combine.all_input_nodes
    return _smooths(combine, first, second) or _smooths(combine, second, first)


def _smooths(combine: fx.Node, scaled: fx.Node, other: fx.Node) -> bool:
    picked = scaled.all_input_nodes[0] if scaled.target is aten.mul.Scalar else scaled
    loss = picked.args[0] if picked.target is operator.getitem else None
    if not isinstance(loss, fx.Node) or loss.target not in _NLL:
        return False
    written = [node.meta.get("stack_trace") for node in (loss, combine)]
    return written[0] == written[1] and loss.all_input_nodes[0] in needed_by([other])
