"""A transformer with grouped heads at test size, and cases whose ranks share out its weights."""

# ruff: noqa: N812  (plain PyTorch style)

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Literal

import piper
import small_gpt
import torch
import torch.nn.functional as F
from oracle import randomize, sgd
from piper.strategy import Directive, Remat, Shard
from piper_runtime.states.optimizer import OptimizerFactory
from sharded import Sharded
from small_gpt import TAGS, VOCABULARY, Batch, token_loss
from strategies import Captures
from torch import Tensor, nn

WIDTH, HEADS, HIDDEN = 16, 4, 24
CLIP = 0.5
# Weights and biases of these have the part of their outputs, and weights of those that of inputs.
OUTPUTS = ("attention.q", "attention.k", "attention.v", "up")
INPUTS = ("attention.o", "down")

By = Literal["whole", "vocabulary", "width"]


@dataclass(frozen=True)
class Config:
    """What varies: heads, those of keys and values, the kind of norm, whether embedding is the head,
    and sizes that ranks may not divide.
    """

    heads: int = HEADS
    kv_heads: int = 2
    rms: bool = False
    tied: bool = False
    layers: int = 2
    vocabulary: int = VOCABULARY
    hidden: int = HIDDEN


PLAIN = Config()


class Attention(nn.Module):
    """Causal attention, in which several heads of queries share one of keys and values."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.size = WIDTH // config.heads
        narrow = self.size * config.kv_heads
        self.q, self.o = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.k, self.v = nn.Linear(WIDTH, narrow), nn.Linear(WIDTH, narrow)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (
            linear(x).unflatten(-1, (-1, self.size)).transpose(1, 2)
            for linear in (self.q, self.k, self.v)
        )
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        out: Tensor = self.o(y.transpose(1, 2).flatten(2))
        return out


class Layer(nn.Module):
    """Attention and two products with a nonlinearity between, each behind a norm."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.norm1, self.norm2 = norm(config), norm(config)
        self.attention = Attention(config)
        self.up = nn.Linear(WIDTH, config.hidden)
        self.down = nn.Linear(config.hidden, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        x = x + self.down(F.gelu(self.up(self.norm2(x))))
        return x


class Head(nn.Module):
    """A norm and logits."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.norm = norm(config)
        self.out = nn.Linear(WIDTH, config.vocabulary, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.out(self.norm(x))
        return logits


class Model(nn.Module):
    """Logits of a token per position: ids (batch, time) -> (batch, time, vocabulary)."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.embed = nn.Embedding(config.vocabulary, WIDTH)
        self.layers = nn.ModuleList(Layer(config) for _ in range(config.layers))
        self.head = Head(config)
        if config.tied:
            self.head.out.weight = self.embed.weight

    def forward(self, ids: Tensor) -> Tensor:
        x: Tensor = self.embed(ids)
        for layer in self.layers:
            x = layer(x)
        logits: Tensor = self.head(x)
        return logits


def norm(config: Config) -> nn.Module:
    """One of the two kinds."""
    return nn.RMSNorm(WIDTH) if config.rms else nn.LayerNorm(WIDTH)


@cache
def captures(config: Config, *, dtype: torch.dtype = torch.float64) -> Captures:
    """The model with random weights, and its captures."""
    torch.manual_seed(0)
    model = Model(config)
    randomize(model)
    return Captures(model.to(dtype), token_loss)


@dataclass(frozen=True)
class Tensors(Sharded):
    """A case whose `tp` ranks share out the weights of layers, and perhaps more of the model.

    All ranks along `tp` have the same batch. With `sequence` they hold parts of the sequence
    between products.
    """

    tp: int = 2
    embed: By = "whole"
    head: By = "whole"
    layers: bool = True
    sequence: bool = False
    remat: Remat | None = None

    def __str__(self) -> str:
        """As a test id."""
        options = [f"tp{self.tp}"]
        options += [f"{name}-{by}" for name, by in self.ends if by != "whole"]
        options += [] if self.layers else ["ends"]
        options += ["sequence"] if self.sequence else []
        options += [self.remat.policy] if self.remat else []
        return "-".join([super().__str__(), *options])

    @property
    def ends(self) -> tuple[tuple[str, By], ...]:
        """How embedding and head are shared out."""
        return ("embed", self.embed), ("head", self.head)

    @property
    def mesh(self) -> dict[str, int]:
        """See `Case`."""
        return {**super().mesh, "tp": self.tp}

    def shards(self) -> Iterator[Shard]:
        """Yield which states are shared out, and along which dim."""
        if self.layers:
            for name in OUTPUTS:
                yield piper.shard(f"layers.*.{name}.*", axis="tp", dim=0)
            for name in INPUTS:
                yield piper.shard(f"layers.*.{name}.weight", axis="tp", dim=1)
        for name, (_, by) in zip(("embed.weight", "head.out.weight"), self.ends, strict=True):
            if by != "whole":
                yield piper.shard(name, axis="tp", dim=("vocabulary", "width").index(by))

    def plan(
        self,
        factory: OptimizerFactory = sgd,
        *,
        tags: Mapping[str, str] = TAGS,
        reduce_dtype: torch.dtype | None = None,
    ) -> piper.Strategy:
        """The whole strategy."""
        more: list[Directive] = [*self.shards(), *([self.remat] if self.remat else [])]
        more += [piper.sequence("tp", {"ids": 1, "labels": 1})] if self.sequence else []
        return self.strategy(
            tags, factory, clip=CLIP, stages=self.stages, reduce_dtype=reduce_dtype, more=more
        )


def batches(case: Tensors, *, steps: int = 3, config: Config = PLAIN) -> list[Batch]:
    """Those of `small_gpt`, of four tokens: two or four ranks divide them. They are views."""
    given = small_gpt.batches(case, steps=steps)
    last = config.vocabulary - 1
    return [{name: value[:, :4].clamp(max=last) for name, value in one.items()} for one in given]
