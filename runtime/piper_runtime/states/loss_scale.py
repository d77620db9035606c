"""Loss scaling: what losses are multiplied by, so that narrow gradients do not round to zero."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

__all__ = ["LossScale", "LossScaler", "check_loss_scale", "unscaled"]


@dataclass(frozen=True, slots=True)
class LossScale:
    """A loss scale that changes, as that of ``torch.amp.GradScaler`` (Micikevicius et al., 2018).

    It begins as ``initial``. A step whose gradients are not finite is skipped, and the scale is
    multiplied by ``backoff``; after ``interval`` steps in a row that were not, by ``growth``.

    Raises TypeError for what is no number, ValueError for a scale that is not positive and finite,
    a growth of 1 or less, a backoff outside 0 to 1, or an interval below 1.
    """

    initial: float = 2.0**16
    growth: float = 2.0
    backoff: float = 0.5
    interval: int = 2000

    def __post_init__(self) -> None:
        """Check the fields."""
        check_loss_scale("LossScale initial", self.initial)
        check_loss_scale("LossScale growth", self.growth)
        check_loss_scale("LossScale backoff", self.backoff)
        if self.growth <= 1:
            raise ValueError(f"LossScale growth must be above 1, got {self.growth!r}")
        if self.backoff >= 1:
            raise ValueError(f"LossScale backoff must be below 1, got {self.backoff!r}")
        if type(self.interval) is not int:
            raise TypeError(f"LossScale interval must be an int, got {self.interval!r}")
        if self.interval < 1:
            raise ValueError(f"LossScale interval must be at least 1, got {self.interval!r}")


class LossScaler:
    """The loss scale of a trainer: ``value`` now, and what is needed to change it.

    It is the same on every rank, since all learn alike whether a step was skipped.
    """

    def __init__(self, spec: float | LossScale | None) -> None:
        """Begin with the first scale; 1 without one."""
        self._rule = spec if isinstance(spec, LossScale) else None
        first = spec.initial if isinstance(spec, LossScale) else spec
        self.value = 1.0 if first is None else float(first)
        self._in_a_row = 0

    def update(self, *, skipped: bool) -> None:
        """Go on after a step."""
        rule = self._rule
        if rule is None:
            return
        if skipped:
            smallest = torch.finfo(torch.float32).tiny  # a scale is divided by
            self.value, self._in_a_row = max(self.value * rule.backoff, smallest), 0
            return
        self._in_a_row += 1
        if self._in_a_row == rule.interval:
            grown = self.value * rule.growth
            self.value = grown if grown <= torch.finfo(torch.float32).max else self.value
            self._in_a_row = 0

    def state_dict(self) -> dict[str, float | int]:
        """Return what a checkpoint keeps: the scale, and for how many steps it has been right."""
        return {"scale": self.value, "in_a_row": self._in_a_row}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from what ``state_dict`` returned.

        Raises ValueError for other keys, or a number that cannot be one.
        """
        if set(state) != {"scale", "in_a_row"}:
            raise ValueError(f"loss scale expected keys scale and in_a_row, got {sorted(state)}")
        check_loss_scale("loss scale", state["scale"])
        if type(state["in_a_row"]) is not int or state["in_a_row"] < 0:
            raise ValueError(f"loss scale expected steps in a row, got {state['in_a_row']!r}")
        self.value, self._in_a_row = float(state["scale"]), state["in_a_row"]


def unscaled(gradients: Mapping[str, Tensor], scale: float) -> dict[str, Tensor]:
    """Return gradients divided by a scale, in float32 at least: in a narrow dtype they round."""
    return {
        name: gradient.to(torch.promote_types(gradient.dtype, torch.float32)) / scale
        for name, gradient in gradients.items()
    }


def check_loss_scale(what: str, value: object) -> None:
    """Check that a value is a positive, finite number; raises TypeError or ValueError."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{what} must be a number, got {value!r}")
    if not (value > 0 and math.isfinite(value)):
        raise ValueError(f"{what} must be positive and finite, got {value!r}")
