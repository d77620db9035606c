"""Times as integers, which a constraint program needs."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import NamedTuple

from piper.search.problem import Problem

__all__ = ["Scale"]

_UNITS = 10**6  # what a makespan has where times have no common unit
_MOST_UNITS = 10**8


class Scale(NamedTuple):
    """What times are multiplied by, and whether that makes all of them integers."""

    factor: float
    is_exact: bool

    @classmethod
    def of(cls, problem: Problem, makespan: float) -> Scale:
        """The smallest factor that makes all times of a problem integers, if it is not too large.

        Else one that makes the makespan a million, so that rounding down loses little.
        """
        times = problem.times()
        base = min((time for time in times if time > 0), default=1.0)
        ratios = [Fraction(time / base).limit_denominator(1000) for time in times]
        factor = math.lcm(*(ratio.denominator for ratio in ratios)) / base
        is_exact = all(
            abs(ratio * base - time) <= 1e-12 * time
            for ratio, time in zip(ratios, times, strict=True)
        )
        if is_exact and factor * makespan <= _MOST_UNITS:
            return cls(factor, is_exact=True)
        return cls(_UNITS / makespan, is_exact=False)

    def units(self, time: float) -> int:
        """A time in units, rounded down; exactly, where that can be."""
        return round(time * self.factor) if self.is_exact else math.floor(time * self.factor)
