"""What each process runs, under torchrun, of a script that calls differently on rank 1."""

from __future__ import annotations

import os

import torch
from gloo_worker import shard
from mlp_program import TiedMlp, make_batch, make_sgd, program_texts
from piper_runtime import Program, Trainer

RANK = int(os.environ["RANK"])


def main() -> None:
    """Train, and then evaluate on one rank while the others train."""
    torch.set_num_threads(1)
    program = Program(program_texts())
    trainer = Trainer(program, model=TiedMlp(), optimizer=make_sgd, timeout=4.0)
    batch = shard(make_batch(0), RANK % 2)
    trainer.step(batch)
    if RANK == 1:
        trainer.evaluate(batch)
    else:
        trainer.step(batch)
    trainer.close()


if __name__ == "__main__":
    main()
