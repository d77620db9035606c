"""What each process of the gloo test of sequences runs, under torchrun: ``sequences_worker.py DIR``."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import torch
from oracle import adamw
from piper_runtime import Trainer


def main() -> None:
    """Train on the whole sequences of this rank's rows; save what was seen."""
    torch.set_num_threads(1)
    folder, rank = Path(sys.argv[1]), int(os.environ["RANK"])
    given = torch.load(folder / "given.pt")
    trainer = Trainer(
        str(folder / "program"),
        transport="gloo",
        init=lambda name, shape, dtype, generator: given["weights"][name],
        optimizer=adamw,
    )
    index = trainer.program.manifest.mesh.index(rank, ("dp",))
    losses = []
    for batch in given["batches"]:
        part = {name: value.chunk(given["dp"])[index] for name, value in batch.items()}
        losses.append(trainer.step(part).loss)
    seen = {"losses": losses, "states": trainer.full_state_dict()}
    torch.save(seen, folder / f"rank{rank}.pt")
    trainer.close()


if __name__ == "__main__":
    main()
