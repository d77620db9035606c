"""What each process of the gloo test runs, under torchrun: ``sharding_worker.py OUTPUT_FOLDER``."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from mlp_program import make_adamw
from piper_runtime import Trainer
from sharded_oracle import SingleProcess
from sharded_program import Odd, Sharding, make_batch, sharded_program

NUM_STEPS = 2
NUM_RANKS = 4
DP4 = (("dp", NUM_RANKS),)
HSDP = (("rep", 2), ("dp", 2))
SHARDINGS = (
    Sharding(1, "each", DP4),
    Sharding(2, "last", HSDP, clip=0.1),
    Sharding(3, "each", DP4, clip=0.1),
)


def train(sharding: Sharding, rank: int) -> dict[str, Any]:
    """Take some steps; return all that a trainer reports."""
    trainer = Trainer(sharded_program(sharding), model=Odd(), optimizer=make_adamw)
    losses, norms = [], []
    for step in range(NUM_STEPS):
        batch = make_batch(step, NUM_RANKS)
        result = trainer.step({name: value.chunk(NUM_RANKS)[rank] for name, value in batch.items()})
        losses.append(result.loss)
        norms.append(result.grad_norm)
    seen = {"losses": losses, "norms": norms, "gradients": trainer.gradients()}
    seen["state"] = trainer.full_state_dict()
    trainer.close()
    return seen


def compare(sharding: Sharding, rank: int) -> tuple[int, int]:
    """Take a step in check mode; return how many values were compared, and how many not."""
    oracle = SingleProcess(sharding, make_adamw)
    trainer = Trainer(sharded_program(sharding), model=Odd(), optimizer=make_adamw, check=oracle)
    batch = make_batch(0, NUM_RANKS)
    trainer.step({name: value.chunk(NUM_RANKS)[rank] for name, value in batch.items()})
    assert trainer.checked is not None
    trainer.close()
    return trainer.checked.compared, trainer.checked.unknown


def main() -> None:
    """Run the cases in one order on every rank."""
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    seen: dict[str, Any] = {str(sharding): train(sharding, rank) for sharding in SHARDINGS}
    seen["checked"] = compare(SHARDINGS[0], rank)
    try:
        Trainer(sharded_program(SHARDINGS[2]), model=Odd(seed=rank // 3), optimizer=make_adamw)
    except ValueError as error:
        seen["replicas"] = str(error)
    torch.save(seen, Path(sys.argv[1]) / f"rank{rank}.pt")


if __name__ == "__main__":
    main()
