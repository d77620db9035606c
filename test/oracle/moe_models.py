"""Unmodified models with experts of transformers, at test size."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import torch
from hf_models import LENGTH, VOCABULARY, WIDTH, next_token_loss
from oracle import randomize
from strategies import Captures
from torch import Tensor, nn

TAGS = {
    "model.embed_tokens": "embed",
    "model.layers.*": "layer",
    "model.norm": "head",
    "lm_head": "head",
}
# Plain PyTorch runs fp64 by transformers' loop over experts only.
SIZES: Mapping[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": WIDTH,
    "intermediate_size": 2 * WIDTH,
    "moe_intermediate_size": WIDTH // 2,
    "num_attention_heads": 4,
    "num_experts_per_tok": 3,
    "max_position_embeddings": 2 * LENGTH,
    "experts_implementation": "eager",
}


def qwen3_moe(layers: int) -> nn.Module:
    """Experts in every layer, three of four for each token; without an auxiliary loss."""
    from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

    sizes = {**SIZES, "num_hidden_layers": layers, "num_key_value_heads": 2, "head_dim": 4}
    model: nn.Module = Qwen3MoeForCausalLM(Qwen3MoeConfig(**sizes, num_experts=4))
    return model


def deepseek_v3(layers: int) -> nn.Module:
    """A dense layer first; then one of two groups of four experts for each token, chosen with a
    bias, and a shared expert.
    """
    from transformers import DeepseekV3Config, DeepseekV3ForCausalLM

    sizes = {**SIZES, "num_hidden_layers": layers, "num_key_value_heads": 4}
    sizes |= {"q_lora_rank": 8, "kv_lora_rank": 8}
    sizes |= {"qk_rope_head_dim": 4, "qk_nope_head_dim": 4, "v_head_dim": 4}
    sizes |= {"n_routed_experts": 8, "n_group": 2, "topk_group": 1, "first_k_dense_replace": 1}
    model: nn.Module = DeepseekV3ForCausalLM(DeepseekV3Config(**sizes))
    return model


FAMILIES: Mapping[str, Callable[[int], nn.Module]] = {
    "qwen3_moe": qwen3_moe,
    "deepseek_v3": deepseek_v3,
}


def biases(model: nn.Module) -> list[Tensor]:
    """The biases with which routers choose experts."""
    named = model.named_buffers()
    return [buffer for name, buffer in named if name.endswith("e_score_correction_bias")]


@cache
def captures(name: str, *, layers: int) -> Captures:
    """The model in fp64, with random weights and biases of routers, and its captures."""
    torch.manual_seed(0)
    model = FAMILIES[name](layers).double()
    randomize(model)
    for bias in biases(model):
        bias.copy_(torch.linspace(-0.3, 0.3, len(bias)))
    return Captures(model, next_token_loss)
