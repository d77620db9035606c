"""Step time against what PyTorch offers for the same: paired runs in one process.

    python benchmarks/step_time.py                                  # one rank: eager, torch.compile
    torchrun --nproc-per-node 2 benchmarks/step_time.py             # two: torch's own 1F1B

Both sides train the same GPT from the same weights on the same microbatches in the same order, with
AdamW, one thread per rank. A pair is a step of each, in random order; what counts is the ratio of
their times, Piper's over the other's. Prints the geometric mean of all pairs and its 95 % interval
(bootstrap), and how far each side is from a pipeline whose stages are never late.
"""

from __future__ import annotations

import argparse
import math
import os
import random
import time
from collections.abc import Callable
from dataclasses import dataclass

import piper
import torch
import torch.distributed as dist
import torch.nn.functional as F  # noqa: N812
from gpt import GPT, Config
from piper_runtime import LocalTransport
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B

VOCABULARY = 256
Batch = dict[str, Tensor]
Step = Callable[[], None]


@dataclass(frozen=True)
class Sizes:
    """What is trained."""

    layers: int
    width: int
    context: int
    batch: int
    microbatches: int

    def model(self) -> GPT:
        """The first weights, the same in every process."""
        torch.manual_seed(0)
        return GPT(Config(layers=self.layers, width=self.width, heads=4, context=self.context))

    def data(self) -> Batch:
        """One batch; the time of a step does not depend on it."""
        generator = torch.Generator().manual_seed(0)
        shape = (2, self.batch, self.context)
        ids, labels = torch.randint(VOCABULARY, shape, generator=generator)
        return {"ids": ids, "labels": labels}


def token_loss(logits: Tensor, labels: Tensor) -> Tensor:
    """Mean cross-entropy per token."""
    return F.cross_entropy(logits.flatten(0, 1), labels.flatten())


def loss_fn(model: nn.Module, batch: Batch) -> Tensor:
    """The loss of a whole batch."""
    return token_loss(model(batch["ids"]), batch["labels"])


def adamw(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    """AdamW."""
    return torch.optim.AdamW(parameters, lr=1e-3)


def piper_step(
    sizes: Sizes, ranks: int, *, device: str = "cpu", kernels: str | None = None
) -> Step:
    """A step of Piper; on several ranks 1F1B over gloo, on CPUs."""
    directives = [
        piper.annotate({"embed": "first", "layers.*": "layer", "head": "last"}),
        piper.split(microbatches=sizes.microbatches),
        piper.update(adamw),
        piper.remat(policy="save"),  # as eager autograd does
    ]
    if ranks > 1:
        half = sizes.layers // 2
        directives += [piper.place(stages=[1 + half, half + 1]), piper.order("1F1B")]
    strategy = piper.Strategy(mesh={"pp": ranks} if ranks > 1 else {}, directives=directives)
    model, batch = sizes.model(), sizes.data()
    program = piper.compile(model, loss_fn, strategy, batch)
    transport = None if ranks > 1 else LocalTransport(poison=False, device=device)
    trainer = piper.Trainer(program, model=model, transport=transport, kernels=kernels)

    def step() -> None:
        trainer.step(batch)

    return step


def eager_step(sizes: Sizes, *, compiled: bool, device: str = "cpu") -> Step:
    """Gradient accumulation over the microbatches in plain PyTorch."""
    model = sizes.model().to(device)
    batch = {name: value.to(device) for name, value in sizes.data().items()}
    optimizer = adamw(list(model.parameters()))
    loss_of = torch.compile(loss_fn) if compiled else loss_fn
    parts = [
        {"ids": ids, "labels": labels}
        for ids, labels in zip(
            batch["ids"].chunk(sizes.microbatches),
            batch["labels"].chunk(sizes.microbatches),
            strict=True,
        )
    ]

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        total = torch.zeros((), device=device)
        for part in parts:
            loss = loss_of(model, part) / sizes.microbatches
            loss.backward()  # type: ignore[no-untyped-call]
            total += loss.detach()
        optimizer.step()
        total.item()

    return step


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


def torch_step(sizes: Sizes, rank: int) -> Step:
    """A step of torch.distributed.pipelining's 1F1B."""
    module = Half(sizes.model(), rank)
    optimizer = adamw(list(module.parameters()))
    stage = PipelineStage(module, rank, 2, torch.device("cpu"))
    schedule = Schedule1F1B(stage, sizes.microbatches, loss_fn=token_loss)
    batch = sizes.data()

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        losses: list[Tensor] = []
        if rank == 0:
            schedule.step(batch["ids"])
        else:
            schedule.step(target=batch["labels"], losses=losses)
        optimizer.step()
        mean = torch.stack(losses).mean() if losses else torch.zeros(())
        dist.broadcast(mean, src=1)
        mean.item()

    return step


def timed(step: Step) -> float:
    """Seconds of a step, from all ranks being ready to all being done."""
    if dist.is_initialized():
        dist.barrier()
    start = time.perf_counter()
    step()
    if dist.is_initialized():
        dist.barrier()
    return time.perf_counter() - start


def compare(name: str, ours: Step, other: Step, pairs: int) -> None:
    """Run pairs and print the ratio; all processes run them in the same order."""
    order = random.Random(0)
    for step in (ours, other) * 2:
        timed(step)
    logs, seconds = [], {"piper": 0.0, name: 0.0}
    for _ in range(pairs):
        times = {}
        for key in order.sample(["piper", name], 2):
            times[key] = timed(ours if key == "piper" else other)
            seconds[key] += times[key] / pairs
        logs.append(math.log(times["piper"] / times[name]))
    if int(os.environ.get("RANK", "0")) == 0:
        low, high = interval(logs)
        mean = math.exp(sum(logs) / pairs)
        print(
            f"piper {seconds['piper'] * 1e3:.0f} ms, {name} {seconds[name] * 1e3:.0f} ms, "
            f"ratio {mean:.3f} (95 %: {low:.3f} to {high:.3f}), {pairs} pairs"
        )


def interval(logs: list[float]) -> tuple[float, float]:
    """The 95 % interval of the geometric mean, by bootstrap."""
    draw = random.Random(1)
    means = sorted(sum(draw.choices(logs, k=len(logs))) / len(logs) for _ in range(2000))
    return math.exp(means[50]), math.exp(means[1949])


def main() -> None:
    """Compare."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for name, default in (
        ("layers", 8), ("width", 256), ("context", 128), ("batch", 32), ("microbatches", 8),
    ):  # fmt: skip
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--pairs", type=int, default=20)
    options = vars(parser.parse_args())
    pairs = options.pop("pairs")
    sizes = Sizes(**options)
    torch.set_num_threads(1)
    ranks = int(os.environ.get("WORLD_SIZE", "1"))
    ours = piper_step(sizes, ranks)
    if ranks == 1:
        compare("eager", ours, eager_step(sizes, compiled=False), pairs)
        compare("torch.compile", ours, eager_step(sizes, compiled=True), pairs)
    elif ranks == 2:
        compare("torch pipelining", ours, torch_step(sizes, dist.get_rank()), pairs)
        dist.destroy_process_group()
    else:
        raise ValueError(f"expected 1 or 2 ranks, got {ranks}")


if __name__ == "__main__":
    main()
