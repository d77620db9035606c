"""Train a small language model on this machine, and check the run against plain PyTorch.

    python examples/train_lm.py                                 # two pipeline stages in one process
    torchrun --nproc-per-node 4 examples/train_lm.py --mesh pp=2,dp=2

Prints the schedule, a line per step, the validation loss next to what counting bytes could reach,
and how far one fp64 step is from the same step in a single process without Piper. Exits with 1 if
that is too far.
"""

from __future__ import annotations

import argparse
import sys

import piper
import torch
import torch.nn.functional as F  # noqa: N812
from gpt import GPT, Config
from piper.schedules import SCHEDULES, schedule_name
from piper.strategy import Directive
from torch import Tensor, nn
from training import Batch, adamw, make_parser, run

TOLERANCE = 1e-10


def loss_fn(model: nn.Module, batch: Batch) -> Tensor:
    """Mean cross-entropy per byte in nats: a scalar in the model's dtype."""
    logits = model(batch["ids"])
    return F.cross_entropy(logits.flatten(0, 1), batch["labels"].flatten())


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


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = make_parser(__doc__, "The mesh has the axes pp, dp, or both.")
    option = parser.add_argument
    option(
        "--chunks", type=int, default=2, help="stages per rank, where the schedule leaves it open"
    )
    option("--heads", type=int, default=4, help="attention heads")
    option("--tied", action="store_true", help="one weight for the embedding and the head")
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> int:
    """Train, then check; the exit status is 1 if the check fails."""
    return run(parse(arguments), make_model, make_strategy, loss_fn, bound=TOLERANCE)


if __name__ == "__main__":
    sys.exit(main())
