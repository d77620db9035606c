"""What a problem refuses, and what it says is right."""

from __future__ import annotations

import math
from typing import Any

import pytest
from piper.schedules import Homes
from piper.search import Memory, Problem, auto_order
from piper.simulate import Costs

FOUR = Homes.each(4)
REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "microbatches": ({"microbatches": 0}, "microbatches must be at least 1, got 0"),
    "homes": (
        {"homes": Homes.bidirectional(4, 6)},
        "homes must be for 8 microbatches, got 6",
    ),
    "latency": ({"latency": -1.0}, "latency must be finite and at least 0, got -1.0"),
    "endless latency": ({"latency": math.inf}, "latency must be finite and at least 0, got inf"),
    "stages": (
        {"costs": Costs.per_stage([1, 2, 3])},
        "costs of F must be one time or one for each of 4 stages, got 3",
    ),
    "pair": (
        {"costs": Costs.uniform(pair=None), "pair": {(0, 4): 1.0}},
        r"costs of pairs must be of stages below 4, got \(0, 4\)",
    ),
    "limits": (
        {"memory": Memory([4, 4])},
        "memory limit must be one number or one for each of 4 ranks, got 2",
    ),
    "chunks": (
        {"memory": Memory(4, chunk=[1, 2])},
        "memory chunk must be one number or one for each of 4 stages, got 2",
    ),
    "too little": (
        {"memory": Memory([1, 1, 1, 3], chunk=[1, 1, 1, 4])},
        (
            "memory limit of rank 3 must be at least 4, which one microbatch holds there between "
            "its last F and its first backward, got 3"
        ),
    ),
    "too little for two": (
        {"homes": Homes.v(2, 4), "memory": Memory(1.5)},
        "memory limit of rank 0 must be at least 2, which .*, got 1.5",
    ),
}


@pytest.mark.parametrize(("changes", "message"), REFUSED.values(), ids=REFUSED)
def test_refuses(changes: dict[str, Any], message: str) -> None:
    if "pair" in changes:
        changes = {"costs": Costs.per_stage(pair=changes["pair"])}
    given: dict[str, Any] = {"homes": FOUR, "microbatches": 8, "costs": Costs.uniform()}
    with pytest.raises(ValueError, match=f"^{message}$"):
        Problem(**{**given, **changes})


@pytest.mark.parametrize("limit", [0, -1, math.nan, []])
def test_refuses_memory_that_is_none(limit: Any) -> None:
    with pytest.raises(ValueError, match="memory limit must be above 0, got "):
        Memory(limit)
    with pytest.raises(ValueError, match="memory chunk must be above 0, got "):
        Memory(4, chunk=limit)


@pytest.mark.parametrize("effort", [0, -1, math.inf, math.nan])
def test_refuses_effort(effort: float) -> None:
    with pytest.raises(ValueError, match="effort must be finite and above 0, got "):
        auto_order(FOUR, microbatches=8, effort=effort)


@pytest.mark.parametrize(
    ("homes", "least"),
    [(FOUR, (1, 2, 3, 4)), (Homes.v(2, 4), (5, 5)), (Homes.bidirectional(4, 8), (4, 3, 3, 4))],
    ids=["each", "v", "bidirectional"],
)
def test_the_least_memory_is_enough(homes: Homes, least: tuple[int, ...]) -> None:
    memory = Memory(least, chunk=[1, 2, 3, 4])
    assert Problem(homes, 8, Costs.uniform(), memory=memory).least == least
    found = auto_order(homes, microbatches=8, memory=memory, effort=0.01)
    assert found.peaks == least
