"""Random small pipelines with every kind of cost, for properties."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

from piper.schedules import Homes
from piper.search import Memory, Problem, auto_order
from piper.simulate import Costs

TINY = [
    (Homes.each(2), 2),
    (Homes.each(2), 3),
    (Homes.listed([0, 1, 0]), 2),
    (Homes.listed([0, 1, 1]), 2),
    (Homes.v(2, 4), 1),
    (Homes.loop(2, 4), 1),
    (Homes.each(1), 3),
    (Homes.listed([0, 0, 0]), 2),
    (Homes.each(3), 2),
    (Homes.bidirectional(2, 2), 2),
]
"""Few enough actions to try all orders."""


@dataclass(frozen=True)
class Sizes:
    """Numbers that costs are drawn from; 0 makes actions that take no time."""

    times: tuple[int, ...] = (1, 1, 2, 2, 3, 4)
    spare: tuple[int, ...] = (0, 0, 1, 2, 9)


def draw(seed: int, homes: Homes, microbatches: int, sizes: Sizes | None = None) -> Problem:
    """A problem: uneven stages, and some of cheap wholes, cheap pairs, slow messages, big chunks."""
    sizes = sizes or Sizes()
    rng = random.Random(seed)
    stages = homes.stages
    f, i, w = ([rng.choice(sizes.times) for _ in range(stages)] for _ in range(3))
    options: dict[str, Any] = {}
    kind = rng.choice(("plain", "plain", "whole", "pair", "pairs"))
    if kind == "whole":
        options["B"] = [max(0, a + b - rng.choice((0, 0.5, 1))) for a, b in zip(i, w, strict=True)]
    if kind == "pair":
        options["pair"] = rng.choice((2, 3, 4))
    if kind == "pairs":
        options["pair"] = {
            (rng.randrange(stages), rng.randrange(stages)): rng.choice((1, 2, 3, 5))
            for _ in range(3)
        }
    chunk = [rng.choice((1, 1, 2)) for _ in range(stages)]
    costs = Costs.per_stage(f, I=i, W=w, **options)
    latency = rng.choice((0.0, 0.0, 0.5, 2.0))
    roomy = Problem(homes, microbatches, costs, latency, Memory(1e9, chunk))
    limits = [least + rng.choice(sizes.spare) for least in roomy.least]
    return Problem(homes, microbatches, costs, latency, Memory(limits, chunk))


def show() -> str:
    """What searches find that use every part: pairs, little memory, too little effort to end."""
    costs = Costs.uniform(2, I=3, W=1, pair=4.5)
    return "\n".join(
        str(auto_order(homes, microbatches=4, costs=costs, memory=5, effort=0.05))
        for homes in (Homes.v(2, 4), Homes.bidirectional(2, 4))
    )
