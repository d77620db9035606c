"""A model with experts at test size, routed as DeepSeek-V3 routes, and cases that share them out.

A case gives each rank one row of five tokens per microbatch, so that counts of tokens are odd, as
are three choices each.
"""

# ruff: noqa: N812  (plain PyTorch style)

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache

import piper
import torch
import torch.nn.functional as F
from oracle import randomize, sgd
from piper.strategy import Directive, Overlap, Remat
from piper_runtime.states.optimizer import OptimizerFactory
from sharded import Sharded
from strategies import Captures
from torch import Tensor, nn

VOCABULARY, WIDTH, HIDDEN, LENGTH = 24, 8, 12, 5
EXPERTS, CHOICES = 8, 3
IGNORED = -100
TAGS = {"embed": "first", "layers.*": "layer", "head": "last"}
CLIP = 0.5
EXPERT_STATES = "layers.*.experts.*"
# What is added to scores for the choice: never chosen is what has -100.
BIASES = {
    "none": [0.0] * EXPERTS,
    "all": [0.1, -0.1, 0.1, -0.1, 0.05, 0.1, 0.02, 0.0],
    "unused": [0.0, 0.1, -100.0, 0.0, 0.0, -0.1, 0.0, 0.0],
    "one-rank": [0.0, 0.1, 0.0, -0.1, -100.0, -100.0, -100.0, -100.0],
}

Batch = dict[str, Tensor]


class Router(nn.Module):
    """The experts of each token, and how much they weigh; a bias counts in the choice only."""

    def __init__(self) -> None:
        super().__init__()
        self.score = nn.Linear(WIDTH, EXPERTS, bias=False)
        self.register_buffer("bias", torch.tensor(BIASES["all"]))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        scores = self.score(x).sigmoid()
        index = (scores + self.bias).topk(CHOICES).indices
        weights = scores.gather(1, index)
        return index, weights / weights.sum(-1, keepdim=True)


class Experts(nn.Module):
    """The weights of all experts, an expert per index of the first dim."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Parameter(torch.zeros(EXPERTS, HIDDEN, WIDTH))
        self.up = nn.Parameter(torch.zeros(EXPERTS, HIDDEN, WIDTH))
        self.down = nn.Parameter(torch.zeros(EXPERTS, WIDTH, HIDDEN))

    def forward(self, rows: Tensor, received: Tensor) -> Tensor:
        linear = piper.ops.moe_linear
        hidden = F.silu(linear(rows, self.gate, received)) * linear(rows, self.up, received)
        out: Tensor = linear(hidden, self.down, received)
        return out


class Layer(nn.Module):
    """Experts for each token, and one that all tokens share, with a residual connection."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.router = Router()
        self.experts = Experts()
        self.shared = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.norm(x).flatten(0, 1)
        index, weights = self.router(tokens)
        y: Tensor = piper.ops.moe_experts(
            tokens, index, weights, self.experts, experts=EXPERTS
        ) + self.shared(tokens)
        return x + y.view_as(x)


class Model(nn.Module):
    """Logits of a token per position: ids (batch, time) -> (batch, time, vocabulary)."""

    def __init__(self, layers: int, make_layer: Callable[[], nn.Module] = Layer) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, WIDTH)
        self.layers = nn.ModuleList(make_layer() for _ in range(layers))
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, ids: Tensor) -> Tensor:
        x: Tensor = self.embed(ids)
        for layer in self.layers:
            x = layer(x)
        logits: Tensor = self.head(x)
        return logits


@cache
def captures(*, layers: int = 2, dtype: torch.dtype = torch.float64) -> Captures:
    """The model with random weights, and its captures: those of all biases of the routers."""
    torch.manual_seed(0)
    model = Model(layers)
    randomize(model, scale=0.4)
    return Captures(model.to(dtype), token_loss)


def with_bias(model: nn.Module, name: str) -> nn.Module:
    """A model of the same weights, in which other experts are chosen."""
    biased = copy.deepcopy(model)
    for module in biased.modules():
        if isinstance(module, Router):
            module.get_buffer("bias").copy_(torch.tensor(BIASES[name]))
    return biased


def token_loss(model: nn.Module, batch: Batch) -> Tensor:
    """Mean cross-entropy over the labels that count."""
    logits = model(batch["ids"])
    return F.cross_entropy(logits.flatten(0, 1), batch["labels"].flatten())


@dataclass(frozen=True)
class Experted(Sharded):
    """A case whose ranks share out experts along `ep`, each part of them held by `dp` ranks.

    With `rep`, `dp` times `ep` ranks share out states in each of `rep` groups (HSDP).
    """

    ep: int = 2
    capacity: float | None = None
    remat: Remat | None = None
    overlap: Overlap | None = None

    def __str__(self) -> str:
        """As a test id."""
        options = [f"ep{self.ep}"]
        options += [f"capacity{self.capacity}"] if self.capacity else []
        options += [self.remat.policy] if self.remat else []
        options += ["template"] if self.overlap else []
        return "-".join([super().__str__(), *options])

    @property
    def parts(self) -> int:
        """See `Case`."""
        return super().parts * self.ep

    @property
    def mesh(self) -> dict[str, int]:
        """See `Case`."""
        sizes = {"pp": self.pp, "dp_replicate": self.rep, "edp": self.dp, "ep": self.ep}
        return {name: size for name, size in sizes.items() if size}

    def plan(
        self,
        factory: OptimizerFactory | None = sgd,
        *,
        tags: Mapping[str, str] = TAGS,
        experts: str = EXPERT_STATES,
        more: Iterable[Directive] = (),
    ) -> piper.Strategy:
        """The whole strategy, for a model with these annotations and names of experts' weights."""
        shard = piper.shard(experts, axis="ep", capacity=self.capacity)
        more = [shard, *(given for given in (self.remat, self.overlap) if given), *more]
        clip = CLIP if factory else None
        return self.strategy(tags, factory, clip=clip, stages=self.stages, more=more)


def batches(case: Experted, *, steps: int = 3) -> list[Batch]:
    """A batch per step: all ranks' rows, one of which has no label that counts."""
    made = []
    for step in range(steps):
        generator = torch.Generator().manual_seed(step)
        ids, labels = torch.randint(VOCABULARY, (2, case.parts, LENGTH), generator=generator)
        labels[torch.rand(labels.shape, generator=generator) < 0.3] = IGNORED
        labels[step] = IGNORED
        made.append({"ids": ids, "labels": labels})
    return made
