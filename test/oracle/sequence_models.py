"""A transformer told its positions, batches whose labels reach over borders, and cases whose ranks
share out sequences.
"""

# ruff: noqa: N812  (plain PyTorch style)

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache

import piper
import small_moe
import torch
import torch.nn.functional as F
from hf_models import FAMILIES
from oracle import randomize, sgd
from piper.strategy import Directive
from piper_runtime.states.optimizer import OptimizerFactory
from sharded import Sharded
from small_gpt import IGNORED, TAGS, VOCABULARY, Batch
from small_moe import EXPERT_STATES
from strategies import Captures
from torch import Tensor, nn

WIDTH, HEADS, HIDDEN, LENGTH, ROWS = small_moe.WIDTH, 4, 24, 8, 2
CLIP = 0.5
DIMS = {"ids": 1, "labels": 1, "positions": 1}
OUTPUTS = ("attention.q", "attention.k", "attention.v", "up")
INPUTS = ("attention.o", "down")


@dataclass(frozen=True)
class Config:
    """What varies: heads of keys and values, whether a position sees only what comes before it,
    whether layers have experts, and the kind of the second norm.
    """

    kv_heads: int = 2
    causal: bool = True
    experts: bool = False
    layers: int = 2
    rms: bool = True


class Attention(nn.Module):
    """Attention in which several heads of queries may share one of keys and values."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.causal = config.causal
        narrow = WIDTH // HEADS * config.kv_heads
        self.q, self.o = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.k, self.v = nn.Linear(WIDTH, narrow), nn.Linear(WIDTH, narrow)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (
            linear(x).unflatten(-1, (-1, WIDTH // HEADS)).transpose(1, 2)
            for linear in (self.q, self.k, self.v)
        )
        y = piper.ops.attention(q, k, v, causal=self.causal)
        out: Tensor = self.o(y.transpose(1, 2).flatten(2))
        return out


class Layer(nn.Module):
    """Attention and two products with a nonlinearity between, each behind a norm."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(WIDTH)
        self.norm2 = nn.RMSNorm(WIDTH) if config.rms else nn.LayerNorm(WIDTH)
        self.attention = Attention(config)
        self.up, self.down = nn.Linear(WIDTH, HIDDEN), nn.Linear(HIDDEN, WIDTH)
        self.sparse = small_moe.Layer() if config.experts else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        x = x + self.down(F.gelu(self.up(self.norm2(x))))
        out: Tensor = self.sparse(x)
        return out


class Embedding(nn.Module):
    """Of tokens and of their positions, which come with the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.token = nn.Embedding(VOCABULARY, WIDTH)
        self.position = nn.Embedding(2 * LENGTH, WIDTH)

    def forward(self, ids: Tensor, positions: Tensor) -> Tensor:
        x: Tensor = self.token(ids) + self.position(positions)
        return x


class Model(nn.Module):
    """Logits of a token per position: two times (batch, time) -> (batch, time, vocabulary)."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.embed = Embedding()
        self.layers = nn.ModuleList(Layer(config) for _ in range(config.layers))
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, ids: Tensor, positions: Tensor) -> Tensor:
        x: Tensor = self.embed(ids, positions)
        for layer in self.layers:
            x = layer(x)
        logits: Tensor = self.head(x)
        return logits


def token_loss(model: nn.Module, batch: Batch) -> Tensor:
    """Mean cross-entropy over the labels that count."""
    logits = model(batch["ids"], batch["positions"])
    return F.cross_entropy(logits.flatten(0, 1), batch["labels"].flatten(), ignore_index=IGNORED)


@cache
def captures(config: Config, *, dtype: torch.dtype = torch.float64) -> Captures:
    """The model with random weights, and its captures."""
    torch.manual_seed(0)
    model = Model(config)
    randomize(model)
    return Captures(model.to(dtype), token_loss)


