"""What each process of the test of compiled experts runs, under torchrun: FOLDER."""

from __future__ import annotations

import sys
from pathlib import Path

import torch
import torch.distributed as dist
from expert_layers import Model, adamw, make_batch
from piper_runtime import Trainer

LAYERS, NUM_ROWS, NUM_STEPS, DATA_SHARDS = 4, 24, 2, 2


def main() -> None:
    """Train some steps, trace the last one, and save what was seen."""
    torch.set_num_threads(1)
    folder = Path(sys.argv[1])
    trainer = Trainer(folder / "program", model=Model(layers=LAYERS), optimizer=adamw)
    index, losses = dist.get_rank() % DATA_SHARDS, []
    with trainer.trace(folder / "trace.json", steps=NUM_STEPS):
        for step in range(NUM_STEPS):
            batch = make_batch(step, NUM_ROWS)
            shard = {name: value.chunk(DATA_SHARDS)[index] for name, value in batch.items()}
            losses.append(trainer.step(shard).loss)
    seen = {"losses": losses, "state": trainer.full_state_dict()}
    torch.save(seen, folder / f"rank{dist.get_rank()}.pt")


if __name__ == "__main__":
    main()
