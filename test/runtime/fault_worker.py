"""What each process of the fault tests runs under torchrun.

    fault_worker.py TIMEOUT STEPS FOLDER [stay] [compiled]

It trains the hand-written program, or with ``compiled`` one that the compiler makes of a model;
PIPER_FAULT says what goes wrong. ``FOLDER/struck`` says when, ``FOLDER/endedR`` when the training
of rank R has failed, in seconds of the machine's clock. With ``stay`` no process ends before all
have failed, so that torchrun does not end the others.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import shared_model
import torch
from gloo_worker import shard
from mlp_program import TiedMlp, make_batch, make_sgd, program_texts
from piper_runtime import Program, Trainer
from piper_runtime.failures.faults import ArmedFault
from piper_runtime.instruction import Instruction
from torch import Tensor

RANK = int(os.environ["RANK"])
FOLDER = Path(sys.argv[3])


def note(what: str) -> None:
    """Write down the time, of a clock that all processes share."""
    (FOLDER / what).write_text(repr(time.monotonic()))


strike = ArmedFault.before


def note_and_strike(self: ArmedFault, instruction: Instruction) -> None:
    """Do what a fault does."""
    note("struck")
    strike(self, instruction)


def wait_for_others() -> None:
    """Stay until all have ended, a minute at most."""
    until = time.monotonic() + 60
    while len(list(FOLDER.glob("ended*"))) < 4 and time.monotonic() < until:
        time.sleep(0.01)


def train(timeout: float, steps: int) -> tuple[Trainer, float]:
    """Train until the fault strikes; return the trainer and the last loss."""
    program = Program(program_texts())
    make: Callable[[int], dict[str, Tensor]] = make_batch
    options: dict[str, Any] = {"model": TiedMlp(), "optimizer": make_sgd}
    if "compiled" in sys.argv:
        program, make, options = compiled(), shared_model.make_batch, {}
    trainer = Trainer(program, timeout=timeout, **options)
    for step in range(steps):
        loss = trainer.step(shard(make(step), RANK % 2)).loss
    return trainer, loss


def compiled() -> Program:
    """A model on two stages times two copies, which rank 0 compiles for all."""
    import piper  # the hand-written program needs no compiler

    model, batch = shared_model.make_model(), shard(shared_model.make_batch(), RANK % 2)
    return piper.compile(model, shared_model.token_loss, shared_model.make_strategy(), batch)


def main() -> None:
    """Train, and note when that has failed."""
    torch.set_num_threads(1)
    ArmedFault.before = note_and_strike  # type: ignore[method-assign]
    timeout, steps = float(sys.argv[1]), int(sys.argv[2])
    try:
        trainer, loss = train(timeout, steps)
    except BaseException:
        note(f"ended{RANK}")
        if "stay" in sys.argv:
            wait_for_others()
        raise
    # In one piece, since all ranks write to one pipe.
    sys.stdout.write(f"loss {loss!r} of rank {RANK}\n")
    sys.stdout.flush()
    trainer.close()


if __name__ == "__main__":
    main()
