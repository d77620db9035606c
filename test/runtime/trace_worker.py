"""What each process of the trace test runs, under torchrun: ``trace_worker.py OUTPUT_FOLDER``.

Ranks 2 and 3 pretend to be on another machine, whose clock is an hour ahead.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

RANK = int(os.environ["RANK"])
HOUR = 3_600_000_000_000
real = time.perf_counter_ns
time.perf_counter_ns = lambda: real() + (RANK // 2) * HOUR

import torch
from mlp_program import TiedMlp, make_adamw, make_batch, program_texts
from piper_runtime import Program, Trainer
from piper_runtime.observe import clocks
from piper_runtime.observe.metrics import Metrics


def main() -> None:
    """Take six steps with metrics, trace some, profile one and look at the memory of one on rank 1;
    then disagree.
    """
    folder = Path(sys.argv[1])
    clocks._machine = lambda: f"machine {RANK // 2}"
    program = Program(program_texts())
    metrics = Metrics(folder / "run.jsonl", every=2)
    trainer = Trainer(program, model=TiedMlp(), optimizer=make_adamw, metrics=metrics)
    lines, written = [], []
    memory = folder / f"memory{RANK}.json"

    def train(steps: range) -> None:
        for step in steps:
            batch = {name: value.chunk(2)[RANK % 2] for name, value in make_batch(step).items()}
            result = trainer.step(batch)
            lines.append((result.bubble, result.exposed, result.slowest, result.memory_of))
            written.append(memory.exists())

    with trainer.trace(folder / "trace.json", steps=[3, 4]):
        with trainer.profile(folder / f"profile{RANK}.json", steps=2, rank=1):
            train(range(3))
        with trainer.snapshot_memory(memory, steps=5, rank=1):
            train(range(3, 6))
    torch.save(written, folder / f"written{RANK}.pt")
    torch.save(lines, folder / f"lines{RANK}.pt")
    try:
        trainer.trace(folder / "other.json", steps=[7 + RANK])
    except ValueError as error:
        (folder / f"refused{RANK}.txt").write_text(str(error))
    trainer.close()
    every = 1 + RANK // 3
    try:
        Trainer(
            program,
            model=TiedMlp(),
            optimizer=make_adamw,
            metrics=Metrics(folder / "other.jsonl", every=every),
        )
    except ValueError as error:
        (folder / f"metrics{RANK}.txt").write_text(str(error))


if __name__ == "__main__":
    main()
