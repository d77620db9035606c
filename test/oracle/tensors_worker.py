"""What each process of the gloo test of shared-out weights runs: ``tensors_worker.py FOLDER``."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import torch
from oracle import adamw
from piper_runtime import Trainer


def main() -> None:
    """Train on this rank's part of every batch; save what was seen, and a checkpoint."""
    torch.set_num_threads(1)
    folder, rank = Path(sys.argv[1]), int(os.environ["RANK"])
    given = torch.load(folder / "given.pt")
    trainer = Trainer(
        str(folder / "program"),
        transport="gloo",
        init=lambda name, shape, dtype, generator: given["weights"][name],
        optimizer=adamw,
    )
    mesh, axes = trainer.program.manifest.mesh, trainer.program.manifest.data_axes
    index, count = mesh.index(rank, axes), mesh.size(axes)
    losses, states = [], []
    for batch in given["batches"]:
        part = {name: value.chunk(count)[index] for name, value in batch.items()}
        losses.append(trainer.step(part).loss)
        states.append(trainer.full_state_dict())
    trainer.save(folder / "checkpoint")
    torch.save({"losses": losses, "states": states}, folder / f"rank{rank}.pt")
    trainer.close()


if __name__ == "__main__":
    main()
