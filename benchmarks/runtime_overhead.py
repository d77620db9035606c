"""What the runtime adds to each instruction: a compiled step whose kernels do nothing.

    python benchmarks/runtime_overhead.py

Compiles a small GPT under 1F1B on four ranks in one process, runs a step, and then lets every
kernel return what it returned before. What is left of a step's time is the runtime's. Prints the
median over steps, per instruction.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import piper
import torch
from paired import GPT, Batch, Config, loss_fn
from piper_runtime import LocalTransport
from piper_runtime.instruction import Instruction
from torch import Tensor

RANKS, MICROBATCHES, STEPS = 4, 16, 30


def make_trainer(batch: Batch) -> piper.Trainer:
    """A GPT whose tensors are so small that they cost nothing."""
    strategy = piper.Strategy(
        mesh={"pp": RANKS},
        directives=[
            piper.annotate({"embed": "first", "layers.*": "layer", "head": "last"}),
            piper.split(microbatches=MICROBATCHES),
            piper.place(stages=RANKS),
            piper.order("1F1B"),
        ],
    )
    torch.manual_seed(0)
    model = GPT(Config(layers=6, width=8, heads=1, context=4))
    program = piper.compile(model, loss_fn, strategy, batch)
    return piper.Trainer(program, model=model, transport=LocalTransport(poison=False))


def empty_kernels(trainer: piper.Trainer, batch: Batch) -> None:
    """Let every kernel of the program return the results of its first call."""
    kernels = trainer._loaded.modules[0].k
    for name, value in list(vars(kernels).items()):
        if getattr(value, "__module__", None) == kernels.__name__ and callable(value):
            setattr(kernels, name, _memoized(value))
    trainer.step(batch)


def _memoized(function: Callable[..., Any]) -> Callable[..., Any]:
    results: list[Any] = []

    def kernel(*arguments: Tensor) -> Any:
        if not results:
            results.append(function(*arguments))
        return results[0]

    return kernel


def main() -> None:
    """Measure."""
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(0)
    ids, labels = torch.randint(256, (2, MICROBATCHES, 4), generator=generator)
    batch = {"ids": ids, "labels": labels}
    trainer = make_trainer(batch)
    empty_kernels(trainer, batch)
    counted: list[Instruction] = []
    trainer.transport.observer = lambda instruction, start, end: counted.append(instruction)
    trainer.step(batch)
    trainer.transport.observer = None
    times = []
    for _ in range(STEPS):
        start = time.perf_counter()
        trainer.step(batch)
        times.append(time.perf_counter() - start)
    median = statistics.median(times)
    print(
        f"{len(counted)} instructions in {median * 1e3:.1f} ms, "
        f"{median / len(counted) * 1e6:.1f} us each (median of {STEPS} steps)"
    )


if __name__ == "__main__":
    main()
