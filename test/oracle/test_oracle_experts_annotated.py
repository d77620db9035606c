"""A layer with experts annotated in parts, of which some are computed again: as plain PyTorch.

    norm | router, sort, send | products, back, sum | shared

Which chunk has the layer's own ops follows from the modules before them. So a backward pass may
sort and count again, and send rows by that, in a chunk that has no weight of experts.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import piper
import pytest
import small_moe
from oracle import check_steps, piper_steps, plain_steps, sgd
from piper.strategy import Directive
from small_moe import EXPERT_STATES, Experted, captures, token_loss

PARTS = ("norm", "router", "experts", "shared")


@dataclass(frozen=True)
class Split:
    """The tag of each part, and how those that are named are computed again.

    With `apart` each part has a directive of its own, so that two of one tag are two chunks.
    """

    tags: str
    again: str
    apart: bool = True
    ops: tuple[str, ...] | None = None
    schedule: str = "1F1B"
    stages: tuple[int, ...] | None = None

    def __str__(self) -> str:
        """As a test id."""
        words = [self.tags, "apart" if self.apart else "joint", self.again, *(self.ops or ())]
        return "-".join([*words, self.schedule] if self.stages else words)

    def strategy(self) -> piper.Strategy:
        """On two ranks that hold the same experts each, and two stages if there are any."""
        stages = {"pp": 2} if self.stages else {}
        return piper.Strategy(mesh={**stages, "edp": 2, "ep": 2}, directives=[*self._directives()])

    def _directives(self) -> Iterable[Directive]:
        parts = {f"layers.*.{part}": tag for part, tag in zip(PARTS, self.tags, strict=True)}
        tags = {"embed": "first", **parts, "head": "last"}
        yield from (
            (piper.annotate({name: tag}) for name, tag in tags.items())
            if self.apart
            else [piper.annotate(tags)]
        )
        yield piper.split(microbatches=4)
        if self.stages:
            yield from (piper.place(stages=self.stages), piper.order(self.schedule))
        yield piper.replicate(axis=("edp", "ep"), zero=1)
        yield piper.shard(EXPERT_STATES, axis="ep")
        yield piper.update(sgd)
        yield from (piper.remat(tag, policy="full", ops=self.ops) for tag in self.again)


SPLITS = [
    Split("nrrr", "r"),  # what sends rows, and what multiplies them
    Split("nrrr", "nr", apart=False),
    Split("nres", "r"),
    Split("nres", "nres"),
    Split("nres", "ne", apart=False),
    Split("nnee", "n"),  # the layer's own ops alone
    Split("nene", "en"),
    Split("nrrr", "r", ops=("piper.moe_sort.default", "piper.moe_exchange_counts.default")),
    Split("nnee", "n", ops=("piper.moe_sort.default",)),
    Split("nrrr", "r", stages=(5, 5)),
    Split("nrrr", "r", schedule="ZBVZeroBubble", stages=(2, 3, 1, 4)),
]


@pytest.mark.parametrize(
    "split",
    [SPLITS[0], *(pytest.param(split, marks=pytest.mark.slow) for split in SPLITS[1:])],
    ids=str,
)
def test_parts_of_a_layer_are_computed_again(split: Split) -> None:
    shared = captures(layers=2 if split.stages else 1)
    batches = small_moe.batches(Experted("1F1B", 0, 2, 4, ep=2), steps=2)
    program = shared.compile(split.strategy(), batches[0])
    found = piper_steps(program, shared.model, batches, sgd)
    check_steps(found, plain_steps(shared.model, token_loss, batches, sgd))
