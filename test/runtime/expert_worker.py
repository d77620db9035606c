"""What each process of the tests of experts runs, under torchrun: ``expert_worker.py FOLDER``."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import torch
from expert_program import ExpertModel, Experts, expert_program, make_batch
from mlp_program import make_adamw
from piper_runtime import Trainer
from torch import Tensor

GLOO, NUM_STEPS = Experts(edp=2, ep=2, zero=1), 2


def shard(step: int, rank: int) -> dict[str, Tensor]:
    """Return what a rank feeds."""
    batch = make_batch(step, GLOO.ranks)
    return {name: value.chunk(GLOO.ranks)[rank] for name, value in batch.items()}


def main() -> None:
    """Train, save, go on; then start from models that differ."""
    torch.set_num_threads(1)
    folder, rank = Path(sys.argv[1]), int(os.environ["RANK"])
    program = expert_program(GLOO)
    trainer = Trainer(program, model=ExpertModel(), optimizer=make_adamw)
    seen: dict[str, Any] = {
        "losses": [trainer.step(shard(step, rank)).loss for step in range(NUM_STEPS)],
        "gradients": trainer.gradients(),
        "state": trainer.full_state_dict(),
    }
    trainer.save(folder / "saved")
    seen["next"] = [trainer.step(shard(NUM_STEPS, rank)).loss]
    trainer.close()
    try:
        Trainer(program, model=ExpertModel(seed=rank), optimizer=make_adamw)
    except ValueError as error:
        seen["replicas"] = str(error)
    torch.save(seen, folder / f"rank{rank}.pt")


if __name__ == "__main__":
    main()
