"""What each process of the gloo test runs, under torchrun: ``checkpoint_worker.py FOLDER``."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from checkpoint_cases import AFTER, BEFORE, DP4, HSDP, batch, start
from mlp_program import TiedMlp, make_adamw, make_sgd, program_texts
from mlp_program import make_batch as mlp_batch
from piper_runtime import CheckpointError, Program, Trainer
from sharded_program import Sharding
from torch.distributed.checkpoint.filesystem import FileSystemWriter

NUM_RANKS = 4
SAVER, LOADER = Sharding(3, "each", DP4), Sharding(2, "each", HSDP)


def train(trainer: Trainer, sharding: Sharding, rank: int, steps: int) -> list[float]:
    """Take the next steps on this rank's shards."""
    losses = []
    for _ in range(steps):
        whole = batch(sharding, trainer.steps)
        shard = {name: value.chunk(NUM_RANKS)[rank] for name, value in whole.items()}
        losses.append(trainer.step(shard).loss)
    return losses


def pipeline() -> Trainer:
    """Return the trainer of a tied model on two stages of two ranks."""
    program = Program(program_texts())
    return Trainer(program, model=TiedMlp(), optimizer=make_adamw, transport="gloo")


def message(action: Callable[[], None]) -> str:
    """Return the error of an action."""
    try:
        action()
    except CheckpointError as error:
        return str(error)
    return ""


def refuse(*_: Any, **__: Any) -> None:
    """Write nothing."""
    raise OSError("no space left")


def main() -> None:
    """Run the cases in one order on every rank."""
    dist.init_process_group("gloo")
    folder, rank = Path(sys.argv[1]), dist.get_rank()
    seen: dict[str, Any] = {}
    saver = start(SAVER, transport="gloo")
    train(saver, SAVER, rank, BEFORE)
    saver.save(folder / "saved")
    train(saver, SAVER, rank, 1)
    broken = mock.patch.object(FileSystemWriter, "write_data", refuse)
    with broken if rank == 1 else nullcontext():
        seen["write"] = message(lambda: saver.save(folder / "saved"))
    saver.close()
    loader = start(LOADER, seed=1, transport="gloo")
    loader.load(folder / "saved")
    seen["losses"] = train(loader, LOADER, rank, AFTER)
    loader.save(folder / "later")
    other = start(LOADER, make_sgd if rank == 2 else make_adamw, transport="gloo")
    seen["fit"] = message(lambda: other.load(folder / "saved"))
    tied = pipeline()
    tied.step({n: v.chunk(2)[rank % 2] for n, v in mlp_batch(0).items()})
    tied.save(folder / "tied")
    torch.save(seen, folder / f"rank{rank}.pt")


if __name__ == "__main__":
    main()
