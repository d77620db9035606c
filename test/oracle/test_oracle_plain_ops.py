"""The reference of the oracle runs no op of Piper's."""

from __future__ import annotations

import piper
import piper_runtime.ops
import pytest
import torch
from oracle import plain_steps
from sequence_models import Config, Sequences, batches, captures, token_loss
from small_gpt import Batch
from torch import Tensor, nn

MODEL = captures(Config(experts=True)).model
(BATCH,) = batches(Sequences("1F1B", 0, 0, 1), steps=1)


def test_other_ways_lead_to_the_same_loss() -> None:
    """Torch's attention and a loop over experts; behind the block models have Piper's again."""
    (step,) = plain_steps(MODEL, token_loss, [BATCH])
    assert piper.ops.attention is piper_runtime.ops.attention
    with torch.no_grad():
        assert step.loss == pytest.approx(float(token_loss(MODEL, BATCH)), abs=1e-12)


def test_an_op_that_has_no_other_way_is_an_error() -> None:
    def loss_fn(model: nn.Module, batch: Batch) -> Tensor:
        return piper_runtime.ops.local_loss(token_loss(model, batch))

    with pytest.raises(AssertionError, match=r"expected an op of torch, got piper\.local_term"):
        plain_steps(MODEL, loss_fn, [BATCH])
