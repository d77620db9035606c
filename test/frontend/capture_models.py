"""Small models for capture tests."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

VOCABULARY, WIDTH, LENGTH, HEADS = 32, 16, 8, 2
GPT_TAGS = {"embed": "first", "layers.*": "layer", "norm": "last", "head": "last"}


class Attention(nn.Module):
    def __init__(self, fused: bool) -> None:
        super().__init__()
        self.fused = fused
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH)
        self.mask: Tensor
        self.register_buffer("mask", torch.ones(LENGTH, LENGTH, dtype=torch.bool).tril())

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        split = self.qkv(x).view(batch, length, 3, HEADS, width // HEADS).permute(2, 0, 3, 1, 4)
        q, k, v = split[0], split[1], split[2]
        if self.fused:
            y = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        else:
            scores = (q @ k.transpose(-2, -1)) / math.sqrt(width // HEADS)
            y = scores.masked_fill(~self.mask, float("-inf")).softmax(-1) @ v
        result: Tensor = self.out(y.transpose(1, 2).reshape(batch, length, width))
        return result


class Block(nn.Module):
    def __init__(self, fused: bool) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(WIDTH)
        self.attention = Attention(fused)
        self.norm2 = nn.LayerNorm(WIDTH)
        self.up = nn.Linear(WIDTH, 2 * WIDTH)
        self.down = nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x: Tensor, keep: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x)) * keep
        y: Tensor = x + self.down(functional.gelu(self.up(self.norm2(x))))
        return y


class Embed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.token = nn.Embedding(VOCABULARY, WIDTH)
        self.position = nn.Embedding(LENGTH, WIDTH)

    def forward(self, ids: Tensor) -> Tensor:
        position: Tensor = self.position(torch.arange(ids.shape[1], device=ids.device))
        x: Tensor = self.token(ids) + position
        return x


class Gpt(nn.Module):
    def __init__(self, *, fused: bool = False, tied: bool = False, layers: int = 2) -> None:
        super().__init__()
        self.embed = Embed()
        self.layers = nn.ModuleList(Block(fused) for _ in range(layers))
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)
        if tied:
            self.head.weight = self.embed.token.weight

    def forward(self, ids: Tensor) -> Tensor:
        keep = (ids != 0).to(self.norm.weight.dtype).unsqueeze(-1)
        x = self.embed(ids)
        for layer in self.layers:
            x = layer(x, keep)
        logits: Tensor = self.head(self.norm(x))
        return logits


def token_loss(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    logits = model(batch["ids"])
    return functional.cross_entropy(logits.flatten(0, 1), batch["labels"].flatten())


def hf_loss(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    logits = model(input_ids=batch["ids"], use_cache=False).logits
    return functional.cross_entropy(logits[:, :-1].flatten(0, 1), batch["labels"][:, 1:].flatten())


def token_batch(rows: int = 16) -> dict[str, Tensor]:
    """Uneven ignored labels; the second microbatch of four rows has no valid label."""
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(0, VOCABULARY, (rows, LENGTH), generator=generator)
    labels = torch.randint(0, VOCABULARY, (rows, LENGTH), generator=generator)
    ignored = (
        torch.rand(rows, LENGTH, generator=generator) < torch.linspace(0.1, 0.8, rows)[:, None]
    )
    labels[ignored] = -100
    labels[4:8] = -100
    return {"ids": ids, "labels": labels}


def gpt2(**changes: Any) -> nn.Module:
    from transformers import GPT2Config, GPT2LMHeadModel

    options = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0, **changes}
    model: nn.Module = GPT2LMHeadModel(
        GPT2Config(
            vocab_size=VOCABULARY, n_positions=16, n_embd=WIDTH, n_layer=2, n_head=HEADS, **options
        )
    )
    return model


def llama() -> nn.Module:
    from transformers import LlamaConfig, LlamaForCausalLM

    model: nn.Module = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=VOCABULARY,
            hidden_size=WIDTH,
            intermediate_size=2 * WIDTH,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            max_position_embeddings=16,
        )
    )
    return model


GPT2_TAGS = {
    "transformer.wte": "embed",
    "transformer.wpe": "embed",
    "transformer.h.*": "layer",
    "transformer.ln_f": "head",
    "lm_head": "head",
}
LLAMA_TAGS = {
    "model.embed_tokens": "embed",
    "model.layers.*": "layer",
    "model.norm": "head",
    "lm_head": "head",
}


def hf_own_loss(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    loss: Tensor = model(input_ids=batch["ids"], labels=batch["labels"], use_cache=False).loss
    return loss


class Mlp(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(WIDTH, WIDTH)
        self.second = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.second(functional.relu(self.first(x)))
        return y


def row_batch(rows: int = 8) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(1)
    return {
        "x": torch.randn(rows, WIDTH, generator=generator, dtype=torch.float64),
        "y": torch.randn(rows, WIDTH, generator=generator, dtype=torch.float64),
        "label": torch.randint(0, WIDTH, (rows,), generator=generator),
    }
