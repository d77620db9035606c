"""A byte-level GPT in plain PyTorch: nothing of Piper in it."""

# ruff: noqa: D102, D107, N812  (plain PyTorch style)

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn


@dataclass(frozen=True)
class Config:
    """Sizes of a `GPT`: one token per byte; `width` must be a multiple of `heads`."""

    layers: int = 4
    width: int = 128
    heads: int = 4
    context: int = 128
    vocabulary: int = 256
    tied: bool = False


class Embedding(nn.Module):
    """Token plus learned position embedding: ids (batch, time) int64 -> (batch, time, width)."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.token = nn.Embedding(config.vocabulary, config.width)
        self.position = nn.Embedding(config.context, config.width)

    def forward(self, ids: Tensor) -> Tensor:
        x: Tensor = self.token(ids) + self.position(torch.arange(ids.shape[1], device=ids.device))
        return x


class Block(nn.Module):
    """Pre-norm causal self-attention and MLP, each with a residual connection."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.heads = config.heads
        self.norm1 = nn.LayerNorm(config.width)
        self.qkv = nn.Linear(config.width, 3 * config.width)
        self.proj = nn.Linear(config.width, config.width)
        self.norm2 = nn.LayerNorm(config.width)
        self.up = nn.Linear(config.width, 4 * config.width)
        self.down = nn.Linear(4 * config.width, config.width)

    def attention(self, x: Tensor) -> Tensor:
        batch, time, width = x.shape
        qkv = self.qkv(x).view(batch, time, 3, self.heads, width // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4).unbind(0)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        out: Tensor = self.proj(y.transpose(1, 2).reshape(batch, time, width))
        return out

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        x = x + self.down(F.gelu(self.up(self.norm2(x))))
        return x


class Head(nn.Module):
    """Final norm and projection to logits: (batch, time, width) -> (batch, time, vocabulary)."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(config.width)
        self.out = nn.Linear(config.width, config.vocabulary, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.out(self.norm(x))
        return logits


class GPT(nn.Module):
    """Logits of the next byte: ids (batch, time <= context) int64 -> (batch, time, vocabulary)."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.embed = Embedding(config)
        self.layers = nn.ModuleList(Block(config) for _ in range(config.layers))
        self.head = Head(config)
        self.apply(_init)
        if config.tied:
            self.head.out.weight = self.embed.token.weight

    def forward(self, ids: Tensor) -> Tensor:
        x: Tensor = self.embed(ids)
        for layer in self.layers:
            x = layer(x)
        logits: Tensor = self.head(x)
        return logits


def _init(module: nn.Module) -> None:
    """GPT-2's initialisation: normal weights of deviation 0.02, zero biases."""
    if isinstance(module, nn.Linear | nn.Embedding):
        nn.init.normal_(module.weight, std=0.02)
    if isinstance(module, nn.Linear) and module.bias is not None:
        nn.init.zeros_(module.bias)
