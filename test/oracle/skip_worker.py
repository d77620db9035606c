"""What each process of the gloo test of skipped steps runs: ``skip_worker.py FOLDER``."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import torch
from oracle import adamw
from piper_runtime import Trainer


def main() -> None:
    """Train on this rank's shard of every batch and save what was seen."""
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
    skipped, scales, states = [], [], []
    for batch in given["batches"]:
        result = trainer.step({name: value.chunk(count)[index] for name, value in batch.items()})
        skipped.append(result.skipped)
        scales.append(result.loss_scale)
        states.append(trainer.full_state_dict())
    torch.save({"skipped": skipped, "scales": scales, "states": states}, folder / f"rank{rank}.pt")
    trainer.close()


if __name__ == "__main__":
    main()
