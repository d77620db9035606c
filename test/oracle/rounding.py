"""How far bf16 may be from fp64: not farther than plain PyTorch in bf16 is, up to a factor."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest
import torch
from oracle import Step
from torch import Tensor

__all__ = ["BF16", "check_as_near"]

BF16 = 2.0**-8  # relative distance of neighbours, twice the most that one rounding does
NUMBERS = 4 * BF16  # relative: a loss or a norm is rounded a few times, in terms and their sum
FACTOR = 2.0  # two ways to round the same sums differ from one another by as much as from fp64
SMALL = 1 / 16
WORTH = 0.2  # relative: if plain PyTorch is as far, or farther, a bound says little


def check_as_near(found: Sequence[Step], plain: Sequence[Step], exact: Sequence[Step]) -> None:
    """Assert that steps in bf16 are at most twice as far from fp64 as those of plain PyTorch.

    In every step, of gradients and of states each: that of Piper which is farthest, against that of
    plain PyTorch which is farthest. Losses and norms of both are within `NUMBERS`.
    """
    assert len(found) == len(plain) == len(exact) > 0
    for number, (ours, theirs, wanted) in enumerate(zip(found, plain, exact, strict=True), start=1):
        for step in (ours, theirs):
            assert step.loss == pytest.approx(wanted.loss, rel=NUMBERS), number
            assert step.grad_norm == pytest.approx(wanted.grad_norm, rel=NUMBERS), number
        for kind in ("gradients", "states"):
            whole: Mapping[str, Tensor] = getattr(wanted, kind)
            bound = FACTOR * max(_distances(getattr(theirs, kind), whole).values())
            assert bound < FACTOR * WORTH, (number, kind)
            distances = _distances(getattr(ours, kind), whole)
            far = {name: value for name, value in distances.items() if not value <= bound}
            assert not far, f"step {number}: {kind} farther from fp64 than {bound}: {far}"


def _distances(found: Mapping[str, Tensor], exact: Mapping[str, Tensor]) -> dict[str, float]:
    """|found - exact| / |exact| of each tensor, by Euclidean norms.

    What is smaller than a part `SMALL` of all tensors together is measured by that part: the
    gradient of a bias of keys is 0, and what is found is what terms that cancel were rounded by.
    """
    assert found.keys() == exact.keys()
    least = SMALL * float(torch.stack([value.norm() for value in exact.values()]).norm())
    return {
        name: float((found[name].double() - value).norm()) / max(float(value.norm()), least)
        for name, value in exact.items()
    }
