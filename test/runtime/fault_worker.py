"""What each process of the fault tests runs, under torchrun: TIMEOUT STEPS FOLDER [stay].

It trains the hand-written program; PIPER_FAULT says what goes wrong. ``FOLDER/struck`` says when,
``FOLDER/endedR`` when the training of rank R has failed, in seconds of the machine's clock. With
``stay`` no process ends before all have failed, so that torchrun does not end the others.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import torch
from gloo_worker import shard
from mlp_program import TiedMlp, make_batch, make_sgd, program_texts
from piper_runtime import Program, Trainer
from piper_runtime.faults import ArmedFault
from piper_runtime.instruction import Instruction

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


def main() -> None:
    """Train until the fault strikes."""
    torch.set_num_threads(1)
    ArmedFault.before = note_and_strike  # type: ignore[method-assign]
    timeout, steps = float(sys.argv[1]), int(sys.argv[2])
    trainer = Trainer(
        Program(program_texts()), model=TiedMlp(), optimizer=make_sgd, timeout=timeout
    )
    try:
        for step in range(steps):
            result = trainer.step(shard(make_batch(step), RANK % 2))
    except BaseException:
        note(f"ended{RANK}")
        if "stay" in sys.argv:
            wait_for_others()
        raise
    # In one piece, since all ranks write to one pipe.
    sys.stdout.write(f"loss {result.loss!r} of rank {RANK}\n")
    sys.stdout.flush()
    trainer.close()


if __name__ == "__main__":
    main()
