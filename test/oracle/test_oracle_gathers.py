"""When states that ranks share out are gathered makes no difference to what is computed."""

from __future__ import annotations

import pytest
import small_gpt
from oracle import adamw, check_steps, piper_steps, plain_steps, sgd
from sharded import Sharded
from small_gpt import TAGS, token_loss

CLIP, LAYERS = 0.5, 6


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(Sharded("1F1B", 2, 2, 4, zero=1, gather="step"), id="next step"),
        pytest.param(
            Sharded("DualPipeV", 2, 2, 4, zero=2, gather="step", prefetch=3), id="early, next step"
        ),
        pytest.param(
            Sharded("Interleaved1F1B", 2, 2, 4, zero=3, prefetch=5, limit=20_000), id="what fits"
        ),
        pytest.param(Sharded("DualPipe", 2, 2, 4, zero=3, prefetch=9), id="all that comes"),
    ],
)
def test_training_equals_plain_pytorch(case: Sharded) -> None:
    """Three steps each of SGD with momentum and of AdamW, clipped; tied weights."""
    captures, batches = small_gpt.captures(tied=True, layers=LAYERS), small_gpt.batches(case)
    program = captures.compile(case.strategy(TAGS, sgd, clip=CLIP, stages=case.stages), batches[0])
    for factory in (sgd, adamw):
        expected = plain_steps(captures.model, token_loss, batches, factory, clip=CLIP)
        check_steps(piper_steps(program, captures.model, batches, factory), expected)
