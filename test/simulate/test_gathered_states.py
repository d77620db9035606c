"""How much of the states that ranks share out is whole at once, and how often it is gathered."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

import piper
import pytest
import torch
from compiled_mlp import Mlp, adamw, square_loss
from piper.simulate import ProgramFacts
from piper.simulate.communication import measure_traffic, measure_volumes
from piper.simulate.predicted import entry_memory

DP, LAYERS, WIDTH, MICROBATCHES = 4, 6, 32, 4
BUCKET = (WIDTH * WIDTH + WIDTH) * 4
"""Bytes of a layer, which is a chunk and a bucket."""
SHARD = BUCKET / DP
LOSS = 4  # bytes


@cache
def facts_of(**options: object) -> ProgramFacts:
    """All layers on one stage."""
    strategy = piper.Strategy(
        mesh={"dp": DP},
        directives=[
            piper.annotate({"layers.*": "layer"}),
            piper.split(microbatches=MICROBATCHES),
            piper.replicate(axis="dp", **options),  # type: ignore[arg-type]
            piper.update(adamw),
        ],
    )
    batch = {"x": torch.randn(DP * MICROBATCHES * 2, WIDTH)}
    return ProgramFacts.read(piper.compile(Mlp(WIDTH, LAYERS), square_loss, strategy, batch))


@pytest.mark.parametrize(
    ("options", "whole"),
    [
        pytest.param({"gather": "each", "prefetch": 0}, 1, id="what is used"),
        pytest.param({"prefetch": 0}, 1, id="shared by uses in a row"),
        pytest.param({}, 2, id="one ahead"),
        pytest.param({"prefetch": 3}, 4, id="three ahead"),
        pytest.param({"prefetch": LAYERS, "gather_limit": 3 * BUCKET}, 3, id="what fits"),
        pytest.param({"prefetch": LAYERS, "gather_limit": 1}, 1, id="nothing else fits"),
        pytest.param({"gather": "step"}, LAYERS, id="all, for the step"),
    ],
)
def test_no_more_is_whole_than_is_used_or_asked_for_early(
    options: Mapping[str, object], whole: int
) -> None:
    """Beside it, there is the shard of one reduced contribution, and in the last microbatch the
    loss that ranks have summed.
    """
    memory = entry_memory(facts_of(zero=3, **options), "train", per_parameter=8)[0]
    assert memory.parameters == LAYERS * SHARD
    assert 0 <= max(memory.curve.communication) - whole * BUCKET - SHARD <= LOSS


def gathers(**options: object) -> tuple[int, float | None]:
    """How many gathers there are, and their bytes over those of the textbook."""
    [found] = [item for item in measure_traffic(facts_of(**options)) if item.op == "all_gather"]
    return found.calls, found.ratio


def test_uses_in_a_row_share_a_gather() -> None:
    """The first layer's backward pass does not read the weight: no one asks for the input's
    gradient.
    """
    each = MICROBATCHES * (2 * LAYERS - 1)
    assert gathers(zero=3, gather="each") == (each, 1.0)
    shared = each - MICROBATCHES  # both passes of the last layer
    assert gathers(zero=3, gather="group") == (shared, shared / each)
    assert gathers(zero=3, gather="step") == (LAYERS, 1.0)


@pytest.mark.parametrize("zero", [1, 2])
def test_what_was_updated_can_be_gathered_in_the_next_step(zero: int) -> None:
    """It moves as often, and is kept as parts between steps."""
    at_the_end, later = facts_of(zero=zero), facts_of(zero=zero, gather="step")
    assert gathers(zero=zero) == gathers(zero=zero, gather="step") == (LAYERS, 1.0)
    multiples = [measure_volumes(facts)[0].multiple for facts in (at_the_end, later)]
    assert multiples[0] == multiples[1]
    first, second = (
        entry_memory(facts, "train", per_parameter=8)[0] for facts in (at_the_end, later)
    )
    assert (first.parameters, second.parameters) == (LAYERS * BUCKET, LAYERS * SHARD)


def test_a_gather_that_microbatches_share_is_less_than_the_textbook_says() -> None:
    strategy = piper.Strategy(
        mesh={"pp": 2, "dp": 2},
        directives=[
            piper.annotate({"layers.*": "layer"}),
            piper.place(stages=2),
            piper.split(microbatches=MICROBATCHES),
            piper.order("1F1B"),
            piper.replicate(axis="dp", zero=3),
            piper.update(adamw),
        ],
    )
    batch = {"x": torch.randn(2 * MICROBATCHES * 2, WIDTH)}
    facts = ProgramFacts.read(piper.compile(Mlp(WIDTH, 4), square_loss, strategy, batch))
    found = {
        item.coordinates[0]: (item.calls, item.ratio)
        for item in measure_traffic(facts)
        if item.op == "all_gather"
    }
    # On the second stage, both passes of its last layer follow each other, and so do the backward
    # pass of its first and the forward pass of the next microbatch.
    first, last = 2 * MICROBATCHES - (MICROBATCHES - 1), MICROBATCHES
    assert found[1] == (first + last, (first + last) / (2 * 2 * MICROBATCHES))