@dataclass(frozen=True)
class Sequences(Sharded):
    """A case whose ranks along `cp` have parts of sequences, and perhaps those along `tp`; along
    `ep`, which has batches of its own, they share out experts. Without `heads` those along `tp`
    share out other products than attention's; without `between`, what lies between products is
    whole.
    """

    cp: int = 0
    tp: int = 0
    ep: int = 0
    heads: bool = True
    between: bool = True

    def __str__(self) -> str:
        """As a test id."""
        options = [f"{name}{size}" for name, size in self.axes.items()]
        options += [] if self.heads else ["no-heads"]
        options += [] if self.between else ["products"]
        return "-".join([super().__str__(), *options])

    @property
    def axes(self) -> dict[str, int]:
        """The axes that others do not have."""
        sizes = {"ep": self.ep, "cp": self.cp, "tp": self.tp}
        return {name: size for name, size in sizes.items() if size}

    @property
    def parts(self) -> int:
        """See `Case`."""
        return super().parts * max(1, self.ep)

    @property
    def mesh(self) -> dict[str, int]:
        """See `Case`."""
        return {
            "edp" if self.ep and n == "dp" else n: s for n, s in super().mesh.items()
        } | self.axes

    def directives(self, dims: Mapping[str, int] = DIMS) -> Iterator[Directive]:
        """Yield who has parts of sequences, and for tensor parallelism of weights."""
        if self.cp:
            yield piper.sequence("cp", dims)
        if self.tp:
            for name in OUTPUTS if self.heads else OUTPUTS[-1:]:
                yield piper.shard(f"layers.*.{name}.*", axis="tp", dim=0)
            for name in INPUTS if self.heads else INPUTS[-1:]:
                yield piper.shard(f"layers.*.{name}.weight", axis="tp", dim=1)
            if self.between:
                yield piper.sequence("tp", {"ids": 1})
        if self.ep:
            yield piper.shard(EXPERT_STATES.replace("layers.*", "layers.*.sparse"), axis="ep")

    def plan(
        self,
        factory: OptimizerFactory = sgd,
        *,
        tags: Mapping[str, str] = TAGS,
        dims: Mapping[str, int] = DIMS,
        more: Iterable[Directive] = (),
    ) -> piper.Strategy:
        """The whole strategy."""
        given = [*self.directives(dims), *more]
        return self.strategy(tags, factory, clip=CLIP, stages=self.stages, more=given)


def batches(case: Sharded, *, steps: int = 3, length: int = LENGTH) -> list[Batch]:
    """A batch per step: labels are the next tokens of the whole sequence, the last one has none.

    Unevenly many labels count: of one row none, of others none up to the first or behind the
    second of four quarters, so that ranks and pieces differ.
    """
    made = []
    for step in range(steps):
        generator = torch.Generator().manual_seed(step)
        rows = case.parts * ROWS
        ids = torch.randint(VOCABULARY, (rows, length), generator=generator)
        labels = F.pad(ids[:, 1:], (0, 1), value=IGNORED)
        labels[torch.rand(labels.shape, generator=generator) < 0.2] = IGNORED
        labels[step % rows] = IGNORED
        labels[(step + 1) % rows, : length // 4] = IGNORED
        labels[-1, length // 2 :] = IGNORED
        positions = torch.arange(length).expand(rows, length).contiguous()
        made.append({"ids": ids, "labels": labels, "positions": positions})
    return made


def padded(batch: Batch, length: int) -> Batch:
    """The same sequences up to a length, with labels that do not count."""
    rows, short = batch["ids"].shape
    more = (0, length - short)
    positions = torch.arange(length).expand(rows, length).contiguous()
    return {
        "ids": F.pad(batch["ids"], more, value=VOCABULARY - 1),
        "labels": F.pad(batch["labels"], more, value=IGNORED),
        "positions": positions,
    }


def llama_loss(model: nn.Module, batch: Batch) -> Tensor:
    """Mean cross-entropy of labels that the user shifted. Without a mask transformers would look
    for several sequences in a row, by their positions.
    """
    ids, positions = batch["ids"], batch["positions"]
    every = torch.ones(ids.shape)
    logits = model(input_ids=ids, position_ids=positions, attention_mask=every, use_cache=False)
    return F.cross_entropy(logits.logits.flatten(0, 1), batch["labels"].flatten())


def llama() -> nn.Module:
    torch.manual_seed(0)
    model = FAMILIES["llama"].make(2).double()
    randomize(model)
    return model
