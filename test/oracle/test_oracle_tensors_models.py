"""Unmodified models of transformers whose weights ranks share out, against their single process."""

from __future__ import annotations

import hf_models
import piper
import pytest
from hf_models import FAMILIES, LLAMA_DIMS, next_token_loss
from ir_facts import count_ops
from oracle import BOUND, check_steps, piper_steps, plain_steps, sgd
from piper.strategy import Shard
from piper_runtime import Program
from small_tensors import CLIP, Tensors

# Conv1D has weights of inputs x outputs.
GPT2 = [("mlp.c_fc.weight", 1), ("mlp.c_fc.bias", 0), ("mlp.c_proj.weight", 0)]
DIRECTIVES: dict[str, list[Shard]] = {
    "llama": [
        *(
            piper.shard(f"model.layers.*.{name}.weight", axis="tp", dim=dim)
            for name, dim in LLAMA_DIMS.items()
        ),
        piper.shard("lm_head.weight", axis="tp"),
    ],
    "gpt2": [piper.shard(f"transformer.h.*.{name}", axis="tp", dim=dim) for name, dim in GPT2],
}
LAYERS = 2
# Of a number for each row of logits, forward, backward and in an evaluation.
GATHERS = {"llama": 3, "gpt2": 0}
# Of a layer forward, backward and in an evaluation; behind the head, and of two losses.
SUMS = {"llama": LAYERS * (2 + 2 + 2) + 1 + 2, "gpt2": LAYERS * (1 + 1 + 1)}
CASES = [Tensors("1F1B", 2, 2, 2), Tensors("DualPipeV", 2, 1, 4, zero=1)]


def plan(name: str, case: Tensors, shards: list[Shard]) -> piper.Strategy:
    stages = case.pp if case.schedule == "1F1B" else case.stages
    return case.strategy(FAMILIES[name].tags, sgd, clip=CLIP, stages=stages, more=shards)


@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("name", DIRECTIVES)
def test_training_equals_plain_pytorch(name: str, case: Tensors) -> None:
    """Two steps, as near to plain PyTorch as that is to itself in microbatches; nothing but sums
    is exchanged, and what a softmax needs of parts of the logits.
    """
    program = check(name, case, DIRECTIVES[name])
    counts = count_ops(program, "chunks")
    assert counts["piper.all_reduce"] == SUMS[name]
    assert counts["piper.all_gather"] == GATHERS[name]


def check(name: str, case: Tensors, shards: list[Shard]) -> Program:
    captures = hf_models.captures(name, layers=LAYERS)
    model, batch = captures.model, hf_models.make_batch(case)
    bound = max(BOUND, 10 * hf_models.floor(model, batch))
    stages = case.pp if case.schedule == "1F1B" else case.stages
    strategy = case.strategy(FAMILIES[name].tags, sgd, clip=CLIP, stages=stages, more=shards)
    program = captures.compile(strategy, batch)
    found = piper_steps(program, model, [batch, batch])
    expected = plain_steps(model, next_token_loss, [batch, batch], sgd, clip=CLIP)
    check_steps(found, expected, bound=bound)
    return program


@pytest.mark.parametrize("case", CASES, ids=str)
def test_fused_projections_are_gathered(case: Tensors) -> None:
    """Queries, keys and values of GPT-2 are thirds of the outputs of one product, so that parts of
    its weight are no parts of heads. What is made with them is right, and gathered in every pass.
    """
    fused = [piper.shard("transformer.h.*.attn.c_attn.weight", axis="tp", dim=1)]
    program = check("gpt2", case, fused)
    assert count_ops(program, "chunks")["piper.all_gather"] == 3 * LAYERS  # forward, backward, eval
