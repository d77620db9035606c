"""What each process of `train_processes` runs, under torchrun: ``oracle_worker.py FOLDER``."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import torch
from oracle import adamw
from piper_runtime import Trainer


def main() -> None:
    """Train on this rank's part of every batch; save what each step gave, and a checkpoint."""
    torch.set_num_threads(1)
    folder, rank = Path(sys.argv[1]), int(os.environ["RANK"])
    given = torch.load(folder / "given.pt")
    trainer = Trainer(
        str(folder / "program"),
        transport="gloo",
        init=lambda name, shape, dtype, generator: given["weights"][name],
        optimizer=adamw,
    )
    mesh, axes = trainer.program.manifest.mesh, trainer.program.manifest.batch_axes
    index, count = mesh.index(rank, axes), mesh.size(axes)
    seen: dict[str, list[object]] = {"losses": [], "skipped": [], "scales": [], "states": []}
    for batch in given["batches"]:
        result = trainer.step({name: value.chunk(count)[index] for name, value in batch.items()})
        seen["losses"].append(result.loss)
        seen["skipped"].append(result.skipped)
        seen["scales"].append(result.loss_scale)
        seen["states"].append(trainer.full_state_dict())
    trainer.save(folder / "checkpoint")
    torch.save(seen, folder / f"rank{rank}.pt")
    trainer.close()


if __name__ == "__main__":
    main()
