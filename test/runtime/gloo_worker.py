"""What each process of the gloo test runs, under torchrun: ``gloo_worker.py OUTPUT_FOLDER``.

Every process saves what it saw; the last step fails on rank 1, and all must say so.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from collective_program import collective_program, make_input
from mlp_program import TiedMlp, make_adamw, make_batch, program_texts
from piper_runtime import Program, Trainer
from torch import Tensor

NUM_STEPS = 3


def shard(batch: dict[str, Tensor], index: int) -> dict[str, Tensor]:
    """Return what the ranks of data-parallel ``index`` feed."""
    return {name: value.chunk(2)[index] for name, value in batch.items()}


def train(rank: int) -> tuple[Trainer, dict[str, Any]]:
    """Take three steps; return all that a trainer reports."""
    trainer = Trainer(Program(program_texts()), model=TiedMlp(), optimizer=make_adamw)
    results = [trainer.step(shard(make_batch(step), rank % 2)) for step in range(NUM_STEPS)]
    seen = {
        "transport": trainer.transport.name,
        "losses": [result.loss for result in results],
        "norms": [result.grad_norm for result in results],
        "gradients": trainer.gradients(),
        "state": trainer.full_state_dict(),
        "evaluation": trainer.evaluate(shard(make_batch(9), rank % 2)),
    }
    return trainer, seen


def collectives(dtype: torch.dtype) -> dict[str, float]:
    """Run every collective once."""
    program = collective_program(str(dtype).removeprefix("torch."))
    trainer = Trainer(program)
    x = make_input(dtype).chunk(dist.get_world_size())[dist.get_rank()]
    outputs = trainer.outputs("train", {"x": x})
    trainer.close()
    return outputs


def message_of(action: Callable[[], object]) -> str:
    """Return the text of the ValueError that ``action`` raises."""
    try:
        action()
    except ValueError as error:
        return str(error)
    return ""


def main() -> None:
    """Run the cases in one order on every rank."""
    folder = Path(sys.argv[1])
    trainer, seen = train(int(os.environ["RANK"]))
    rank = dist.get_rank()
    seen["collectives"] = {
        str(dtype): collectives(dtype) for dtype in (torch.float32, torch.bfloat16, torch.int64)
    }
    program = Program(program_texts())
    seen["replicas"] = message_of(
        lambda: Trainer(program, model=TiedMlp(seed=rank % 2), optimizer=make_adamw)
    )
    other = Trainer(program, model=TiedMlp(), optimizer=make_adamw)
    seen["batches"] = message_of(lambda: other.step(shard(make_batch(rank // 2), rank % 2)))
    torch.save(seen, folder / f"rank{rank}.pt")
    batch = shard(make_batch(0), rank % 2)
    if rank == 1:
        batch["ids"][0, 0] = 1_000_000
    start = time.monotonic()
    try:
        trainer.step(batch)
    finally:
        text = f"{time.monotonic() - start}\n{sys.exc_info()[1]}"
        (folder / f"failure{rank}.txt").write_text(text)


if __name__ == "__main__":
    main()
