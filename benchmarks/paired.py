"""What the benchmarks share: a model and its batch, and how two ways to do the same are compared.

A round runs each side once, in random order, so that what slows the machine down for a while slows
all of them down. What counts is the ratio of two times of one round; its geometric mean over all
rounds has a 95 % interval by bootstrap.
"""

from __future__ import annotations

import argparse
import math
import os
import random
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F  # noqa: N812
from bound import Bound
from torch import Tensor, nn

sys.path.append(str(Path(__file__).parents[1] / "examples"))

from gpt import GPT, Config

__all__ = [
    "GPT",
    "VOCABULARY",
    "Batch",
    "Clock",
    "Config",
    "Ratio",
    "Sizes",
    "Step",
    "adamw",
    "add_sizes",
    "check_losses",
    "compare",
    "describe",
    "interval",
    "loss_fn",
    "rounds",
    "say",
    "timed",
    "token_loss",
]

VOCABULARY = 256
WARM_UP = 2  # steps of each side before anything counts
DRAWS = 2000
LOSS_TOLERANCE = 1e-3  # of the first losses: rounding differs, what is computed does not

Batch = dict[str, Tensor]
Step = Callable[[], float]
"""Takes a step and returns its loss."""


@dataclass(frozen=True)
class Sizes:
    """What is trained: a GPT on a batch of rows, cut into microbatches."""

    layers: int
    width: int
    context: int
    batch: int
    microbatches: int = 1

    def model(self) -> GPT:
        """The first weights, the same in every process."""
        torch.manual_seed(0)
        return GPT(Config(layers=self.layers, width=self.width, heads=4, context=self.context))

    def data(self, seed: int = 0) -> Batch:
        """One batch; the time of a step does not depend on it."""
        generator = torch.Generator().manual_seed(seed)
        shape = (2, self.batch, self.context)
        ids, labels = torch.randint(VOCABULARY, shape, generator=generator)
        return {"ids": ids, "labels": labels}

    def parts(self, batch: Batch) -> list[Batch]:
        """The microbatches of a batch."""
        cut = {name: value.chunk(self.microbatches) for name, value in batch.items()}
        return [{name: cut[name][i] for name in cut} for i in range(self.microbatches)]


def add_sizes(
    parser: argparse.ArgumentParser, sizes: Sizes, *, leave_out: Sequence[str] = ()
) -> None:
    """Let the command line choose sizes; these are the default."""
    for name, default in vars(sizes).items():
        if name in leave_out:
            continue
        parser.add_argument(f"--{name}", type=int, default=default, help=f"default: {default}")


def make_parser(
    description: str | None, sizes: Sizes, *, pairs: int = 20
) -> argparse.ArgumentParser:
    """A command line that chooses sizes and how many pairs to run."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_sizes(parser, sizes)
    parser.add_argument("--pairs", type=int, default=pairs, help=f"default: {pairs}")
    return parser


def token_loss(logits: Tensor, labels: Tensor) -> Tensor:
    """Mean cross-entropy per token."""
    return F.cross_entropy(logits.flatten(0, 1), labels.flatten())


def loss_fn(model: nn.Module, batch: Batch) -> Tensor:
    """The loss of a batch; `model` returns logits, or something that has them."""
    logits = model(batch["ids"])
    return token_loss(logits if isinstance(logits, Tensor) else logits.logits, batch["labels"])


def adamw(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    """AdamW."""
    return torch.optim.AdamW(parameters, lr=1e-3)


@dataclass
class Clock:
    """Seconds and calls by name, of functions that it wraps."""

    read: Callable[[], float] = time.perf_counter
    seconds: dict[str, float] = field(default_factory=dict)
    calls: dict[str, int] = field(default_factory=dict)

    def wrap(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return the function, timed."""

        def call(*args: Any, **kwargs: Any) -> Any:
            start = self.read()
            result = function(*args, **kwargs)
            took = self.read() - start
            self.seconds[name] = self.seconds.get(name, 0.0) + took
            self.calls[name] = self.calls.get(name, 0) + 1
            return result

        return call

    def clear(self) -> None:
        """Forget what was measured."""
        self.seconds.clear()
        self.calls.clear()


def timed(step: Callable[[], object]) -> float:
    """Seconds of a step, from all ranks being ready to all being done."""
    if dist.is_initialized():
        dist.barrier()
    start = time.perf_counter()
    step()
    if dist.is_initialized():
        dist.barrier()
    return time.perf_counter() - start


def rounds(measures: Mapping[str, Callable[[], float]], count: int) -> dict[str, list[float]]:
    """Measure all sides `count` times, each time in a random order, the same in every process."""
    order = random.Random(0)
    found: dict[str, list[float]] = {name: [] for name in measures}
    for _ in range(count):
        for name in order.sample(list(measures), len(measures)):
            found[name].append(measures[name]())
    return found


@dataclass(frozen=True)
class Ratio:
    """The geometric mean of ratios and its 95 % interval."""

    mean: float
    low: float
    high: float

    @classmethod
    def of(cls, above: Sequence[float], below: Sequence[float]) -> Ratio:
        """Of the times of two sides, round by round."""
        logs = [math.log(a / b) for a, b in zip(above, below, strict=True)]
        return cls(math.exp(statistics.fmean(logs)), *interval(logs))

    def bound(self, text: str, most: float) -> Bound:
        """The end of the interval is `most` at most."""
        return Bound.of(f"{text}: the interval of the ratio ends at", self.high, most)

    def __str__(self) -> str:
        """Return ``0.981 (95 %: 0.975 to 0.988)``."""
        return f"{self.mean:.3f} (95 %: {self.low:.3f} to {self.high:.3f})"


def interval(logs: Sequence[float]) -> tuple[float, float]:
    """The 95 % interval of the geometric mean, by bootstrap; from the logarithms."""
    draw = random.Random(1)
    means = sorted(statistics.fmean(draw.choices(logs, k=len(logs))) for _ in range(DRAWS))
    edge = DRAWS // 40
    return math.exp(means[edge]), math.exp(means[-1 - edge])


def check_losses(steps: Mapping[str, Step]) -> None:
    """Take the first steps of all sides; raises ValueError unless they have the same losses."""
    losses = {name: [step() for _ in range(WARM_UP)] for name, step in steps.items()}
    (first, wanted), *others = losses.items()
    for name, found in others:
        if any(
            not math.isclose(a, b, rel_tol=LOSS_TOLERANCE)
            for a, b in zip(wanted, found, strict=True)
        ):
            raise ValueError(f"expected the losses of {first}, {wanted}, got {found} of {name}")


def compare(name: str, ours: Step, other: Step, pairs: int) -> Ratio:
    """Check that both sides train the same from the start, run pairs, print and return the ratio."""
    check_losses({"piper": ours, name: other})
    found = rounds({"piper": lambda: timed(ours), name: lambda: timed(other)}, pairs)
    ratio = Ratio.of(found["piper"], found[name])
    say(f"{describe(found)}, ratio {ratio}, {pairs} pairs")
    return ratio


def describe(found: Mapping[str, Sequence[float]]) -> str:
    """The mean time of each side."""
    return ", ".join(
        f"{name} {statistics.fmean(seconds) * 1e3:.1f} ms" for name, seconds in found.items()
    )


def say(text: str) -> None:
    """Print on rank 0."""
    if int(os.environ.get("RANK", "0")) == 0:
        print(text, flush=True)
