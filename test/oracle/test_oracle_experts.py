"""Unmodified models with experts, against themselves: routers, products, and their two halves."""

from __future__ import annotations

import copy
from collections import Counter

import hf_models
import moe_models
import pytest
import torch
from hf_models import next_token_loss
from moe_models import TAGS
from oracle import BOUND, check_steps, piper_steps, plain_steps, sgd
from piper.simulate import ProgramFacts
from strategies import Case

# Chunks are embedding, layers and head.
ONE_F_ONE_B = (Case("1F1B", 2, 1, 4), 2, 2)
ZBV = (Case("ZBVZeroBubble", 2, 1, 4), 2, 4)
OPS = ("linear", "linear_input", "linear_weight")
RUNS = [
    pytest.param("qwen3_moe", *ONE_F_ONE_B, id="qwen3_moe-1f1b"),
    pytest.param("qwen3_moe", *ZBV, id="qwen3_moe-zbv"),
    pytest.param("deepseek_v3", *ONE_F_ONE_B, id="deepseek_v3-1f1b"),
    pytest.param("deepseek_v3", *ZBV, id="deepseek_v3-zbv"),
]


@pytest.mark.parametrize(("name", "case", "layers", "stages"), RUNS)
def test_training_equals_plain_pytorch(name: str, case: Case, layers: int, stages: int) -> None:
    """Two steps of SGD, as near to plain PyTorch as that is to itself in microbatches."""
    captures = moe_models.captures(name, layers=layers)
    model, batch = captures.model, hf_models.make_batch(case)
    bound = max(BOUND, 10 * hf_models.floor(model, batch))
    program = captures.compile(case.strategy(TAGS, sgd, stages=stages), batch)
    found = piper_steps(program, model, [batch, batch])
    expected = plain_steps(model, next_token_loss, [batch, batch], sgd)
    check_steps(found, expected, bound=bound)


def test_biases_of_routers_choose() -> None:
    """Without them, tokens of DeepSeek-V3 go to other experts."""
    model = copy.deepcopy(moe_models.captures("deepseek_v3", layers=2).model)
    batch = hf_models.make_batch(ONE_F_ONE_B[0])
    with torch.no_grad():
        chosen = next_token_loss(model, batch)
        for bias in moe_models.biases(model):
            bias.zero_()
        assert abs(chosen - next_token_loss(model, batch)) > 1e-6


def test_products_of_experts_are_split() -> None:
    """A layer's I has the gradients of its rows, W those of its weights."""
    captures = moe_models.captures("qwen3_moe", layers=2)
    case, _, stages = ZBV
    program = captures.compile(case.strategy(TAGS, sgd, stages=stages), hf_models.make_batch(case))
    text = program.texts["kernels.py"]
    assert "transformers.grouped_mm" not in text
    bodies = {body.partition("(")[0]: body for body in text.split("\ndef ")[1:]}
    found: dict[str, Counter[str]] = {}
    for name, chunk in ProgramFacts.read(program).chunks.items():
        if name.startswith("layer."):
            kernels = "".join(bodies[kernel.replace("$", "_")] for kernel in chunk.kernels)
            counts = {op: kernels.count(f"piper_moe_{op}_default(") for op in OPS}
            found.setdefault(name.partition("$")[2], Counter()).update(counts)
    layers = 2
    assert found["F"] == {"linear": 2 * layers, "linear_input": 0, "linear_weight": 0}
    assert found["I"] == {"linear": 0, "linear_input": 2 * layers, "linear_weight": 0}
    assert found["W"] == {"linear": 0, "linear_input": 0, "linear_weight": 2 * layers}
