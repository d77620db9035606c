"""What the training scripts share: their command line, the run, and the check that closes it."""

from __future__ import annotations

import argparse
import copy
import math
import os
from collections.abc import Callable
from dataclasses import dataclass

import piper
import torch
from piper.schedules import SCHEDULES, with_idle
from piper.strategy import Mesh
from text import entropies, sample
from torch import Tensor, nn

Batch = dict[str, Tensor]
LossFunction = Callable[[nn.Module, Batch], Tensor]

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


def adamw(lr: float) -> Callable[[list[nn.Parameter]], torch.optim.Optimizer]:
    """A factory of AdamW optimizers."""

    def make_adamw(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
        return torch.optim.AdamW(parameters, lr=lr, betas=(0.9, 0.95), weight_decay=0.1)

    return make_adamw


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
    trainer = piper.Trainer(program, model=model, transport=transport_of(options))
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
    trainer = piper.Trainer(program, model=model, transport=transport_of(options))
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


def transport_of(options: argparse.Namespace) -> str | None:
    """The transport by name; None for the trainer to choose one by how it was launched."""
    return None if options.transport == "auto" else options.transport


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


def make_parser(doc: str | None, epilog: str) -> argparse.ArgumentParser:
    """The command line of a script; `doc` is its documentation, `epilog` what it expects."""
    parser = argparse.ArgumentParser(
        description=(doc or "").partition("\n")[0],
        epilog=epilog,
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    option = parser.add_argument
    option("--mesh", type=mesh_sizes, default="pp=2,dp=1", help="axis sizes, outermost first")
    option("--schedule", default="1F1B", help=", ".join(SCHEDULES))
    option("--microbatches", type=int, default=4, help="per step and rank with a batch of its own")
    option("--zero", type=int, choices=range(4), default=0, help="ZeRO stage along those ranks")
    transports = ("auto", "local", "gloo", "nccl")
    option("--transport", choices=transports, default="auto", help="who runs ranks")
    option("--steps", type=int, default=450, help="training steps")
    option("--layers", type=int, default=4, help="layers of the model")
    option("--width", type=int, default=128, help="size of a hidden vector")
    option("--context", type=int, default=64, help="bytes per example")
    option("--batch", type=int, default=32, help="examples per step, of all ranks")
    option("--seed", type=int, default=0, help="of the first weights and of the batches")
    option("--lr", type=float, default=4e-3, help="AdamW's learning rate")
    option("--check", action=argparse.BooleanOptionalAction, default=True, help="the closing check")
    return parser


def run(
    options: argparse.Namespace,
    make_model: Callable[[argparse.Namespace], nn.Module],
    make_strategy: Callable[..., piper.Strategy],
    loss_fn: LossFunction,
    *,
    bound: float,
) -> int:
    """Train, then check; return the exit status, which is 1 if the check fails.

    With ``update=False``, `make_strategy` makes one whose steps only compute gradients.
    """
    process = Process.current()
    model, strategy = make_model(options), make_strategy(options)
    train(options, process, model=model, strategy=strategy, loss_fn=loss_fn)
    if not options.check:
        return 0
    model, strategy = make_model(options).double(), make_strategy(options, update=False)
    passed = check(options, process, model=model, strategy=strategy, loss_fn=loss_fn, bound=bound)
    return 0 if passed else 1
