"""One representative of each family of sharded strategies, small enough to try all its mutants.

Two stages, two data ranks, three layers, so that one stage has two buckets of equal types, and two
steps, so that what one step leaves behind is used.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import piper
import sequence_models
import small_moe
import small_tensors
import torch
from compiled import Source, Strategy
from oracle import randomize, sgd
from piper.strategy import Directive
from piper_runtime import Program
from sequence_models import Sequences
from sharded import Sharded
from small_gpt import IGNORED, TAGS, VOCABULARY, token_loss
from small_moe import Experted
from small_tensors import HEADS, WIDTH, Config, Tensors
from strategies import Captures
from torch import Tensor, nn

__all__ = ["EXCHANGES", "FAMILIES", "SHARED_LAYERS"]

LENGTH = 8


def _family(case: Sharded, *, reduce_dtype: torch.dtype | None = None) -> Strategy:
    return Strategy(case, case.stages, layers=3, steps=2, reduce_dtype=reduce_dtype)


@dataclass(frozen=True)
class _Experts:
    """Experts that ranks share out."""

    case: Experted
    layers: int = 2

    def compile(self) -> tuple[Program, nn.Module, Sequence[Any]]:
        """See `Strategy`."""
        shared, made = small_moe.captures(layers=self.layers), small_moe.batches(self.case, steps=2)
        return shared.compile(self.case.plan(), made[0]), shared.model, made


FAMILIES: dict[str, Source] = {
    "ZeRO-0, each": _family(Sharded("1F1B", 2, 2, 3, zero=0, reduce="each")),
    "ZeRO-1, last": _family(Sharded("1F1B", 2, 2, 3, zero=1, reduce="last")),
    "ZeRO-1, each": _family(Sharded("1F1B", 2, 2, 3, zero=1, reduce="each")),
    "ZeRO-2, each, reduced in fp32": _family(
        Sharded("1F1B", 2, 2, 3, zero=2, reduce="each"), reduce_dtype=torch.float32
    ),
    "ZeRO-3, each, gathered per group": _family(
        Sharded("1F1B", 2, 2, 3, zero=3, reduce="each", gather="group")
    ),
    "ZeRO-3, gathered per step": _family(Sharded("1F1B", 2, 2, 3, zero=3, gather="step")),
    "HSDP 2 x 2, stage 2": _family(Sharded("1F1B", 2, 2, 2, zero=2, rep=2)),
    "DualPipe, ZeRO-3": _family(Sharded("DualPipe", 2, 2, 4, zero=3)),
    "experts, HSDP 2 x 2 x 2, ZeRO-2": _Experts(
        Experted("1F1B", 2, 2, 2, ep=2, zero=2, rep=2), layers=3
    ),
}


@dataclass(frozen=True)
class _Layers:
    """Layers that ranks share out, along weights, the sequence, or both."""

    case: Tensors
    weights: bool = True
    sequence: bool = False

    def compile(self) -> tuple[Program, nn.Module, Sequence[Any]]:
        """See `Strategy`; without weights the axis holds data, and its name is `cp`."""
        case, shared = self.case, _captures()
        made = [_tokens(case.parts * 2, seed=step) for step in range(2)]
        strategy = piper.Strategy(mesh=self._mesh, directives=[*self._directives()])
        return shared.compile(strategy, made[0]), shared.model, made

    @property
    def _mesh(self) -> dict[str, int]:
        mesh = dict(self.case.mesh)
        return mesh if self.weights else {"pp": mesh["pp"], "cp": mesh["tp"]}

    def _directives(self) -> Iterator[Directive]:
        case = self.case
        yield from (piper.annotate(TAGS), piper.split(microbatches=case.microbatches))
        yield from (piper.place(stages=case.stages), piper.order(case.schedule))
        yield piper.update(sgd, clip=small_tensors.CLIP)
        if self.weights:
            yield from case.shards()
            if case.dp:
                yield case.replicate(None)
            if self.sequence:
                yield piper.sequence("tp", {"ids": 1})
        else:
            yield piper.sequence("cp", {"ids": 1, "labels": 1})
            yield piper.replicate(axis="cp", zero=case.zero)


@dataclass(frozen=True)
class _Contexts:
    """Parts of sequences, beside parts of products or of experts."""

    case: Sequences
    experts: bool = False

    def compile(self) -> tuple[Program, nn.Module, Sequence[Any]]:
        """See `Strategy`."""
        shared = sequence_models.captures(sequence_models.Config(experts=self.experts))
        made = sequence_models.batches(self.case, steps=2)
        return shared.compile(self.case.plan(), made[0]), shared.model, made


class _Attention(small_tensors.Attention):
    """As that, by the op whose sequence ranks may share out."""

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (
            linear(x).unflatten(-1, (-1, WIDTH // HEADS)).transpose(1, 2)
            for linear in (self.q, self.k, self.v)
        )
        y = piper.ops.attention(q, k, v, causal=True)
        out: Tensor = self.o(y.transpose(1, 2).flatten(2))
        return out


@cache
def _captures() -> Captures:
    """The model of `small_tensors` with that attention, and its captures."""
    torch.manual_seed(0)
    config = Config()
    model = small_tensors.Model(config)
    for layer in model.layers:
        layer.attention = _Attention(config)
    randomize(model)
    return Captures(model.double(), token_loss)


def _tokens(rows: int, *, seed: int) -> dict[str, Tensor]:
    """Rows of tokens, some without a label that counts."""
    draw = torch.Generator().manual_seed(seed)
    ids, labels = torch.randint(VOCABULARY, (2, rows, LENGTH), generator=draw)
    labels[0, 1:] = IGNORED
    return {"ids": ids, "labels": labels}


EXCHANGES: dict[str, Source] = {
    "experts, ZeRO-1": _Experts(Experted("1F1B", 2, 2, 2, ep=2, zero=1)),
    "experts, DualPipeV, ZeRO-2": _Experts(Experted("DualPipeV", 2, 0, 4, ep=2, zero=2)),
    "experts, HSDP 2 x 2 x 2, ZeRO-2": _Experts(Experted("1F1B", 2, 2, 2, ep=2, zero=2, rep=2)),
    "experts, capacity 1.5, ZeRO-1": _Experts(
        Experted("1F1B", 2, 2, 2, ep=2, zero=1, capacity=1.5)
    ),
    "tensors": _Layers(Tensors("1F1B", 3, 0, 2)),
    "tensors and sequence": _Layers(Tensors("1F1B", 2, 0, 2), sequence=True),
    "context, ZeRO-1": _Layers(Tensors("1F1B", 2, 0, 2, zero=1), weights=False, sequence=True),
    "context and tensors, ZeRO-1": _Contexts(
        Sequences("1F1B", 2, 0, 2, zero=1, cp=2, tp=2, between=False)
    ),
    "context and experts, ZeRO-1": _Contexts(
        Sequences("1F1B", 2, 0, 2, zero=1, cp=2, ep=2), experts=True
    ),
}
"""What ranks exchange within a microbatch, by what they share out."""

SHARED_LAYERS: dict[str, Source] = {
    "tensors": EXCHANGES["tensors"],
    "vocabulary, ZeRO-1": _Layers(
        Tensors("1F1B", 2, 2, 2, zero=1, embed="vocabulary", head="vocabulary")
    ),
    "tensors and sequence": EXCHANGES["tensors and sequence"],
    "context, ZeRO-1": EXCHANGES["context, ZeRO-1"],
    "experts, ZeRO-1": EXCHANGES["experts, ZeRO-1"],
}
"""One for each way to share out layers, and parts of a vocabulary beside data ranks."""
