"""The example of docs/checkpoints.md: saved under ZeRO-3, loaded under a pipeline and by PyTorch.

python docs/checkpoints.py DIR
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import piper
import torch
from observability import Model, adamw, loss_fn
from piper.strategy import Directive
from torch import Tensor
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save
from torch.distributed.checkpoint.metadata import TensorStorageMetadata

ROWS, BEFORE, AFTER = 64, 2, 3
CLIP = 1.0


def make_batch(step: int) -> dict[str, Tensor]:
    """Return the batch of a step, all ranks' rows."""
    return {"x": torch.randn(ROWS, 64, generator=torch.Generator().manual_seed(step))}


def start(mesh: dict[str, int], *directives: Directive, seed: int) -> piper.Trainer:
    """Compile a strategy and return its trainer, of a model with this seed."""
    torch.manual_seed(seed)
    common = [piper.annotate({"blocks.*": "block"}), piper.update(adamw, clip=CLIP)]
    strategy = piper.Strategy(mesh=mesh, directives=[*common, *directives])
    program = piper.compile(Model(), loss_fn, strategy, make_batch(0))
    return piper.Trainer(program, transport="local")


def train(trainer: piper.Trainer, steps: int) -> str:
    """Take the next steps; return their losses."""
    losses = [trainer.step(make_batch(trainer.steps)).loss for _ in range(steps)]
    return " ".join(f"{loss:.4f}" for loss in losses)


def plain(path: Path) -> str:
    """Go on in plain PyTorch: what torch's own tool reads fits its model and optimizer."""
    dcp_to_torch_save(path, path.with_suffix(".pt"))
    tree: dict[str, Any] = torch.load(path.with_suffix(".pt"))
    model = Model()
    model.load_state_dict(tree["model"])
    optimizer = adamw(list(model.parameters()))
    for name, parameter in model.named_parameters():
        optimizer.state[parameter] = tree["optimizer"]["state"][name]
    losses, done = [], int(tree["train_state"]["step"])
    for step in range(done, done + AFTER):
        optimizer.zero_grad()
        loss = loss_fn(model, make_batch(step))
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        optimizer.step()
        losses.append(f"{loss.item():.4f}")
    return " ".join(losses)


def show(path: Path) -> None:
    """Print some of the entries, and in how many pieces they are."""
    entries = FileSystemReader(path).read_metadata().state_dict_metadata
    for key, entry in sorted(entries.items()):
        if isinstance(entry, TensorStorageMetadata) and ("blocks.0.exp" in key or "train" in key):
            dtype = str(entry.properties.dtype).removeprefix("torch.")
            print(f"{key:49} {dtype:8} {list(entry.size)!s:10} pieces: {len(entry.chunks)}")


def main(folder: str) -> None:
    """Save, go on in three ways, and look into the checkpoint."""
    path = Path(folder)
    zero = start({"dp": 4}, piper.replicate(axis="dp", zero=3), seed=0)
    train(zero, BEFORE)
    zero.save(path)
    print("dp 4, ZeRO-3, uninterrupted ", train(zero, AFTER))
    microbatches = [piper.split(microbatches=4), piper.order("1F1B")]
    pipeline = start({"pp": 2}, piper.place(stages=2), *microbatches, seed=1)
    pipeline.load(path)
    print("pp 2, 1F1B, from the folder ", train(pipeline, AFTER))
    print("PyTorch, from the folder    ", plain(path))
    print()
    show(path)


if __name__ == "__main__":
    main(sys.argv[1])
