"""Train a small language model on this machine, and check the run against plain PyTorch.

    python examples/train_lm.py                                 # two pipeline stages in one process
    torchrun --nproc-per-node 4 examples/train_lm.py --mesh pp=2,dp=2

Prints the schedule, a line per step, the validation loss next to what counting bytes could reach,
and how far one fp64 step is from the same step in a single process without Piper. Exits with 1 if
that is too far.
"""

from __future__ import annotations

import argparse
import copy
import math
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass

import piper
import torch
import torch.nn.functional as F  # noqa: N812
from gpt import GPT, Config
from piper.schedules import SCHEDULES, schedule_name, with_idle
from piper.strategy import Directive, Mesh
from text import entropies, sample
from torch import Tensor, nn

Batch = dict[str, Tensor]
LossFunction = Callable[[nn.Module, Batch], Tensor]

TOLERANCE = 1e-10
VALIDATION_BATCHES = 16
VALIDATION_SEED = 1


@dataclass(frozen=True)
class Process:
    """This process among those that torchrun started, or the only one."""

    rank: int
    world_size: int

    @classmethod
    def current(cls) -> Process:
        """What torchrun says; one process without it."""
        return cls(int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1")))

    def say(self, text: object) -> None:
        """Print on rank 0 only."""
        if self.rank == 0:
            print(text, flush=True)

    def shard(self, batch: Batch, mesh: Mesh) -> Batch:
        """The part of a batch (all ranks' rows, in order of the data axes) that this process feeds."""
        if self.world_size == 1:
            return batch
        mesh.check_world_size(self.world_size)
        index, parts, indices = 0, 1, mesh.indices(self.rank)
        for axis in mesh.manual:
            index, parts = index * axis.size + indices[axis.name], parts * axis.size
        return {name: value.chunk(parts)[index] for name, value in batch.items()}


def loss_fn(model: nn.Module, batch: Batch) -> Tensor:
    """Mean cross-entropy per byte in nats: a scalar in the model's dtype."""
    logits = model(batch["ids"])
    return F.cross_entropy(logits.flatten(0, 1), batch["labels"].flatten())


def adamw(lr: float) -> Callable[[list[nn.Parameter]], torch.optim.Optimizer]:
    """A factory of AdamW optimizers."""

    def make_adamw(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
        return torch.optim.AdamW(parameters, lr=lr, betas=(0.9, 0.95), weight_decay=0.1)

    return make_adamw


def make_strategy(options: argparse.Namespace, *, update: bool = True) -> piper.Strategy:
    """The strategy that the options ask for; without `update`, steps only compute gradients."""
    mesh: dict[str, int] = options.mesh
    directives: list[Directive] = [
        piper.annotate({"embed": "first", "layers.*": "layer", "head": "last"}),
        piper.split(microbatches=options.microbatches),
        piper.order(options.schedule),
    ]
    if "pp" in mesh:
        schedule = SCHEDULES[schedule_name(options.schedule)]
        stages = schedule.stages(mesh["pp"], schedule.chunks or options.chunks)
        directives.append(piper.place(stages=stages, axis="pp"))
    if "dp" in mesh:
        directives.append(piper.replicate(axis="dp", zero=options.zero))
    if update:
        directives.append(piper.update(adamw(options.lr), clip=1.0))
    return piper.Strategy(mesh=mesh, directives=directives)


def make_model(options: argparse.Namespace) -> GPT:
    """The model with its first weights, the same in every process."""
    torch.manual_seed(options.seed)
    return GPT(
        Config(
            layers=options.layers,
            width=options.width,
            heads=options.heads,
            context=options.context,
            tied=options.tied,
        )
    )


def batch_of(options: argparse.Namespace, step: int, *, split: str = "train") -> Batch:
    """The whole batch of a step, all ranks' rows."""
    seed = options.seed if split == "train" else VALIDATION_SEED
    return sample(split, batch=options.batch, context=options.context, seed=seed, step=step)


def train(
    options: argparse.Namespace,
    process: Process,
    *,
    model: nn.Module,
    strategy: piper.Strategy,
    loss_fn: LossFunction,
) -> None:
    """Train from the weights of `model` and report the loss on held-out text."""
    process.say(with_idle(strategy.table).format(axis="pp"))

    def feed(step: int, split: str = "train") -> Batch:
        return process.shard(batch_of(options, step, split=split), strategy.mesh)

    program = piper.compile(model, loss_fn, strategy, feed(1))
    trainer = piper.Trainer(program, model=model, transport=options.transport)
    for step in range(1, options.steps + 1):
        process.say(trainer.step(feed(step)))

    losses = [trainer.evaluate(feed(step, "validation")) for step in range(VALIDATION_BATCHES)]
    trainer.close()
    unigram, bigram = entropies("validation")
    process.say(
        f"validation loss: {sum(losses) / len(losses):.3f} nats per byte "
        f"(unigram entropy {unigram:.3f}, bigram {bigram:.3f})"
    )


def check(
    options: argparse.Namespace,
    process: Process,
    *,
    model: nn.Module,
    strategy: piper.Strategy,
    loss_fn: LossFunction,
    bound: float,
) -> bool:
    """Whether the first step of `model` has the loss and gradients of a plain PyTorch step; the
    strategy has no update.
    """
    batch, plain = batch_of(options, 1), copy.deepcopy(model)
    loss = loss_fn(plain, batch)
    loss.backward()  # type: ignore[no-untyped-call]
    expected = {"loss": loss.detach()}
    for name, parameter in plain.named_parameters():
        assert parameter.grad is not None
        expected[name] = parameter.grad

    shard = process.shard(batch, strategy.mesh)
    program = piper.compile(model, loss_fn, strategy, shard)
    trainer = piper.Trainer(program, model=model, transport=options.transport)
    found = {"loss": torch.tensor(trainer.step(shard).loss, dtype=torch.float64)}
    found.update(trainer.gradients())
    trainer.close()

    distances = {name: distance(found[name], value) for name, value in expected.items()}
    worst = max(distances, key=lambda name: distances[name])
    equal = distances[worst] <= bound
    process.say(
        f"check: {'passed' if equal else 'FAILED'}: loss and {len(expected) - 1} gradients in fp64 "
        f"differ from plain PyTorch by {distances[worst]:.1e} at most ({worst}), bound {bound}"
    )
    return equal


def distance(found: Tensor, expected: Tensor) -> float:
    """Largest difference, relative to the largest expected value if that is above 1; NaN is far."""
    scale = max(1.0, float(expected.abs().max()))
    gap = float((found - expected).abs().max()) / scale
    return math.inf if math.isnan(gap) else gap


def mesh_sizes(text: str) -> dict[str, int]:
    """Read "pp=2,dp=1": axis sizes by name, outermost first."""
    pairs = [part.partition("=") for part in text.split(",")]
    try:
        return {name: int(size) for name, _, size in pairs}
    except ValueError:
        raise argparse.ArgumentTypeError(f"expected such as pp=2,dp=1, got {text!r}") from None


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description=(__doc__ or "").partition("\n")[0],
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    option = parser.add_argument
    option("--mesh", type=mesh_sizes, default="pp=2,dp=1", help="axis sizes, outermost first")
    option("--schedule", default="1F1B", help=", ".join(SCHEDULES))
    option(
        "--chunks", type=int, default=2, help="stages per rank, where the schedule leaves it open"
    )
    option("--microbatches", type=int, default=4, help="per step and data-parallel rank")
    option("--zero", type=int, choices=range(4), default=0, help="ZeRO stage of the dp axis")
    transports = ("auto", "local", "gloo", "nccl")
    option("--transport", choices=transports, default="auto", help="who runs ranks")
    option("--steps", type=int, default=450, help="training steps")
    option("--layers", type=int, default=4, help="transformer blocks")
    option("--width", type=int, default=128, help="size of a hidden vector")
    option("--heads", type=int, default=4, help="attention heads")
    option("--context", type=int, default=64, help="bytes per example")
    option("--tied", action="store_true", help="one weight for the embedding and the head")
    option("--batch", type=int, default=32, help="examples per step, of all ranks")
    option("--seed", type=int, default=0, help="of the first weights and of the batches")
    option("--lr", type=float, default=4e-3, help="AdamW's learning rate")
    option("--check", action=argparse.BooleanOptionalAction, default=True, help="the closing check")
    options = parser.parse_args(arguments)
    options.transport = None if options.transport == "auto" else options.transport
    return options


def main(arguments: list[str] | None = None) -> int:
    """Train, then check; the exit status is 1 if the check fails."""
    options, process = parse(arguments), Process.current()
    model, strategy = make_model(options), make_strategy(options)
    train(options, process, model=model, strategy=strategy, loss_fn=loss_fn)
    if not options.check:
        return 0
    model, strategy = make_model(options).double(), make_strategy(options, update=False)
    passed = check(
        options, process, model=model, strategy=strategy, loss_fn=loss_fn, bound=TOLERANCE
    )
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
