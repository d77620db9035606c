"""What each process of the fault tests runs, under torchrun: ``fault_worker.py TIMEOUT STEPS``.

It trains the hand-written program; PIPER_FAULT says what goes wrong.
"""

from __future__ import annotations

import os
import sys

import torch
from gloo_worker import shard
from mlp_program import TiedMlp, make_batch, make_sgd, program_texts
from piper_runtime import Program, Trainer


def main() -> None:
    """Train until the fault strikes."""
    torch.set_num_threads(1)
    timeout, steps = float(sys.argv[1]), int(sys.argv[2])
    trainer = Trainer(
        Program(program_texts()), model=TiedMlp(), optimizer=make_sgd, timeout=timeout
    )
    for step in range(steps):
        result = trainer.step(shard(make_batch(step), int(os.environ["RANK"]) % 2))
    # In one piece, since all ranks write to one pipe.
    sys.stdout.write(f"loss {result.loss!r} of rank {os.environ['RANK']}\n")
    sys.stdout.flush()
    trainer.close()


if __name__ == "__main__":
    main()
