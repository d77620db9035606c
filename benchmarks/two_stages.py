"""A GPT on two stages as torch.distributed.pipelining runs it, and how fast both stages could be.

The ideal is a 1F1B whose messages take no time: each rank runs the passes of its own stage in plain
PyTorch, both at once and without a word to the other, and `piper.simulate` puts what they took into
the schedule's table.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
import torch.distributed as dist
from paired import GPT, Batch, Clock, Sizes, adamw, token_loss
from piper.schedules import generate
from piper.simulate import Costs, simulate
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B

__all__ = ["Alone", "Half", "TorchPipeline", "gathered", "ideal_seconds"]

RANKS = 2


class Half(nn.Module):
    """The first or the second half of a GPT, as torch's pipelines want it."""

    def __init__(self, model: GPT, index: int) -> None:
        """Take the modules of one stage."""
        super().__init__()
        half = len(model.layers) // 2
        self.embed = model.embed if index == 0 else nn.Identity()
        self.layers = nn.ModuleList(model.layers[:half] if index == 0 else model.layers[half:])
        self.head = model.head if index == 1 else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        """Return hidden values, or logits."""
        x = self.embed(x)
        for layer in self.layers:
            x = layer(x)
        out: Tensor = self.head(x)
        return out


class TorchPipeline:
    """1F1B of torch.distributed.pipelining; `clock` has the compute of this rank."""

    def __init__(self, sizes: Sizes, rank: int, *, compiled: bool) -> None:
        """Make the stage of this rank."""
        self.clock, self._rank, self._batch = Clock(), rank, sizes.data()
        half = Half(sizes.model(), rank)
        self._optimizer = adamw(list(half.parameters()))
        if compiled:
            half.compile()
        stage = PipelineStage(half, rank, RANKS, torch.device("cpu"))
        for name in ("forward_one_chunk", "backward_one_chunk"):
            setattr(stage, name, self.clock.wrap(name, getattr(stage, name)))
        loss = self.clock.wrap("loss", token_loss)
        self._schedule = Schedule1F1B(stage, sizes.microbatches, loss_fn=loss)
        self._update = self.clock.wrap("update", self._optimizer.step)

    def step(self) -> float:
        """Train a step and return the loss, on both ranks."""
        self._optimizer.zero_grad(set_to_none=True)
        losses: list[Tensor] = []
        if self._rank == 0:
            self._schedule.step(self._batch["ids"])
        else:
            self._schedule.step(target=self._batch["labels"], losses=losses)
        self._update()
        mean = torch.stack(losses).mean().detach() if losses else torch.zeros(())
        dist.broadcast(mean, src=1)
        return float(mean)

    def busy(self) -> float:
        """Seconds of compute since the clock was cleared."""
        return sum(self.clock.seconds.values())


@dataclass(frozen=True)
class StageTimes:
    """Seconds of a stage: the mean forward and backward of a microbatch, and the update."""

    forward: float
    backward: float
    update: float


@dataclass
class Alone:
    """The passes of one stage, with nobody to wait for."""

    sizes: Sizes
    rank: int
    compiled: bool
    _clock: Clock = field(default_factory=Clock)

    def __post_init__(self) -> None:
        """Make the stage, its inputs and the gradients of its outputs."""
        sizes = self.sizes
        self._module = Half(sizes.model(), self.rank)
        self._optimizer = adamw(list(self._module.parameters()))
        if self.compiled:
            self._module.compile()
        rows = sizes.batch // sizes.microbatches
        self._hidden = torch.randn(rows, sizes.context, sizes.width)
        self._parts = sizes.parts(sizes.data())
        wrap = self._clock.wrap
        self._forward = wrap("forward", self._first if self.rank == 0 else self._last)
        self._backward = wrap("backward", torch.autograd.backward)
        self._update = wrap("update", self._optimizer.step)

    def measure(self) -> StageTimes:
        """Run a step, both ranks at once."""
        dist.barrier()
        self._clock.clear()
        self._optimizer.zero_grad(set_to_none=True)
        for part in self._parts:
            out = self._forward(part)
            self._backward(out, self._hidden if self.rank == 0 else None)
        self._update()
        dist.barrier()
        seconds, count = self._clock.seconds, self.sizes.microbatches
        return StageTimes(
            seconds["forward"] / count, seconds["backward"] / count, seconds["update"]
        )

    def _first(self, part: Batch) -> Tensor:
        out: Tensor = self._module(part["ids"])
        return out

    def _last(self, part: Batch) -> Tensor:
        hidden = self._hidden.detach().requires_grad_()
        return token_loss(self._module(hidden), part["labels"]) / self.sizes.microbatches


def ideal_seconds(stages: list[StageTimes], microbatches: int) -> float:
    """How long 1F1B takes from the first forward to the last update, if messages take no time."""
    table = generate("1F1B", ranks=len(stages), microbatches=microbatches)
    costs = Costs.per_stage([s.forward for s in stages], B=[s.backward for s in stages])
    spans = simulate(table, costs).spans
    ends = [0.0] * len(stages)
    for action, (_, end) in spans.items():
        ends[action.stage] = max(ends[action.stage], end)
    return max(end + stage.update for end, stage in zip(ends, stages, strict=True))


def gathered(value: StageTimes) -> list[StageTimes]:
    """What all ranks have measured."""
    everyone: list[StageTimes] = [value] * dist.get_world_size()
    dist.all_gather_object(everyone, value)
    return everyone
