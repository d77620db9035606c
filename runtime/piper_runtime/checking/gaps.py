"""How far values are from what is expected, as a fraction of the largest element."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from piper_runtime.checking.oracle import Value
from piper_runtime.errors import CheckError

__all__ = ["BOUNDS", "Summary", "find_gap"]

BOUNDS = {torch.float64: 1e-9, torch.float32: 1e-4, torch.bfloat16: 2e-2, torch.float16: 2e-2}
"""How far values of a dtype may be apart; those of other dtypes must be equal."""


@dataclass(slots=True)
class Summary:
    """What was compared: how many values, how many had nothing to compare with, the worst gap."""

    compared: int = 0
    unknown: int = 0
    gap: float = 0.0
    worst: str = ""

    def __str__(self) -> str:
        """Return it in a sentence."""
        worst = f", {self.gap:.1e} of the largest element at most, in {self.worst}"
        unknown = f"; {self.unknown} had no counterpart" if self.unknown else ""
        return f"{self.compared} values equal those of the single process{worst}{unknown}"


def find_gap(what: str, value: Any, expected: Value, bound: float | None) -> float:
    """Return by how much a value is off; raises CheckError if that is too much."""
    if isinstance(expected, tuple):
        if not isinstance(value, tuple) or len(value) != len(expected):
            got = (
                f"one of {len(value)}" if isinstance(value, tuple) else f"a {type(value).__name__}"
            )
            raise CheckError(f"{what} expected a pack of {len(expected)}, got {got}")
        scale = max(map(_largest, expected), default=0.0)
        pairs = zip(value, expected, strict=True)
        return max(
            (
                _find_tensor_gap(f"{what}, part {i}", v, e, bound, scale)
                for i, (v, e) in enumerate(pairs)
            ),
            default=0.0,
        )
    return _find_tensor_gap(what, value, expected, bound, _largest(expected))


def _find_tensor_gap(
    what: str, value: Any, expected: Tensor, bound: float | None, scale: float
) -> float:
    want = (tuple(expected.shape), expected.dtype)
    got = (tuple(value.shape), value.dtype) if isinstance(value, Tensor) else (type(value), None)
    if got != want:
        raise CheckError(f"{what} expected {want[1]} of shape {want[0]}, got {got[1]} of {got[0]}")
    differs = (value != expected) & ~(value.isnan() & expected.isnan())
    if not bool(differs.any()):
        return 0.0
    at = tuple(int(index) for index in differs.nonzero()[0])
    gaps = (value[differs].double() - expected[differs].double()).abs()
    gap = float(gaps.max()) / (scale or 1.0)
    most = BOUNDS.get(value.dtype, 0.0) if bound is None else bound
    if not gap <= most:
        raise CheckError(
            f"{what} differs from the single process by {gap:.1e} of the largest element, bound "
            f"{most:.0e}, first at {list(at)}: expected {expected[at].item()!r}, "
            f"got {value[at].item()!r}"
        )
    return gap


def _largest(tensor: Tensor) -> float:
    """Return the largest finite magnitude of a tensor."""
    numbers = tensor.byte() if tensor.dtype == torch.bool else tensor
    finite = numbers[numbers.isfinite()] if numbers.is_floating_point() else numbers
    return float(finite.abs().max()) if finite.numel() else 0.0
