"""Unedited models with experts: captures call Piper's ops, and the model is as it was."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
import torch
from capture_models import LLAMA_TAGS, VOCABULARY, WIDTH, hf_loss, token_batch
from piper import ops
from piper.frontend import Capture, capture, capture_eval
from piper.frontend.data import site_of, tag_of
from piper.frontend.op_facts import node_facts
from torch import Tensor, nn
from torch.nn import functional

SIZES: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": WIDTH,
    "intermediate_size": 2 * WIDTH,
    "moe_intermediate_size": 8,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 16,
}


def qwen3_moe(**changes: Any) -> nn.Module:
    """Experts in both layers."""
    from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

    sizes = SIZES | {"num_key_value_heads": 2, "head_dim": 4, "num_experts": 4} | changes
    model: nn.Module = Qwen3MoeForCausalLM(Qwen3MoeConfig(**sizes, num_experts_per_tok=3))
    return model


def deepseek_v3(**changes: Any) -> nn.Module:
    """Experts in the second layer alone."""
    from transformers import DeepseekV3Config, DeepseekV3ForCausalLM

    sizes = SIZES | {"num_key_value_heads": 4, "q_lora_rank": 8, "kv_lora_rank": 8} | changes
    sizes |= {"qk_rope_head_dim": 4, "qk_nope_head_dim": 4, "v_head_dim": 4}
    sizes |= {"n_routed_experts": 8, "n_group": 2, "topk_group": 1, "first_k_dense_replace": 1}
    model: nn.Module = DeepseekV3ForCausalLM(DeepseekV3Config(**sizes, num_experts_per_tok=3))
    return model


# Layers with experts.
MODELS = [pytest.param(qwen3_moe, 2, id="qwen3"), pytest.param(deepseek_v3, 1, id="deepseek")]


def taken(model: nn.Module, take: Any = capture) -> Capture:
    captured: Capture = take(
        model,
        hf_loss,
        token_batch(),
        annotations=LLAMA_TAGS,
        microbatches=2,
        data_shards=2,
    )
    return captured


def count_ops(captured: Capture, pass_: str) -> Counter[str]:
    """Piper's ops of experts in one pass."""
    prefix = "piper.moe_"
    names = [str(node.target) for node in captured.ops() if tag_of(node).pass_ == pass_]
    assert not any("transformers" in name for name in names)
    return Counter(name.split(".")[1] for name in names if name.startswith(prefix))


FORWARD = Counter(
    moe_sort=1,
    moe_exchange_counts=1,
    moe_permute=1,
    moe_dispatch=1,
    moe_group=1,
    moe_linear=2,
    moe_ungroup=1,
    moe_collect=1,
    moe_unpermute=1,
)
BACKWARD = Counter(
    moe_unpermute_rows=1,
    moe_unpermute_weights=1,
    moe_dispatch=1,
    moe_group=1,
    moe_linear_input=2,
    moe_linear_weight=2,
    moe_ungroup=1,
    moe_collect=1,
    moe_permute_backward=1,
)


def times(count: int, counter: Counter[str]) -> Counter[str]:
    return Counter({name: count * number for name, number in counter.items()})


@cache
def captured_model(make: Callable[[], nn.Module], dtype: torch.dtype = torch.float64) -> Capture:
    return taken(make().to(dtype))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("make", "layers"), MODELS)
def test_experts_are_pipers_ops(make: Any, layers: int, dtype: torch.dtype) -> None:
    """The same ones for every dtype, gradients of inputs and of weights by ops of their own."""
    captured = captured_model(make, dtype)
    assert count_ops(captured, "F") == times(layers, FORWARD)
    assert count_ops(captured, "B") == times(layers, BACKWARD)


def test_evaluation_has_the_same_ops() -> None:
    captured = taken(qwen3_moe(), capture_eval)
    assert count_ops(captured, "F") == times(2, FORWARD)
    assert not count_ops(captured, "B")


@pytest.mark.parametrize("implementation", [None, "eager"])
def test_the_model_stays_as_it_is(implementation: str | None) -> None:
    """Whatever it computes its experts with when it runs by itself."""
    from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS

    model = qwen3_moe(experts_implementation=implementation)
    before, config = set(ALL_EXPERTS_FUNCTIONS), copy.deepcopy(model.config)
    assert count_ops(taken(model), "F") == times(2, FORWARD)
    assert set(ALL_EXPERTS_FUNCTIONS) == before
    assert vars(model.config) == vars(config)


def test_facts_of_the_ops() -> None:
    """Products have FLOPs and are not computed twice, nor is what ranks exchange."""
    nodes = [node for node in captured_model(qwen3_moe).ops() if "piper." in str(node.target)]
    facts = {str(node.target).split(".")[1]: node_facts(node) for node in nodes}
    rows = 4 * 8 * 3
    products = {"moe_linear", "moe_linear_input", "moe_linear_weight"}
    for name in products:
        assert facts[name].flops in (2 * rows * WIDTH * 16, 2 * rows * WIDTH * 8)
    kept = {name for name, fact in facts.items() if "moe_" in name and fact.heavy}
    assert kept == products | {"moe_sort", "moe_exchange_counts", "moe_dispatch", "moe_collect"}
    for name in FORWARD | BACKWARD:
        assert facts[name].effects == "pure"
        assert not facts[name].strided
        assert facts[name].rule is not None


def test_what_lies_between_dispatch_and_collect_has_a_rule() -> None:
    """So that a compiler can let ranks have different numbers of rows there."""
    for make in (qwen3_moe, deepseek_v3):
        nodes = list(captured_model(make).ops())
        inside = {node for node in nodes if "moe_group" in str(node.target)}
        for node in nodes:
            ends = "moe_ungroup" in str(node.target) or "_weight" in str(node.target)
            if not ends and any(value in inside for value in node.all_input_nodes):
                inside.add(node)
        assert {str(node.target) for node in inside} >= {"aten.silu.default", "aten.cat.default"}
        missing = {str(node.target) for node in inside if node_facts(node).rule is None}
        assert missing <= {"<built-in function getitem>"}


class Router(nn.Module):
    """A hand-written layer of experts."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(WIDTH, 4)
        self.up = nn.Parameter(torch.randn(4, 8, WIDTH))
        self.down = nn.Parameter(torch.randn(4, WIDTH, 8))

    def forward(self, x: Tensor) -> Tensor:
        weights, index = self.gate(x).softmax(1).topk(2)
        return x + ops.moe_experts(x, index, weights, self.mlp, experts=4)

    def mlp(self, rows: Tensor, received: Tensor) -> Tensor:
        hidden = functional.gelu(ops.moe_linear(rows, self.up, received))
        return ops.moe_linear(hidden, self.down, received)


def test_models_written_by_hand_call_the_ops() -> None:
    """Their ops have the lines that call them."""
    model = nn.Sequential(Router(), Router())
    captured = capture(
        model,
        lambda m, batch: m(batch["x"]).pow(2).sum(),
        {"x": torch.zeros(8, WIDTH)},
        annotations={"0": "first", "1": "second"},
        microbatches=2,
        data_shards=1,
    )
    assert count_ops(captured, "F") == times(2, FORWARD)
    sites = {
        (
            str(node.target).split(".")[1],
            site_of(node).line - Router.forward.__code__.co_firstlineno,
        )
        for node in captured.ops()
        if "piper.moe_" in str(node.target) and tag_of(node).pass_ == "F"
    }
    assert all(site_of(node).file == __file__ for node in captured.ops())
    assert {line for name, line in sites if name == "moe_linear"} == {5, 6}
    assert {line for name, line in sites if name != "moe_linear"} == {2}
