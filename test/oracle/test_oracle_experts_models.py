"""Unmodified models with experts, whose experts ranks share out, against their single process."""

from __future__ import annotations

import hf_models
import moe_models
import piper
import pytest
from hf_models import next_token_loss
from moe_models import FAMILIES, TAGS
from oracle import BOUND, check_steps, piper_steps, plain_steps, sgd
from small_moe import CLIP, Experted
from torch import Tensor, nn

EXPERT_STATES = "model.layers.*.mlp.experts.*"
# One chunk for embedding, each layer and the head: four stages are two layers.
CASES = {
    "1F1B": (Experted("1F1B", 2, 0, 2, zero=1), 2),
    "DualPipeV": (Experted("DualPipeV", 2, 0, 4, zero=1), 2),
    "DualPipeV-copies": (Experted("DualPipeV", 2, 2, 4, zero=1), 4),
}
RUNS = [
    pytest.param(
        name,
        *CASES[case],
        id=f"{name}-{case}",
        marks=[] if case == "DualPipeV" else pytest.mark.slow,
    )
    for name in FAMILIES
    for case in CASES
]


@pytest.mark.parametrize(("name", "case", "layers"), RUNS)
def test_training_equals_plain_pytorch(name: str, case: Experted, layers: int) -> None:
    """Two steps, as near to plain PyTorch as that is to itself in microbatches."""
    captures = moe_models.captures(name, layers=layers)
    model, batch = captures.model, hf_models.make_batch(case)
    bound = max(BOUND, 10 * hf_models.floor(model, batch))
    program = captures.compile(case.plan(tags=TAGS, experts=EXPERT_STATES), batch)
    found = piper_steps(program, model, [batch, batch])
    expected = plain_steps(model, next_token_loss, [batch, batch], sgd, clip=CLIP)
    check_steps(found, expected, bound=bound)


@pytest.mark.parametrize(
    ("part", "message"),
    [
        ("loss", "several terms .* by piper.local_loss"),
        ("aux_loss", "sums over the examples .* declare by piper.local_loss"),
    ],
)
def test_auxiliary_loss_is_refused_unless_declared(part: str, message: str) -> None:
    """It couples the tokens of a batch, so that it would be another one in every microbatch."""

    def balanced_loss(model: nn.Module, batch: hf_models.Batch) -> Tensor:
        """What keeps routers using all experts alike: beside the cross-entropy, or alone."""
        ids, labels = batch["ids"], batch["labels"]
        given = model(input_ids=ids, labels=labels, output_router_logits=True, use_cache=False)
        loss: Tensor = given[part]
        return loss

    case = CASES["1F1B"][0]
    model, batch = moe_models.qwen3_moe(2).double(), hf_models.make_batch(case)
    balanced_loss(model, batch)  # transformers installs hooks, which capture could not
    with pytest.raises(piper.CaptureError, match=rf"modeling_qwen3_moe.py:\d+: .*{message}"):
        piper.compile(model, balanced_loss, case.plan(tags=TAGS, experts=EXPERT_STATES), batch)
